"""The results as tables and charts in bench/README.md: python -m bench.peers.page, without measuring again.

The text of that page is written by hand; only what stands between its marks is made here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from bench.peers.results import FLINK_CEP, FLINK_SQL, REPRISE, RESULTS, STREAMING, read_lines
from bench.peers.workloads import WORKLOADS
from bench.savepoints_chart import AXIS, short

PAGE = RESULTS.parents[1] / "README.md"
THROUGHPUT, RECOVERY = (RESULTS.with_name(f"peers-{name}.svg") for name in ("throughput", "recovery"))
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
FLOOR = "plain scan"
# Blue for ours, greys for the floor and the others; told apart by their names too, for the colour-blind.
COLORS = {FLOOR: "#b8b8b8", REPRISE: "#0b62c4", FLINK_CEP: "#767676", STREAMING: "#8f8f8f", FLINK_SQL: "#a3a3a3"}

Line = dict[str, Any]


def main() -> None:
    write_page()


def write_page(page: Path = PAGE, results: Path = RESULTS) -> None:
    lines = read_lines(results)
    throughput_chart(lines).save(str(results.with_name(THROUGHPUT.name)))
    if _killed(lines):
        recovery_chart(lines).save(str(results.with_name(RECOVERY.name)))
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{markdown(lines)}{END}{after}")


# Tables


def markdown(lines: Sequence[Line]) -> str:
    throughput = f"![Events per second by workload](results/{THROUGHPUT.name})\n\n{_throughput_table(lines)}\n{_notes(lines)}\n"
    if not _killed(lines):
        return f"{throughput}After a kill: not measured yet, `reprise bench peers-recovery`.\n"
    return f"{throughput}![After a kill at half](results/{RECOVERY.name})\n\n{_recovery_table(lines)}"


def _killed(lines: Sequence[Line]) -> bool:
    """The throughput is kept, and shown, also where what comes after it failed."""
    return any(line["kind"] == "recovery" for line in lines)


def _throughput_table(lines: Sequence[Line]) -> str:
    who = [FLOOR, REPRISE, FLINK_CEP, FLINK_SQL, STREAMING]
    rows = [["workload", "matches", *who], ["---", "---:", *(["---:"] * len(who))]]
    for name, found in by_workload(lines).items():
        ours = found[REPRISE]
        rows.append([name, f"{ours['matches']:,}", *(_cell(found[one], ours) for one in who)])
    return _table(rows)


def by_workload(lines: Sequence[Line]) -> dict[str, dict[str, Line]]:
    """Of the readers only the fastest: the floor."""
    found: dict[str, dict[str, Line]] = {workload.name: {} for workload in WORKLOADS}
    for line in lines:
        if line["kind"] != "workload":
            continue
        mine = found[line["workload"]]
        who = FLOOR if line["same"] is None else line["who"]
        if who not in mine or line["events_per_second"] > mine[who]["events_per_second"]:
            mine[who] = line
    return found


def _cell(line: Line, ours: Line) -> str:
    speed = short(line["events_per_second"])
    if line is ours:
        return f"**{speed}**"
    if line["same"] is None:
        return f"{speed} ({line['who']})"
    if not line["same"]:
        return "other matches"
    times = ours["events_per_second"] / line["events_per_second"]
    return f"{speed}, 1/{times:,.0f} (of {short(line['events'])})"


def _notes(lines: Sequence[Line]) -> str:
    notes = dict.fromkeys(f"{line['who']} {line['note']}" for line in lines if line.get("note"))
    windows = next(line for line in lines if line["kind"] == "windows")["overlapping_against_tumbling"]
    told = [*notes, f"21 overlapping windows take us {windows:.2f} times as long as one after the other"]
    return "".join(f"- {note}.\n" for note in told)


def _recovery_table(lines: Sequence[Line]) -> str:
    head = ["killed at half", "events read again", "caught up after, s", ".. from the start of the process, s", "stored, bytes"]
    rows = [head, ["---", *(["---:"] * 4)]]
    for line in lines:
        if line["kind"] == "recovery":
            seconds = [f"{line[what]:.2f}" for what in ("seconds", "whole")]
            rows.append([line["who"], f"{line['again']:,}", *seconds, f"{line['stored']:,}"])
        elif line["kind"] == "checkpoint":
            rows.append([line["who"], "", "", "", f"{line['stored']:,}"])
    return _table(rows) + _failures(lines)


def _failures(lines: Sequence[Line]) -> str:
    """Recoveries that did not survive themselves."""
    failed = [(line["who"], line["failed"]) for line in lines if line["kind"] == "recovery" and line["failed"]]
    return "".join(
        f"\n- {who}: {count} recoveries before this one ended with an error of its own (in its CEP library).\n"
        for who, count in failed
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


# Charts


def throughput_chart(lines: Sequence[Line]) -> Any:
    found = by_workload(lines)
    points = [
        {"workload": name, "who": who, "speed": float(line["events_per_second"]), "label": short(line["events_per_second"])}
        for name, by_who in found.items()
        for who, line in by_who.items()
        if line["same"] is not False
    ]
    title = _title(
        "Events per second, on two cores",
        ["The same Parquet files, patterns and matches; logarithmic scale. The scan finds nothing: it is the floor."],
    )
    frame = pd.DataFrame(points)
    powers = range(math.floor(math.log10(frame["speed"].min())), math.ceil(math.log10(frame["speed"].max())) + 1)
    x = alt.X("speed:Q", title=None).scale(type="log", domain=[10 ** powers[0], 10 ** powers[-1]])
    x = x.axis(values=[10**power for power in powers], labelExpr="format(datum.value, '~s')", **AXIS)
    y = alt.Y("who:N", title=None, sort=list(COLORS)).axis(**{**AXIS, "labelLimit": 200})
    whole = _bars(alt.Chart(frame).encode(x=x, y=y), _colors(), 10 ** powers[0])
    order = [workload.name for workload in WORKLOADS]
    head = alt.Header(labelFontSize=12, labelAnchor="start", labelFontWeight="bold")
    panels = whole.properties(width=330, height=105).facet(
        facet=alt.Facet("workload:N", title=None, sort=order, header=head), columns=2
    )
    return _dressed(panels, title)


def recovery_chart(lines: Sequence[Line]) -> Any:
    """Three quantities side by side; each has its own scale, and less is better in all."""
    wanted = {"again": "Events read again", "seconds": "Seconds to catch up", "stored": "Bytes stored"}
    panels = [_quantity(lines, what, name) for what, name in wanted.items()]
    title = _title("After a kill at half of the log", ["Less is better. Logarithmic scales."])
    return _dressed(alt.hconcat(*panels, spacing=28), title)


def _quantity(lines: Sequence[Line], what: str, name: str) -> Any:
    killed = [line for line in lines if line["kind"] in ("recovery", "checkpoint") and what in line]
    frame = pd.DataFrame([{"who": line["who"], "value": line[what], "label": short(line[what])} for line in killed])
    low, high = frame["value"].min(), frame["value"].max()
    x = alt.X("value:Q", title=None, axis=None).scale(type="log", domain=[low / 3, high * 6])
    y = alt.Y("who:N", title=None, sort=None).axis(**{**AXIS, "labelLimit": 200})
    color = alt.condition(alt.datum.who == REPRISE, alt.value(COLORS[REPRISE]), alt.value(COLORS[FLINK_CEP]))
    return _bars(alt.Chart(frame).encode(x=x, y=y), color, low / 3).properties(
        width=190, height=110, title=alt.TitleParams(name, anchor="start", fontSize=12)
    )


def _bars(chart: Any, color: Any, begin: float) -> Any:
    """Where they begin has to be said: a logarithmic scale has no zero, and bars that begin there are not drawn."""
    label = chart.encode(text="label:N").mark_text(align="left", dx=4, fontSize=11, color="#333")
    return alt.layer(chart.encode(x2=alt.datum(begin), color=color).mark_bar(), label)


def _colors() -> Any:
    return alt.Color("who:N", legend=None).scale(domain=list(COLORS), range=list(COLORS.values()))


def _title(text: str, subtitle: list[str]) -> Any:
    return alt.TitleParams(
        text, subtitle=subtitle, anchor="start", fontSize=16, subtitleFontSize=12, subtitleColor="#444", offset=16
    )


def _dressed(chart: Any, title: Any) -> Any:
    whole = chart.properties(title=title, background="white", padding=16)
    return whole.configure(font="Helvetica, Arial, sans-serif").configure_view(stroke=None)


if __name__ == "__main__":
    main()
