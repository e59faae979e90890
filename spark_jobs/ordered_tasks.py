"""What Spark tasks do for operators over events in order of time: correct what late events change, then go on.

As with other tasks: small payloads, their own I/O, files that no table names, and no harm if one is run twice.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, in_order, marks
from spark_jobs.lake.outputs import output_name, read_rows
from spark_jobs.lake.scan import buckets, of_shard, read_events
from spark_jobs.ordering.packed import packed, unpacked
from spark_jobs.ordering.revisions import RETRACT, Revision, net, revision, within
from spark_jobs.ordering.states import Corrected, State, base_of, corrected, forward, in_time
from spark_jobs.pipeline import Pipeline
from spark_jobs.recovery.policy import Since, policy_of
from spark_jobs.tasks import pipeline_of, reach_phase, read_arrow, write_arrow, write_complex_events


def order_task(payload: dict[str, Any]) -> dict[str, Any]:
    """One shard of one batch: what is to be retracted and asserted goes to scratch files; the driver gets facts and states."""
    pipeline = pipeline_of(payload["pipeline"])
    operator = pipeline.built[payload["operator"]]
    states = unpacked(base64.b64decode(payload["states"]))
    started = time.perf_counter()
    events = _events(payload, pipeline, operator, states)
    reach_phase(payload, "match.read")
    scanned = time.perf_counter()
    parts: list[pa.Table] = []
    retract: pa.Table | None = None
    again = 0
    late = _late(payload, events)
    if late.size:
        done = corrected(operator, states, events, late, to_the_end=payload["full"])
        change = _revised(payload, pipeline, operator, done, int(late[0]))
        states, again, retract = done.states, done.again, change.retract
        parts.append(change.assert_)
    cuts = _cuts(payload, events, states[-1].upto)
    saving = 0.0
    for cut in cuts:
        found, state = forward(operator, states[-1], events, cut)
        began = time.perf_counter()
        parts.append(found)
        states = (*states, state)
        saving += time.perf_counter() - began
    states = _still_needed(states, payload["horizon"])
    matched = time.perf_counter()
    matches = in_order(pa.concat_tables(parts, promote_options="permissive")) if parts else None
    if matches is not None:
        write_arrow(payload["out"], matches)
    if retract is not None and retract.num_rows:
        write_arrow(f"{payload['out']}-retract", retract)
    reach_phase(payload, "match.written")
    ts = int64s(events["stream_ts"])
    return {
        "out": payload["out"] if matches is not None else None,
        "shard": payload["shard"],
        "shards": payload["shards"],
        "matches": matches.num_rows if matches is not None else 0,
        "retracted": retract.num_rows if retract is not None else 0,
        "marks": marks(matches) if matches is not None else [],
        "states": base64.b64encode(packed(states)).decode(),
        "needed": np.unique(np.concatenate([state.needed for state in states])).tolist(),
        "first_upto": states[0].upto,
        "replayed": again,
        "late": int(late.size),
        "read": int((ts > payload["before"]).sum()),
        "cuts": len(cuts),
        "seconds": {"scan": scanned - started, "kernel": matched - scanned, "write": time.perf_counter() - matched},
    }


def _events(payload: dict[str, Any], pipeline: Pipeline, operator: Operator, states: Sequence[State]) -> pa.Table:
    """What the state gone back to needs, and everything after it, in order of time."""
    base = states[base_of(states, payload["back_to"])]
    names = list(dict.fromkeys(["ts", *operator.columns]))
    found = read_events(
        payload["files"],
        pipeline.source.schema,
        names,
        np.sort(base.needed),
        payload["floor"],
        payload["end"],
        in_sn_order=False,
    )
    if payload["filter_keys"]:
        found = of_shard(found, str(operator.partition_by), payload["shard"], payload["shards"])
    ts, sn = int64s(found["ts"]), int64s(found["sn"])
    wanted = ((ts > base.upto) & (ts <= payload["upto"])) | np.isin(sn, base.needed)
    if payload["left_out"]:
        wanted &= ~np.isin(sn, payload["left_out"])
    found = found.set_column(
        found.schema.get_field_index("stream_ts"), "stream_ts", found["ts"].cast(pa.timestamp("us", "UTC"))
    )
    return in_time(found.filter(pa.array(wanted)).unify_dictionaries().combine_chunks())


def _late(payload: dict[str, Any], events: pa.Table) -> Int64s:
    """The times of the events that came with this batch and happened before what was published."""
    ts, sn = int64s(events["stream_ts"]), int64s(events["sn"])
    late: Int64s = ts[(sn > payload["after"]) & (ts <= payload["before"])]
    return late


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
    return revision(standing, done.matches, list(operator.measured.types))


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
    schema = pipeline_of(payload["pipeline"]).output_schema
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
    path = write_complex_events(f"{payload['folder']}/{name}", pa.table(columns), schema)
    return {"rows": count, "seed": Seed(payload["seed"][0], first + count), "name": Path(path).name}
