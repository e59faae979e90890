"""Both sides of a comparison where events are matched in order of time: what stands of the output, a run over the sorted log.

What stands is what was asserted and not retracted. The reference takes the log as it is, leaves out what came too late to
count, sorts it by time and matches it in one go; how long detection waited, what it guessed and took back is nothing to it.
Both are numbered alike, so that they can be compared like any other output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from schemas import complex_events
from spark_jobs.cep.arrays import NOT_HELD, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.compiled import compiled
from spark_jobs.cep.matcher import Known
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed, in_order, plain, stamp
from spark_jobs.cep.sequencer import Slice as Everything
from spark_jobs.corrections import Corrections, corrections_of
from spark_jobs.errors import RepriseError
from spark_jobs.lake.outputs import Output, committed_of, end_app, output_of, read_rows
from spark_jobs.lake.scan import EventLog, read_events
from spark_jobs.lake.seal import broken
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Ordering, Pipeline
from spark_jobs.streams import INPUT, NUMBER, as_part, in_time
from spark_jobs.verify.comparison import Piece
from spark_jobs.verify.reference import reference_run
from spark_jobs.verify.verdict import Finding, Verdict
from spark_jobs.versions import Version

REVISIONS = "every retraction takes back one assertion"
NUMBERS = "every row has the next number"
_NOTHING: Int64s = np.empty(0, np.int64)
_NEVER = 2**61


@dataclass(frozen=True)
class Inputs:
    """What an operator version had read at its last commit, as it stands in the lake."""

    names: Sequence[str]  # in the order that decides ties
    log: EventLog
    corrections: Corrections
    outputs: Mapping[str, Output]  # of the operators among them
    ends: Mapping[str, int]  # up to which ordinal those were read
    after_sn: int  # the version begins after this event of the log
    at: Instant


def inputs_of(pipeline: Pipeline, lake: Lake, log: EventLog, table: DeltaTable, version: Version) -> Inputs:
    outputs = {name: output_of(lake, table, name, number) for name, number in version.operators.items()}
    ends = {name: table.transaction_version(end_app(version.operator, version.number, name)) or 0 for name in outputs}
    committed = committed_of(table, version.operator, version.number)
    at, corrected = committed.at if committed else Instant(), corrections_of(lake, log.handle)
    return Inputs(pipeline.operators[version.operator].inputs, log, corrected, outputs, ends, version.after_sn, at)


def expected(pipeline: Pipeline, operator: Operator, inputs: Inputs, folder: Path) -> list[Piece]:
    """The reference: all that counts of every input, sorted by time, matched at once.

    Operators are taken as they stand; what they published has a verdict of its own.
    """
    count = len(inputs.names)
    parts = [_part(pipeline, operator, inputs, index) for index in range(count)]
    events = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
    events = in_time(events.combine_chunks())
    names, size = int64s(events["sn"]), events.num_rows
    numbered = events.set_column(events.schema.get_field_index("sn"), "sn", pa.array(np.arange(1, size + 1)))
    if count == 1:  # what is found is led back to the numbers of the one input
        numbered = numbered.append_column(NUMBER, pa.array(names)).append_column(INPUT, pa.array(np.zeros(size, np.int32)))
    known = Known(0, size, NOT_HELD, inputs.at.ts, operator.window.first_window())
    matches, _ = reference_run(operator, numbered, known, inputs=inputs.names)
    if operator.window.kind in ("keyed", "opened"):
        y = pa.array(names[int64s(matches["y"]) - 1])
        matches = matches.set_column(matches.schema.get_field_index("y"), "y", y)
    found, _ = stamp(Seed(), 0, [in_order(matches)], Everything())
    return _piece(found.drop_columns(["inputs"]) if count == 1 else found, folder / "expected.parquet")


def _part(pipeline: Pipeline, operator: Operator, inputs: Inputs, index: int) -> pa.Table:
    name = inputs.names[index]
    rows = _log_rows(pipeline, operator, inputs) if name == EVENT_LOG else _standing_rows(pipeline, inputs, name)
    return as_part(name, rows, pipeline, operator, index, len(inputs.names))


def _log_rows(pipeline: Pipeline, operator: Operator, inputs: Inputs) -> pa.Table:
    """The events of the log that count: not those that came too late, nor those that were corrected in time."""
    log, after_sn, at = inputs.log, inputs.after_sn, inputs.at
    if log.trimmed_sn > after_sn:
        raise RepriseError(f"the log was trimmed up to {log.trimmed_sn:,}; there is nothing left to compare with")
    columns = [name for name in operator.columns if name in log.schema.names]
    events, late, _ = _log_events(pipeline, list(dict.fromkeys(["ts", "source", *columns])), inputs)
    sn, corrected = int64s(events["sn"]), inputs.corrections.between(after_sn, at.sn)
    replaced = corrected.replaces[~np.isin(corrected.sn, sn[late])]
    return events.filter(pa.array(~late & ~np.isin(sn, replaced) & (int64s(events["ts"]) <= at.ts)))


def _log_events(pipeline: Pipeline, names: list[str], inputs: Inputs) -> tuple[pa.Table, Any, int]:
    """The events of the log that were read, which of them came too late to count, and up to when K-slack lets them go."""
    assert pipeline.ordering is not None
    files = [asdict(file) for file in inputs.log.files]
    after_sn, end = inputs.after_sn, inputs.at.sn
    events = read_events(files, inputs.log.schema, names, _NOTHING, after_sn, end, in_sn_order=True)
    ts, sn = int64s(events["ts"]), int64s(events["sn"])
    corrected = inputs.corrections.between(after_sn, end)
    since = np.full(sn.size, _NEVER)
    since[np.searchsorted(sn, corrected.sn)] = corrected.since_ts
    late, final = left_out(ts, events["source"], pipeline.ordering, since)
    return events, late, final


def _standing_rows(pipeline: Pipeline, inputs: Inputs, name: str) -> pa.Table:
    """What an operator had published and not taken back when it was read."""
    stands = _standing(pipeline, inputs, name)
    return stands.filter(pc.less_equal(stands["decided_ts"].cast(pa.int64()), inputs.at.ts))


def _standing(pipeline: Pipeline, inputs: Inputs, name: str) -> pa.Table:
    files = [asdict(file) for file in inputs.outputs[name].files]
    return _net(read_rows(files, pipeline.output_schema, 1, inputs.ends[name]))[0]


def unread(pipeline: Pipeline, inputs: Inputs) -> int:
    """What was there to be matched, and was not: an operator may have read its inputs to their end and still be behind in time.

    Of the log, all that K-slack lets go; of operators, all up to where the slowest of them has come.
    """
    missing = sum(max(0, output.last - inputs.ends[name]) for name, output in inputs.outputs.items())
    limit = min((output.committed.at.ts for output in inputs.outputs.values()), default=_NEVER)
    if EVENT_LOG not in inputs.names:
        return missing + sum(_between(_published(pipeline, inputs, name), inputs.at.ts, limit) for name in inputs.outputs)
    events, _, final = _log_events(pipeline, ["ts", "source"], inputs)
    if final == -_NEVER:  # a clock that never ticked has let nothing go
        return missing + int(events.num_rows)
    return missing + _between(int64s(events["ts"]), inputs.at.ts, min(limit, final))


def _between(ts: Int64s, after: int, upto: int) -> int:
    return int(((ts > after) & (ts <= upto)).sum())


def _published(pipeline: Pipeline, inputs: Inputs, name: str) -> Int64s:
    """When what an operator has published, and not taken back, was decided."""
    return int64s(_standing(pipeline, inputs, name)["decided_ts"])


def standing(output: Output, schema: pa.Schema, folder: Path) -> tuple[list[Piece], list[Finding]]:
    """What was asserted and not retracted, and whether numbers and retractions make sense."""
    files = [asdict(file) for file in output.files]
    for file in output.files:
        if problem := broken(file.path):
            raise RepriseError(f"{file.path}: {problem}")
    rows = read_rows(files, schema, -_NEVER, _NEVER).sort_by("ordinal")
    stands, back = _net(rows)
    gone = [f.name for f in complex_events.REVISIONS]
    if pc.all(pc.is_null(stands["inputs"])).as_py():  # one input only
        gone.append("inputs")
    return _piece(stands.drop_columns(gone), folder / "standing.parquet"), [_judged(rows, back), _numbered(rows, output.last)]


def _net(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What stands, and the retractions."""
    back = rows.filter(pc.equal(rows["revision"], "retract"))
    taken_back = pc.is_in(rows["ordinal"], value_set=back["of"].combine_chunks())
    return rows.filter(pc.and_(pc.equal(rows["revision"], "assert"), pc.invert(taken_back))), back


