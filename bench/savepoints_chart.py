"""The experiment of bench/savepoints.py as a picture and as a table: python -m bench.savepoints_chart."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from bench.savepoints import EVENTS, INTERVALS, SIZE, SLIDES, STREAMS, Measured, Mode, experiment

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "savepoints.svg"
# Grey for what is left behind, blue for what is proposed; both stand out on white, for the colour-blind too.
COLORS: dict[Mode, str] = {"base": "#767676", "v_skip": "#0b62c4"}
NAMES: dict[Mode, str] = {"base": "base method", "v_skip": "v_skip"}
WIDTH, HEIGHT = 370, 180
AXIS: dict[str, Any] = {"gridColor": "#e4e4e4", "domain": False, "ticks": False, "labelFontSize": 11, "titleFontSize": 11}
POWERS = "format(datum.value, '~s')"


def main() -> None:
    measured = experiment(STREAMS, EVENTS)
    write(measured, PICTURE)
    sys.stdout.write(markdown(measured))


def markdown(measured: Sequence[Measured]) -> str:
    head = ["slide", "save interval", "events replayed", "fewer", "recovery, ms", "less", "largest backup, events", "smaller"]
    rows = [head, ["---:"] * len(head), *(_row(m) for m in measured)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(measured: Measured) -> list[str]:
    base, v_skip = measured.cycles["base"], measured.cycles["v_skip"]
    saved = v_skip.saved(base)
    return [
        str(measured.slide),
        str(measured.interval),
        f"{base.replayed:,.0f} → {v_skip.replayed:,.0f}",
        f"{saved.replayed:.2%}",
        f"{base.milliseconds:,.0f} → {v_skip.milliseconds:.1f}",
        f"{saved.milliseconds:.1%}",
        f"{base.backup:,.0f} → {v_skip.backup:,.0f}",
        f"{saved.backup:.1%}",
    ]


def write(measured: Sequence[Measured], path: Path) -> None:
    chart(measured).save(str(path))


def chart(measured: Sequence[Measured]) -> Any:
    saved = [m.cycles["v_skip"].saved(m.cycles["base"]) for m in measured]
    fewer, less = min(s.replayed for s in saved), min(s.milliseconds for s in saved)
    title = alt.TitleParams(
        f"With v_skip, a recovery replays at least {_floor(fewer)} fewer events and takes {_floor(less)} less time",
        subtitle=[
            f"Against the base method. {measured[0].streams:,} streams together, pattern a..e, windows of {SIZE:,} time units.",
            "Save interval: acks per stream before the base method stores a savepoint. Logarithmic scales.",
        ],
        anchor="start",
        fontSize=16,
        subtitleFontSize=12,
        subtitleColor="#444",
        offset=16,
    )
    rows = [
        _panels(measured, "replayed", "Events replayed (fewer is better)"),
        _panels(measured, "milliseconds", "Recovery time in milliseconds (less is better)"),
    ]
    whole = alt.vconcat(*rows, spacing=24, title=title, background="white", padding=16)
    return whole.configure(font="Helvetica, Arial, sans-serif").configure_view(stroke=None)


def _panels(measured: Sequence[Measured], field: str, title: str) -> Any:
    """One quantity, slide by slide, on one scale."""
    values = [getattr(m.cycles[mode], field) for m in measured for mode in NAMES]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    y = alt.Y("value:Q", title=None).scale(type="log", domain=[10**low, 10**high])
    y = y.axis(values=[10**k for k in range(low, high + 1)], labelExpr=POWERS, minExtent=38, **AXIS)
    panels = [_panel(_frame([m for m in measured if m.slide == slide], field), y, slide) for slide in SLIDES]
    return alt.hconcat(*panels, spacing=20, title=alt.TitleParams(title, anchor="start", fontSize=14, offset=8))


def _frame(measured: Sequence[Measured], field: str) -> pd.DataFrame:
    points = [(m.interval, name, float(getattr(m.cycles[mode], field))) for m in measured for mode, name in NAMES.items()]
    return pd.DataFrame([{"interval": x, "name": name, "value": y, "label": short(y)} for x, name, y in points])


def _panel(frame: pd.DataFrame, y: Any, slide: int) -> Any:
    # Room on the right for the names of the lines, which need no legend then.
    x = alt.X("interval:Q", title="save interval").scale(type="log", base=2, domain=[6.5, 330], nice=False)
    x = x.axis(values=list(INTERVALS), format="d", titleFontWeight="normal", titleAnchor="start", **{**AXIS, "grid": False})
    color = alt.Color("name:N", legend=None).scale(domain=list(NAMES.values()), range=[COLORS[mode] for mode in NAMES])
    lines = alt.Chart(frame).encode(x=x, y=y, color=color)
    texts = lines.encode(text="label:N")
    halo = texts.encode(color=alt.value("white")).mark_text(
        dy=-12, fontSize=11, stroke="white", strokeWidth=4, strokeJoin="round"
    )
    names = lines.transform_filter(alt.datum.interval == INTERVALS[-1]).encode(text="name:N")
    return alt.layer(
        halo,
        lines.mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=45)),
        texts.mark_text(dy=-12, fontSize=11),
        names.mark_text(align="left", dx=12, fontSize=12, fontWeight="bold"),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.TitleParams(f"window slide {slide}", fontSize=12, fontWeight="normal", color="#444", anchor="start"),
    )


def _floor(share: float) -> str:
    """Never more than was measured."""
    return f"{math.floor(1000 * share) / 10:g}%"


def short(value: float) -> str:
    """At least two figures that count: 17M, 5.2k, 690, 3.8."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.0f}{unit}" if value >= 10 * limit else f"{value / limit:.1f}{unit}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


if __name__ == "__main__":
    main()
