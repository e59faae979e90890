"""The engine behind the interfaces of the oracle, the vectors and the comparison with Flink."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep import sequencer
from spark_jobs.cep.arrays import NOT_HELD, Found
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.matcher import (
    TIMESTAMP,
    Boundaries,
    Known,
    Replay,
    closing_windows,
    match_complete,
    match_shard,
)
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant
from spark_jobs.cep.output import all_rows
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.windows import Window
from spark_jobs.cep.words import skip_policy
from spark_jobs.errors import ExpressionError as Refused
from spark_jobs.recovery.savepoint import Savepoint, advance, fresh_savepoint, shard_savepoint
from tests.cep.oracle import Case, Event, definition
from tests.cep.vector import Vector

__all__ = ["Refused", "complex_events", "in_batches", "matches", "measures", "output", "run"]

TYPES = {
    "sn": pa.int64(),
    "ts": pa.int64(),
    "key": pa.string(),
    "letters": pa.string(),
    "v": pa.int64(),
    "name": pa.string(),
}
Numbered = list[tuple[int, int, int, tuple[int, ...], tuple[str, ...], bool]]


def operator_of(case: Case, measures: dict[str, str] | None = None) -> Operator:
    pattern = parse_pattern(case.pattern)
    operator = Operator(
        name="op",
        pattern=pattern,
        define={symbol: definition(case, symbol) for symbol in pattern.symbols},
        types=TYPES,
        partition_by="key",
        window=Window(case.kind, case.size, case.slide, case.open_when, case.close_when, case.by_rows),
        within=case.within,
        within_steps=case.within_steps,
        after_match=skip_policy(case.after),
        all_runs=case.all_runs,
        timed_out=case.timed_out and bool(case.within or case.within_steps),
        subsets={name: tuple(members) for name, members in case.subsets.items()},
        measures=measures,
        complete=case.complete,
    )
    operator.check()
    return operator


def table_of(events: list[Event], times: tuple[int, ...] = ()) -> pa.Table:
    """`times` are the time stamps as written, where they are not the stream time."""
    return pa.table({
        "sn": pa.array([e.sn for e in events], pa.int64()),
        "stream_ts": pa.array([e.ts for e in events], TIMESTAMP),
        "ts": pa.array(times or [e.ts for e in events], pa.int64()),
        "key": pa.array([e.key for e in events], pa.string()).dictionary_encode(),
        "letters": pa.array([e.letters for e in events], pa.string()).dictionary_encode(),
        "v": pa.array([e.v for e in events], pa.int64()),
        "name": pa.array([e.name for e in events], pa.string()).dictionary_encode(),
    })


def run(vector: Vector) -> Numbered:
    operator_of(vector.case, vector.measures)
    return in_batches(vector.case, vector.events, [], 1, vector.times)


def measures(vector: Vector) -> list[dict[str, Any]]:
    """Per match its measures, in the order of their numbers."""
    operator = operator_of(vector.case, vector.measures)
    events = table_of(vector.events, vector.times)
    if vector.case.complete:
        done = match_complete(operator, events)
        sn = int64s(done.events["sn"])
        order = np.lexsort((sn[done.found.first], done.found.window, done.found.at_sn, done.found.at_ts))
        found = pa.table(operator.measured.evaluate(done.events, done.offsets, done.found, all_rows=False))
    else:
        watermark = max([NOT_HELD, *(e.ts for e in vector.events)])
        known = Known(0, len(vector.events), NOT_HELD, watermark, operator.window.first_window())
        matches = match_shard(operator, events, known).matches
        order = np.lexsort([np.asarray(matches[name]) for name in ("_first_sn", "y", "_at_sn", "_at_ts")])
        found = matches.select(list(vector.measures))
    return list(found.take(pa.array(order)).to_pylist())


def output(vector: Vector) -> list[dict[str, Any]]:
    """ALL ROWS PER MATCH."""
    operator = operator_of(vector.case, vector.measures)
    done = match_complete(operator, table_of(vector.events, vector.times))
    rows, values = all_rows(operator, done, empty="omit" not in vector.rows, unmatched="unmatched" in vector.rows)
    sns = int64s(done.events["sn"])[rows].tolist()
    found = pa.table({name: values[name] for name in vector.measures}).to_pylist() if vector.measures else [{}] * len(sns)
    return [{"sn": sn, **row} for sn, row in zip(sns, found, strict=True)]


def matches(case: dict[str, Any]) -> list[list[tuple[str, int]]]:
    """A complete input of the comparison with Flink: its matches as (symbol, SN)."""
    events = [Event(**event) for event in case["stream"]]
    names = ("pattern", "define", "within", "all_runs", "complete")
    query = Case(after=case.get("after_match", "past last row"), **{name: case[name] for name in names if name in case})
    return [list(zip(symbols, sns, strict=True)) for _, _, _, sns, symbols, _ in complex_events(query, events)]


def complex_events(case: Case, events: list[Event]) -> Numbered:
    """All of them, in one go."""
    return in_batches(case, events, [], 1)


def in_batches(
    case: Case, log: list[Event], cuts: list[int], shards: int, times: tuple[int, ...] = (), *, skip: bool = True
) -> Numbered:
    """The log cut into batches, each of which sees its residual and its new events only."""
    operator = operator_of(case)
    if case.complete:
        done = match_complete(operator, table_of(log, times))
        return number(_rows(operator, done.events, done.found))
    savepoint = fresh_savepoint(operator)
    found: Numbered = []
    for end_sn in [*sorted({c for c in cuts if 0 < c < len(log)}), len(log)]:
        complex_events_, savepoint = step(operator, savepoint, log, end_sn, shards, times, skip=skip)
        found += numbered(complex_events_)
    return found


def step(
    operator: Operator,
    savepoint: Savepoint,
    log: list[Event],
    end_sn: int,
    shards: int,
    times: tuple[int, ...] = (),
    *,
    skip: bool = True,
) -> tuple[pa.Table, Savepoint]:
    """One micro-batch in memory: only the residual and the new events are handed over."""
    (residual,) = savepoint.residuals
    replayed = set(residual.numbers.tolist())
    events = [e for e in log if e.sn in replayed or savepoint.read < e.sn <= end_sn]
    watermark = max([e.ts for e in log if e.sn <= end_sn], default=NOT_HELD)
    known = Known(savepoint.read, end_sn, savepoint.at.ts, watermark, savepoint.seed_y)
    replay = Replay(residual.context, savepoint.floors, skip)
    first, closing = closing_windows(operator, known)
    boundaries = Boundaries(first, np.array([log[sn - 1].ts for sn in closing.tolist()], np.int64))
    reports = []
    for shard in range(shards):
        mine = [e for e in events if "xy".index(e.key) % shards == shard] if shards > 1 else events
        table = table_of(mine, tuple(times[e.sn - 1] for e in mine) if times else ())
        reports.append(match_shard(operator, table, known, replay=replay, boundaries=boundaries))
    found, seed = sequencer.number(operator, savepoint.seed, savepoint.batch + 1, [report.matches for report in reports])
    kept = [shard_savepoint(shard, shards, report, end_sn, skip=skip) for shard, report in enumerate(reports)]
    return found, advance(operator, savepoint, seed, kept, Instant(watermark, end_sn), end_sn, [end_sn])


def numbered(complex_events_: pa.Table) -> Numbered:
    rows = complex_events_.select(["x", "y", "ordinal", "sns", "symbols", "timed_out"]).to_pylist()
    return [(r["x"], r["y"], r["ordinal"], tuple(r["sns"]), tuple(r["symbols"]), r["timed_out"]) for r in rows]


def _rows(operator: Operator, events: pa.Table, found: Found) -> list[Any]:
    sn = int64s(events["sn"])
    rows = []
    for m in range(found.window.size):
        part = slice(found.offsets[m], found.offsets[m + 1])
        bound = tuple(sn[found.rows[part]].tolist())
        symbols = tuple(operator.pattern.symbols[s] for s in found.symbols[part])
        order = (int(found.at_ts[m]), int(found.at_sn[m]), int(found.window[m]), int(sn[found.first[m]]), m)
        rows.append((*order, bound, symbols, bool(found.timed_out[m])))
    return sorted(rows)


def number(matches: list[Any]) -> Numbered:
    """x and ordinal as docs/LANGUAGE.md, "Numbers", says; the sequencer knows no empty matches."""
    found: Numbered = []
    x, producer = 0, None
    for at_ts, at_sn, y, _, _, sns, symbols, timed_out in matches:
        if (at_ts, at_sn) != producer:
            x, producer = x + 1, (at_ts, at_sn)
        found.append((x, y, len(found) + 1, sns, symbols, timed_out))
    return found
