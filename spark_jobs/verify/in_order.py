"""Both sides of a comparison where events are matched in order of time: what stands of the output, a run over the sorted log.

What stands is what was asserted and not retracted. The reference takes the log as it is, leaves out what came too late to
count, sorts it by time and matches it in one go; how long detection waited, what it guessed and took back is nothing to it.
Both are numbered alike, so that they can be compared like any other output.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas import complex_events
from spark_jobs.cep.arrays import NOT_HELD, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.compiled import compiled
from spark_jobs.cep.matcher import Known
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import LOG_SN, Seed, in_order, plain, stamp
from spark_jobs.cep.sequencer import Slice as Everything
from spark_jobs.errors import RepriseError
from spark_jobs.lake.outputs import Output, read_rows
from spark_jobs.lake.scan import EventLog, read_events
from spark_jobs.lake.seal import broken
from spark_jobs.pipeline import EVENT_LOG, Ordering, Pipeline
from spark_jobs.streams import INPUT, NUMBER
from spark_jobs.verify.comparison import Piece
from spark_jobs.verify.reference import reference_run
from spark_jobs.verify.verdict import Finding, Verdict

REVISIONS = "every retraction takes back one assertion"
_NOTHING: Int64s = np.empty(0, np.int64)
_NEVER = 2**61


def expected(pipeline: Pipeline, operator: Operator, log: EventLog, after_sn: int, at: Instant, folder: Path) -> list[Piece]:
    """The reference: all that counts of the log after an SN, sorted by time, matched at once."""
    if log.trimmed_sn > after_sn:
        raise RepriseError(f"the log was trimmed up to {log.trimmed_sn:,}; there is nothing left to compare with")
    assert pipeline.ordering is not None
    names = list(dict.fromkeys(["ts", "source", *operator.columns]))
    files = [asdict(file) for file in log.files]
    events = read_events(files, log.schema, names, _NOTHING, after_sn, at.sn, in_sn_order=True)
    ts = int64s(events["ts"])
    counts = ~left_out(ts, events["source"], pipeline.ordering) & (ts <= at.ts)
    rows = np.flatnonzero(counts)
    rows = rows[np.argsort(ts[rows], kind="stable")]
    events = events.take(pa.array(rows))
    own = events["sn"]
    places = {
        "sn": pa.array(np.arange(1, rows.size + 1)),
        "stream_ts": events["ts"],
        LOG_SN: own,
        NUMBER: own,
        INPUT: pa.array(np.zeros(rows.size, np.int32)),
    }
    stream = pa.table({**{name: events[name] for name in events.column_names}, **places})
    known = Known(0, rows.size, NOT_HELD, at.ts, operator.window.first_window())
    matches, _ = reference_run(operator, stream, known, inputs=[EVENT_LOG])
    if operator.window.kind in ("keyed", "opened"):
        y = pa.array(np.asarray(own)[int64s(matches["y"]) - 1])
        matches = matches.set_column(matches.schema.get_field_index("y"), "y", y)
    found, _ = stamp(Seed(), 0, [in_order(matches)], Everything())
    return _piece(found.drop_columns(["inputs"]), folder / "expected.parquet")


def standing(output: Output, schema: pa.Schema, folder: Path) -> tuple[list[Piece], Finding]:
    """What was asserted and not retracted, and whether retractions make sense."""
    files = [asdict(file) for file in output.files]
    for file in output.files:
        if problem := broken(file.path):
            raise RepriseError(f"{file.path}: {problem}")
    rows = read_rows(files, schema, 1, output.committed.seed.ordinal - 1).sort_by("ordinal")
    back = rows.filter(pc.equal(rows["revision"], "retract"))
    finding = _judged(rows, back)
    taken_back = pc.is_in(rows["ordinal"], value_set=back["of"].combine_chunks())
    stands = rows.filter(pc.and_(pc.equal(rows["revision"], "assert"), pc.invert(taken_back)))
    return _piece(stands.drop_columns([f.name for f in complex_events.REVISIONS]), folder / "standing.parquet"), finding


def left_out(ts: Int64s, source: pa.ChunkedArray, ordering: Ordering) -> Any:
    """Which events came so late that what they could change was settled: K-slack, one event after the other."""
    k = ordering.beginning().slack
    by_time = ordering.clock is None
    ticks = np.zeros(ts.size, np.bool_) if by_time else np.asarray(pc.equal(source.cast(pa.string()), ordering.clock))
    found = np.zeros(ts.size, np.bool_)
    _left_out(ts.copy(), ticks.copy(), by_time, k.k, k.measured, ordering.revise_us, found)  # also where they are read-only
    return found


@compiled
def _left_out(ts: Any, ticks: Any, by_time: bool, k: int, measured: bool, revise: int, out: Any) -> None:
    clk, final, earliest = -_NEVER, -_NEVER, _NEVER
    for i in range(ts.size):
        if final > -_NEVER and ts[i] <= final - revise:
            out[i] = True
        others = earliest < _NEVER
        earliest = min(earliest, ts[i])
        if (by_time and ts[i] >= clk) or ticks[i]:
            clk = max(clk, ts[i])
            k = max(k, clk - earliest)
            measured = measured or others
            if measured:
                final = max(final, clk - k)
            earliest = _NEVER


def _judged(rows: pa.Table, back: pa.Table) -> Finding:
    """Each retraction names something that was asserted before it, and nothing is taken back twice."""
    asserted = rows.filter(pc.equal(rows["revision"], "assert"))["ordinal"].combine_chunks()
    of, ordinal = back["of"].combine_chunks(), back["ordinal"].combine_chunks()
    known = np.asarray(pc.fill_null(pc.and_(pc.is_in(of, value_set=asserted), pc.less(of, ordinal)), False))
    numbers = np.asarray(pc.fill_null(of, 0))
    again = np.ones(numbers.size, bool)
    again[np.unique(numbers, return_index=True)[1]] = False
    wrong = back.filter(pa.array(~known | again)).select(["ordinal", "of"])
    if wrong.num_rows:
        return Finding(REVISIONS, Verdict.INVALID, wrong.num_rows, wrong.slice(0, 10).to_pylist())
    return Finding(REVISIONS, Verdict.VALID, note=f"{back.num_rows:,} retractions")


def _piece(rows: pa.Table, path: Path) -> list[Piece]:
    """The rows in the one order that both sides have, numbered alike, in a file."""
    at = (int64s(rows["decided_ts"]), int64s(rows["decided_sn"]))
    sns = rows["sns"].combine_chunks() if isinstance(rows["sns"], pa.ChunkedArray) else rows["sns"]
    order = np.lexsort((_ranks(sns), int64s(rows["y"]), at[1], at[0]))
    rows = rows.take(pa.array(order)) if rows.num_rows else rows
    new = np.ones(rows.num_rows, bool)
    new[1:] = (np.diff(at[0][order]) != 0) | (np.diff(at[1][order]) != 0)
    numbers = {
        "x": pa.array(np.cumsum(new)),
        "ordinal": pa.array(np.arange(1, rows.num_rows + 1)),
        "batch": pa.array(np.ones(rows.num_rows, np.int64)),
    }
    table = pa.table({**{name: rows[name] for name in rows.column_names}, **numbers})
    table = table.cast(pa.schema([pa.field(f.name, plain(f.type)) for f in table.schema]))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, write_page_checksum=True)
    return [Piece(str(path), rows.num_rows)] if rows.num_rows else []


def _ranks(lists: Any) -> Any:
    """Numbers that order lists of numbers somehow, the same on both sides."""
    return np.asarray(pc.rank(pc.binary_join(lists.cast(pa.list_(pa.string())), ","), tiebreaker="min"))
