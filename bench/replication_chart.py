"""Seed 003's figures 5 to 8 from our simulation, as a picture and as a table: python -m bench.replication_chart."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from bench.replication_simulation import EVENTS, LEVELS, Measured, evaluation

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "replication.svg"
# From light to dark with the rate of failures, and with the number of replicas.
BLUES = ["#9cc4ee", "#5b9bdd", "#0b62c4", "#083f7d", "#041f3d"]
WIDTH, HEIGHT = 300, 170
AXIS: dict[str, Any] = {"gridColor": "#e4e4e4", "domain": False, "ticks": False, "labelFontSize": 11, "titleFontSize": 11}


def main() -> None:
    measured = evaluation()
    chart(measured).save(str(PICTURE))
    sys.stdout.write(markdown(measured))


def markdown(measured: Sequence[Measured]) -> str:
    head = ["f", "p_fail", "messages", "duplicates", "leader messages", "heartbeats", "failures", "leaders", "latency, steps"]
    rows = [head, ["---:"] * len(head), *(_row(m) for m in measured)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(m: Measured) -> list[str]:
    counts = [f"{n:,}" for n in (m.messages, m.duplicates, m.leader_messages, m.heartbeats, m.failures)]
    return [str(m.f), f"{m.failure:.3%}", *counts, f"{m.leaders:.3f}", f"{m.latency:.2f}"]


def chart(measured: Sequence[Measured]) -> Any:
    title = alt.TitleParams(
        "Messages grow linearly with f, and one replica leads",
        subtitle=[
            f"Seed 003's evaluation, figures 5 to 8: {sum(LEVELS)} nodes, {EVENTS:,} primary events; our protocol, simulated.",
            "p: the probability that a node fails, per step; it returns 25 steps later.",
        ],
        anchor="start",
        fontSize=16,
        subtitleFontSize=12,
        subtitleColor="#444",
        offset=16,
    )
    frame = pd.DataFrame([
        {
            "f": m.f,
            "p": f"{m.failure:.3%}",
            "rate": 100 * m.failure,
            "messages": m.messages,
            "duplicates": m.duplicates,
            "leader_messages": m.leader_messages,
            "leaders": m.leaders,
            "latency": m.latency,
        }
        for m in measured
    ])
    by_f, by_p = ("f", "f", "p"), ("rate", "p_fail in % per step", "f")
    # The lines of a row mean the same, so that one legend serves it.
    rows = [
        (
            _panel(frame, "messages", "Event messages", *by_f),
            _panel(frame, "duplicates", "5a  Duplicates", *by_f),
            _panel(frame, "leader_messages", "5b  Leader messages", *by_f),
        ),
        (
            _panel(frame, "duplicates", "6a  Duplicates", *by_p),
            _panel(frame, "leader_messages", "6b  Leader messages", *by_p),
        ),
        (_panel(frame, "leaders", "7  Leaders per node", *by_p), _panel(frame, "latency", "8  Latency in steps", *by_p)),
    ]
    whole = alt.vconcat(
        *[alt.hconcat(*row, spacing=30) for row in rows], spacing=24, title=title, background="white", padding=16
    )
    return whole.configure(font="Helvetica, Arial, sans-serif").configure_view(stroke=None).resolve_scale(color="independent")


def _panel(frame: pd.DataFrame, value: str, title: str, x: str, x_title: str, lines: str) -> Any:
    form = {"leaders": ".3f", "latency": ".1f"}.get(value, "~s")
    y = alt.Y(f"{value}:Q", title=None).scale(zero=value != "leaders").axis(labelExpr=f"format(datum.value, '{form}')", **AXIS)
    across = alt.X(f"{x}:Q", title=x_title).axis(tickCount=5, titleFontWeight="normal", **{**AXIS, "grid": False})
    color = alt.Color(f"{lines}:N", title=lines).scale(range=BLUES)
    base = alt.Chart(frame).encode(x=across, y=y, color=color).mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=40))
    return base.properties(width=WIDTH, height=HEIGHT, title=alt.TitleParams(title, anchor="start", fontSize=13))


if __name__ == "__main__":
    main()
