"""What Spark tasks do for operators over events in order of time: correct what late events change, then go on.

As with other tasks: small payloads, their own I/O, files that no table names, and no harm if one is run twice.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.laps import Laps
from spark_jobs.cep.matcher import Known, Replay, match_shard
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, in_order, marks
from spark_jobs.lake.outputs import output_name, read_rows
from spark_jobs.lake.scan import buckets, of_shard, read_events
from spark_jobs.ordering.names import numbers_in
from spark_jobs.ordering.packed import packed, unpacked
from spark_jobs.ordering.ranks import RANKED
from spark_jobs.ordering.revisions import RETRACT, Revision, net, revision, within
from spark_jobs.ordering.states import Corrected, State, base_of, corrected, first_window, forward
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.recovery.policy import Since, policy_of
from spark_jobs.recovery.sets import stored_numbers, union
from spark_jobs.streams import as_part, in_log, in_time, stored_columns_of, traced
from spark_jobs.tasks import pipeline_of, reach_phase, read_arrow, write_arrow, write_complex_events


def order_task(payload: dict[str, Any]) -> dict[str, Any]:
    """One shard of one batch: what is to be retracted and asserted goes to scratch files; the driver gets facts and states."""
    pipeline = pipeline_of(payload["pipeline"])
    operator = pipeline.built[payload["operator"]]
    states = unpacked(base64.b64decode(payload["states"]))
    done = (_as_it_came if payload["in_order"] else _in_time)(payload, pipeline, operator, states)
    states = _still_needed(done.states, payload["horizon"])
    laps = done.laps
    matches = in_order(pa.concat_tables(done.parts, promote_options="permissive")) if done.parts else None
    laps("sequence")
    if matches is not None:
        write_arrow(payload["out"], matches)
    if done.retract is not None and done.retract.num_rows:
        write_arrow(f"{payload['out']}-retract", done.retract)
    reach_phase(payload, "match.written")
    laps("write")
    return {
        "out": payload["out"] if matches is not None else None,
        "shard": payload["shard"],
        "shards": payload["shards"],
        "matches": matches.num_rows if matches is not None else 0,
        "retracted": done.retract.num_rows if done.retract is not None else 0,
        "marks": marks(matches) if matches is not None else [],
        "states": base64.b64encode(packed(states)).decode(),
        "needed": base64.b64encode(stored_numbers(union([np.sort(state.needed) for state in states]))).decode(),
        "first_upto": states[0].upto,
        "replayed": done.again,
        "read": done.read,
        "seconds": laps.seconds,
    }


class _Done(NamedTuple):
    """What a batch has brought a shard."""

    parts: list[pa.Table]  # matches to be asserted
    states: tuple[State, ...]
    read: int  # new events
    laps: Laps
    retract: pa.Table | None = None
    again: int = 0  # events that were matched again


def _as_it_came(payload: dict[str, Any], pipeline: Pipeline, operator: Operator, states: Sequence[State]) -> _Done:
    """Nothing was ever late, so the order of the log is that of time, and SNs are places: one look at what is new."""
    (entry,), state = payload["inputs"], states[-1]
    after, end = entry["after"], entry["end"]
    laps = Laps()
    events = read_events(
        entry["files"],
        pipeline.source.schema,
        operator.columns,
        np.sort(state.needed),
        after,
        end,
        in_sn_order=operator.partition_by != "key",
    )
    if payload["filter_keys"]:
        events = of_shard(events, str(operator.partition_by), payload["shard"], payload["shards"])
    reach_phase(payload, "match.read")
    laps("scan")
    known = Known(after, end, state.upto, payload["upto"], first_window(operator, state))
    found = match_shard(operator, events, known, replay=Replay(state.context, state.floors), lap=laps)
    context = np.setdiff1d(found.context_sn, found.held_sn) if found.context_sn.size else found.context_sn
    needed = union([found.held_sn, context])
    following = State(payload["upto"], end, needed, needed, context, found.floors)
    new = int64s(events["stream_ts"])[int64s(events["sn"]) > after]
    # A batch may end between two events of the same time: a state that knows only the first is nothing to go back to.
    first = int(new.min()) if new.size else payload["upto"]
    older = tuple(state for state in states if state.upto < first)
    laps("kernel")
    return _Done([found.matches], (*older, following), new.size, laps)


def _in_time(payload: dict[str, Any], pipeline: Pipeline, operator: Operator, states: tuple[State, ...]) -> _Done:
    """Go back to where late events change something, and forward again; then on, keeping states on the way."""
    names = [entry["name"] for entry in payload["inputs"]]
    laps = Laps()
    events, late = _events(payload, pipeline, operator, states)
    reach_phase(payload, "match.read")
    laps("scan")
    parts: list[pa.Table] = []
    retract: pa.Table | None = None
    again = 0
    if late.size:
        done = corrected(operator, states, events, late, to_the_end=payload["full"])
        done = done._replace(matches=traced(done.matches, events, None, names))
        change = _revised(payload, pipeline, operator, done, int(late[0]))
        states, again, retract = done.states, done.again, change.retract
        parts.append(change.assert_)
    for cut in _cuts(payload, events, states[-1].upto):
        found, state = forward(operator, states[-1], events, cut)
        parts.append(traced(found, events, None, names))
        states = (*states, state)
    read = int((int64s(events["stream_ts"]) > payload["before"]).sum())
    laps("kernel")
    return _Done(parts, states, read, laps, retract, again)


def _events(
    payload: dict[str, Any], pipeline: Pipeline, operator: Operator, states: Sequence[State]
) -> tuple[pa.Table, Int64s]:
    """What the state gone back to needs and everything after it, in order of time; and the times at which that has changed."""
    base = next(state for state in states if state.upto == payload["base"])
    parts = [_read(payload, index, pipeline, operator, base) for index in range(len(payload["inputs"]))]
    events = pa.concat_tables([part.events for part in parts], promote_options="permissive").unify_dictionaries()
    if payload["filter_keys"]:
        events = of_shard(events, str(operator.partition_by), payload["shard"], payload["shards"])
    late = np.concatenate([*(part.late for part in parts), np.array(payload["gone"], np.int64)])
    return in_time(events.combine_chunks()), np.unique(late)


class _Part(NamedTuple):
    """What is read of one input."""

    events: pa.Table
    late: Int64s  # the times of those that came with this batch and happened before what was published


def _read(payload: dict[str, Any], index: int, pipeline: Pipeline, operator: Operator, base: State) -> _Part:
    entry, count = payload["inputs"][index], len(payload["inputs"])
    rows = _rows(entry, pipeline, operator, numbers_in(base.needed, index, count))
    ts, numbers = int64s(rows["ts" if "sn" in rows.column_names else "decided_ts"]), int64s(rows.column(0))
    wanted = ((ts > base.upto) & (ts <= payload["upto"])) | np.isin(numbers, numbers_in(base.needed, index, count))
    if entry["left_out"]:
        wanted &= ~np.isin(numbers, entry["left_out"])
    rows, ts, numbers = rows.filter(pa.array(wanted)), ts[wanted], numbers[wanted]
    alone = [entry["name"] for entry in payload["inputs"]] == [EVENT_LOG]
    events = in_log(rows) if alone else as_part(entry["name"], rows, pipeline, operator, index, count)
    return _Part(events, ts[(numbers > entry["after"]) & (ts <= payload["before"])])


def _rows(entry: dict[str, Any], pipeline: Pipeline, operator: Operator, needed: Int64s) -> pa.Table:
    """Of an input what is needed, and what came after its floor; complex events that were taken back are none."""
    read, end = entry["floor"], entry["end"]
    if entry["name"] == EVENT_LOG:
        columns = list(dict.fromkeys(["ts", *(name for name in operator.columns if name in pipeline.source.schema.names)]))
        return read_events(entry["files"], pipeline.source.schema, columns, needed, read, end, in_sn_order=False)
    schema = pipeline.output_schema
    columns = list(dict.fromkeys([*stored_columns_of(entry["name"], schema, operator), *RANKED]))
    return net(read_events(entry["files"], schema, columns, needed, read, end, in_sn_order=False, number="ordinal"))


def _cuts(payload: dict[str, Any], events: pa.Table, upto: int) -> list[int]:
    """Up to which times to go, one after the other: where a state is worth keeping, and the end."""
    ts = int64s(events["stream_ts"])
    new = ts[ts > max(upto, payload["horizon"])]
    places = policy_of(payload["policy"]).places(new > payload["final"], Since())
    cuts = sorted({int(new[place]) - 1 for place in places if place} | {payload["upto"]})
    return [cut for cut in cuts if cut > upto]


def _still_needed(states: Sequence[State], horizon: int) -> tuple[State, ...]:
    """All that a late event could go back to, and always an older one."""
    return tuple(states[max(0, base_of(states, horizon + 1)) :])


def _revised(payload: dict[str, Any], pipeline: Pipeline, operator: Operator, done: Corrected, late_from: int) -> Revision:
    """What has to be retracted and asserted where late events were put in."""
    rows = read_rows(payload["published"], pipeline.output_schema, payload["first_ordinal"], payload["last_ordinal"])
    standing = _of_shard(payload, pipeline, operator, net(rows))
    standing = standing.filter(pa.array(within(standing["decided_ts"], done.stretches)))
    if payload["full"]:
        after = pc.greater_equal(standing["decided_ts"].cast(pa.int64()), late_from)
        return Revision(standing.filter(after), done.matches.filter(pc.greater_equal(done.matches["_at_ts"], late_from)))
    said = [*operator.measured.types, *(["inputs"] if len(payload["inputs"]) > 1 else [])]
    return revision(standing, done.matches, said)


def _of_shard(payload: dict[str, Any], pipeline: Pipeline, operator: Operator, rows: pa.Table) -> pa.Table:
    """Of what was published, the complex events of this shard's keys."""
    if payload["shards"] == 1 or operator.partition_by is None:
        return rows
    if payload["filter_keys"]:
        return of_shard(rows, "key", payload["shard"], payload["shards"])
    keys = rows["key"].cast(pa.string()).combine_chunks()
    place = buckets(keys, pipeline.source.buckets) % payload["shards"] if len(keys) else np.empty(0, np.int64)
    return rows.filter(pa.array(place == payload["shard"]))


def retract_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Write the rows that take back what was published, in the order of the shards."""
    schema, laps = pipeline_of(payload["pipeline"]).output_schema, Laps()
    rows = pa.concat_tables([read_arrow(path) for path in payload["files"]], promote_options="permissive")
    first, count = payload["seed"][1], rows.num_rows
    columns = {
        **{name: rows[name] for name in rows.column_names},
        "of": rows["ordinal"],
        "ordinal": pa.array(first + np.arange(count)),
        "revision": pa.repeat(RETRACT, count),
        "batch": pa.repeat(pa.scalar(payload["batch"], pa.int64()), count),
    }
    name = output_name(first, first + count - 1, payload["batch"], payload["attempt"], payload["index"])
    laps("sequence")
    path = write_complex_events(f"{payload['folder']}/{name}", pa.table(columns), schema)
    laps("write")
    seed = Seed(payload["seed"][0], first + count)
    return {"rows": count, "retracted": count, "seed": seed, "name": Path(path).name, "seconds": laps.seconds}
