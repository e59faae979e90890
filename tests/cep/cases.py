"""Random queries and streams, and how to hand them to the engine."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from spark_jobs.cep.matcher import TIMESTAMP
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.windows import Window
from tests.cep.oracle import Case, Event

TYPES = {"key": pa.string(), "letters": pa.string()}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(["none", "count", "time"]))
    return Case(
        steps="".join(draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4))),
        kind=kind,
        size=0 if kind == "none" else draw(st.integers(1, 9)),
        slide=0 if kind == "none" else draw(st.integers(1, 7)),
        within=draw(st.sampled_from([0, 0, 1, 3, 6, 12])),
        to_next_row=draw(st.booleans()),
    )


@st.composite
def streams(draw: st.DrawFn, max_events: int = 24) -> list[Event]:
    letters = st.sampled_from(["a", "b", "c", "a", "b", "c", "ab", "bc", "ac", "abc", "-", "-"])
    rows = draw(st.lists(st.tuples(letters, st.sampled_from("xy"), st.integers(0, 3)), max_size=max_events))
    events, ts = [], 0
    for sn, (letter, key, gap) in enumerate(rows, 1):
        ts += gap
        events.append(Event(sn, ts, key, letter))
    return events


def operator_of(case: Case) -> Operator:
    return Operator(
        name="op",
        pattern=parse_pattern(" -> ".join(case.steps.upper())),
        define={letter.upper(): f"letters LIKE '%{letter}%'" for letter in set(case.steps)},
        types=TYPES,
        partition_by="key",
        window=Window(case.kind, case.size, case.slide),
        within=case.within,
        to_next_row=case.to_next_row,
    )


def table_of(events: list[Event]) -> pa.Table:
    return pa.table({
        "sn": pa.array([e.sn for e in events], pa.int64()),
        "stream_ts": pa.array([e.ts for e in events], TIMESTAMP),
        "key": pa.array([e.key for e in events], pa.string()).dictionary_encode(),
        "letters": pa.array([e.letters for e in events], pa.string()).dictionary_encode(),
    })


def numbered(table: pa.Table) -> list[tuple[int, int, int, tuple[int, ...]]]:
    rows = table.select(["x", "y", "ordinal", "sns"]).to_pylist()
    return [(row["x"], row["y"], row["ordinal"], tuple(row["sns"])) for row in rows]
