"""Waiting against guessing as a picture and as tables: python -m bench.disorder_chart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from bench.disorder import Measured, Workload, positions, run, windows
from bench.savepoints_chart import AXIS

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "disorder.svg"
ALPHAS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
ADAPTIVE = "adaptive"
# Seed 001's.
INTERVALS = (1, 5, 10, 50, 100, 1_000, 5_000)
# A fifth of the events of the bars, for alpha; for intervals so few that a state after every event can be had in a minute.
# Windows are as many times smaller.
EVENTS, FEW = 200_000, 50_000
BLUE, GREY = "#0b62c4", "#767676"
WIDTH, HEIGHT = 370, 170


def main() -> None:
    workloads = (positions(EVENTS), windows(EVENTS, size=2_000, slide=400))
    by_alpha = {workload.name: against_alpha(workload) for workload in workloads}
    by_interval = against_interval()
    chart(by_alpha, by_interval).save(str(PICTURE))
    sys.stdout.write(markdown(by_alpha, by_interval))


def against_alpha(workload: Workload) -> dict[str, Measured]:
    """Plain buffering, less and less of it, and what follows the load."""
    return {**{f"{alpha:g}": run(workload, alpha) for alpha in ALPHAS}, ADAPTIVE: run(workload, None)}


def against_interval() -> dict[int, Measured]:
    """What states cost and save, where nothing is waited for."""
    small = windows(FEW, size=500, slide=100)
    return {every: run(small, 0.0, every=every) for every in INTERVALS}


def markdown(by_alpha: Mapping[str, Mapping[str, Measured]], by_interval: Mapping[int, Measured]) -> str:
    lines = ["| workload | alpha | mean latency, ticks | matched again | taken back | right |", "|---|---:|---:|---:|---:|---|"]
    for name, found in by_alpha.items():
        lines += [f"| {name} | {a} | {m.latency:,.0f} | {m.again:,} | {m.retracted:,} | {_yes(m)} |" for a, m in found.items()]
    lines += ["", "| a state every | matched again | states kept | seconds | right |", "|---:|---:|---:|---:|---|"]
    lines += [f"| {every:,} | {m.again:,} | {m.states} | {m.seconds:.1f} | {_yes(m)} |" for every, m in by_interval.items()]
    return "\n".join(lines) + "\n"


def chart(by_alpha: Mapping[str, Mapping[str, Measured]], by_interval: Mapping[int, Measured]) -> Any:
    less = min(1 - found[ADAPTIVE].latency / found["1"].latency for found in by_alpha.values())
    title = alt.TitleParams(
        f"Guessing as much as the load allows publishes at least {less:.0%} earlier than waiting for everybody",
        subtitle=[
            "Mean time from when something is decided to when it is published, by the log's clock; every output ends up right.",
            "Alpha: the share of the largest delay that is waited for. Below: what states cost and save, by how often.",
        ],
        anchor="start",
        fontSize=16,
        subtitleFontSize=12,
        subtitleColor="#444",
        offset=16,
    )
    above = alt.hconcat(*(_latency(name, found) for name, found in by_alpha.items()), spacing=20)
    below = alt.hconcat(_again(by_interval), _seconds(by_interval), spacing=20)
    whole = alt.vconcat(above, below, spacing=24, title=title, background="white", padding=16)
    return whole.configure(font="Helvetica, Arial, sans-serif").configure_view(stroke=None)


def _latency(name: str, found: Mapping[str, Measured]) -> Any:
    rows = [{"alpha": a, "value": m.latency, "label": f"{m.latency:,.0f}", "own": a == ADAPTIVE} for a, m in found.items()]
    x = alt.X("alpha:N", sort=list(found), title="alpha").axis(labelAngle=0, **{**AXIS, "grid": False})
    return _bars(rows, x, f"{name}: mean latency in ticks (less is better)")


def _again(found: Mapping[int, Measured]) -> Any:
    rows = [{"every": f"{n:,}", "value": m.again, "label": f"{m.again:,}", "own": True} for n, m in found.items()]
    return _bars(rows, _every(found), "events matched again (fewer is better)")


def _seconds(found: Mapping[int, Measured]) -> Any:
    rows = [{"every": f"{n:,}", "value": m.seconds, "label": f"{m.seconds:.1f}", "own": True} for n, m in found.items()]
    return _bars(rows, _every(found), "seconds in all (less is better)")


def _every(found: Mapping[int, Measured]) -> Any:
    x = alt.X("every:N", sort=[f"{n:,}" for n in found], title="events between two states")
    return x.axis(labelAngle=0, **{**AXIS, "grid": False})


def _bars(rows: list[dict[str, Any]], x: Any, title: str) -> Any:
    color = alt.condition(alt.datum.own, alt.value(BLUE), alt.value(GREY))
    base = alt.Chart(pd.DataFrame(rows)).encode(x=x, y=alt.Y("value:Q", title=None).axis(minExtent=38, **AXIS))
    heads = base.encode(text="label:N").mark_text(dy=-7, fontSize=11)
    text = alt.TitleParams(title, anchor="start", fontSize=13, fontWeight="normal")
    return (base.mark_bar().encode(color=color) + heads).properties(width=WIDTH, height=HEIGHT, title=text)


def _yes(measured: Measured) -> str:
    return "yes" if measured.right else "NO"


if __name__ == "__main__":
    main()