def left_out(ts: Int64s, source: pa.ChunkedArray, ordering: Ordering, since: Int64s) -> tuple[Any, int]:
    """Which events came so late that what they could change was settled, and up to when everything is: K-slack, one event
    after the other.

    `since`: of those that correct others, the earliest time they change; of all others, never.
    """
    k = ordering.beginning().slack
    by_time = ordering.clock is None
    ticks = np.zeros(ts.size, np.bool_) if by_time else np.asarray(pc.equal(source.cast(pa.string()), ordering.clock))
    found = np.zeros(ts.size, np.bool_)
    # Copies also where they are read-only.
    final = _left_out(ts.copy(), ticks.copy(), since.copy(), by_time, k.k, k.measured, ordering.revise_us, found)
    return found, int(final)


@compiled
def _left_out(ts: Any, ticks: Any, since: Any, by_time: bool, k: int, measured: bool, revise: int, out: Any) -> int:
    clk, final, earliest = -_NEVER, -_NEVER, _NEVER
    for i in range(ts.size):
        if final > -_NEVER and min(ts[i], since[i]) <= final - revise:
            out[i] = True
        if since[i] < _NEVER:  # a correction says nothing about delays
            continue
        others = earliest < _NEVER
        earliest = min(earliest, ts[i])
        if (by_time and ts[i] >= clk) or ticks[i]:
            clk = max(clk, ts[i])
            k = max(k, clk - earliest)
            measured = measured or others
            if measured:
                final = max(final, clk - k)
            earliest = _NEVER
    return final


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


def _numbered(rows: pa.Table, last: int) -> Finding:
    """Ordinals from one on without a gap, and neither batches nor, of what is asserted, x going back along them."""
    ordinal, batch = int64s(rows["ordinal"]), int64s(rows["batch"])
    x = int64s(rows.filter(pc.equal(rows["revision"], "assert"))["x"])
    size = max(ordinal.size, last)
    wrong = int((np.resize(ordinal, size) != np.arange(1, size + 1)).sum()) if ordinal.size else last
    back = int((np.diff(batch) < 0).sum() + (np.diff(x) < 0).sum())
    note = f"{ordinal.size:,} rows, the commit says {last:,}"
    return Finding(NUMBERS, Verdict.INVALID if wrong or back else Verdict.VALID, wrong + back, note=note)


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
