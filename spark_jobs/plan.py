"""The plan of a recovery, before it: what will be replayed, operator by operator and shard by shard, and what it will take.

It is made from the same savepoints by the same code that the recovery uses, so plan and fact agree in every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from spark_jobs.cep.arrays import Int64s
from spark_jobs.errors import TrimmedEventNeeded
from spark_jobs.feeds import Feed
from spark_jobs.graph import Graph
from spark_jobs.lake.history import read_history
from spark_jobs.lake.outputs import committed_of, output_of
from spark_jobs.lake.scan import EventLog, any_between, row_group_ranges
from spark_jobs.pipeline import EVENT_LOG
from spark_jobs.recovery.checkpoint import folder_of
from spark_jobs.recovery.resume import Gap, found_of
from spark_jobs.recovery.savepoint import Savepoint
from spark_jobs.versions import Version

# Until this lake has a history of its own: what two cores of a small machine do, and what a batch costs at least.
EVENTS_PER_SECOND = 2_000_000.0
SECONDS_PER_BATCH = 0.3


@dataclass(frozen=True)
class ShardPlan:
    """What one shard of one operator will replay."""

    operator: str
    version: int
    shard: str
    batch: int  # of the savepoint; 0: there is none, it begins
    seed: str
    trim_sn: str  # of several inputs: of each
    replay: int
    processed: int
    savepoint_bytes: int


@dataclass(frozen=True)
class OperatorPlan:
    """What one operator will replay, all its shards together."""

    operator: str
    shards: tuple[ShardPlan, ...]
    replay: int
    processed: int
    read_bytes: int  # of checkpoints, or of Parquet row groups that hold something to replay
    seconds: float
    note: str


def recovery_plan(graph: Graph, versions: dict[str, Version]) -> list[OperatorPlan]:
    pace = _pace(read_history(graph.lake))
    return [_operator_plan(graph, versions[name], *pace) for name in graph.pipeline.order]


def _operator_plan(graph: Graph, version: Version, rate: float, fixed: float) -> OperatorPlan:
    handle = graph.open_outputs()
    committed = committed_of(handle, version.operator, version.number)
    if committed is None:
        return OperatorPlan(version.operator, (), 0, 0, 0, fixed, "begins: nothing was published yet")
    feed = graph.feed(version)
    found = found_of(
        graph.savepoints(), version.operator, version.number, committed, lambda: graph.beginning(version, feed), 1, by_key=False
    )
    if isinstance(found, Gap):
        return _plan_of_gap(version, feed, found, rate, fixed)
    savepoint = found.savepoint
    bytes_ = _bytes_to_read(graph, version, savepoint)
    seconds = fixed + savepoint.replayed / rate
    shards = tuple(_shard_plans(savepoint))
    return OperatorPlan(version.operator, shards, savepoint.replayed, savepoint.read, bytes_, seconds, "")


def _plan_of_gap(version: Version, feed: Feed, gap: Gap, rate: float, fixed: float) -> OperatorPlan:
    """The savepoint has to be made first: from an older one, from the beginning, or not at all. All shards count as damaged
    where one is, as only the log could tell which of its events are whose."""
    base, at = gap.base, gap.committed.at
    try:
        feed.check(base)
    except TrimmedEventNeeded:
        note = f"{'; '.join(gap.problems)}: cannot be made anew, what that takes was trimmed"
        return OperatorPlan(version.operator, (), 0, at.sn, 0, 0.0, note)
    read = feed.until(base, at).read
    replay = base.replayed + read - base.read
    begin = f"batch {base.batch}" if base.batch else "the beginning"
    note = f"{'; '.join(gap.problems)}: first made anew from {begin}" if gap.problems else gap.said[0]
    return OperatorPlan(version.operator, (), replay, read, 0, fixed + replay / rate, note)


def _shard_plans(savepoint: Savepoint) -> list[ShardPlan]:
    return [
        ShardPlan(
            operator=savepoint.operator,
            version=savepoint.version,
            shard=f"{shard.shard} of {shard.shards}",
            batch=savepoint.batch,
            seed=f"{savepoint.seed.x}:{savepoint.seed_y}",
            trim_sn=", ".join(
                f"{kept.trim_sn:,}" if len(savepoint.edges) == 1 else f"{edge.name} {kept.trim_sn:,}"
                for kept, edge in zip(shard.kept, savepoint.edges, strict=True)
            ),
            replay=sum(kept.needed(edge.end).size for kept, edge in zip(shard.kept, savepoint.edges, strict=True)),
            processed=savepoint.read,
            savepoint_bytes=shard.bytes,
        )
        for shard in savepoint.shards
    ]


def _bytes_to_read(graph: Graph, version: Version, savepoint: Savepoint) -> int:
    """The checkpoints, where there are some; otherwise the compressed columns of all row groups that hold an event to be
    replayed."""
    folder = folder_of(graph.lake, version.operator, version.number)
    kept = [folder / shard.checkpoint for shard in savepoint.shards if shard.checkpoint]
    if len(kept) == len(savepoint.shards) and all(file.exists() for file in kept):
        return sum(file.stat().st_size for file in kept)
    operator = graph.pipeline.built[version.operator]
    total = 0
    for edge, residual in zip(savepoint.edges, savepoint.residuals, strict=True):
        if edge.name == EVENT_LOG:
            log: EventLog = graph.open_log()
            total += _row_group_bytes([file.path for file in log.files], "sn", operator.columns, residual.numbers)
        else:
            output = output_of(graph.lake, graph.open_outputs(), edge.name, version.inputs[edge.name])
            total += _row_group_bytes([f.path for f in output.files], "ordinal", operator.columns, residual.numbers)
    return total


def _row_group_bytes(paths: Sequence[str], number: str, columns: Sequence[str], residual: Int64s) -> int:
    wanted = {number, "stream_ts", "decided_ts", "decided_sn", *columns}
    total = 0
    for path in paths:
        groups = [g for g, (low, high) in enumerate(row_group_ranges(path, number)) if any_between(residual, low, high)]
        if groups:
            metadata = pq.read_metadata(path)
            for group in groups:
                row_group = metadata.row_group(group)
                chunks = (row_group.column(k) for k in range(row_group.num_columns))
                total += sum(c.total_compressed_size for c in chunks if c.path_in_schema in wanted)
    return total


def _pace(history: list[dict[str, Any]]) -> tuple[float, float]:
    """Events per second, and seconds per batch, from what this lake's batches took: the median, and the quickest of them."""
    started: dict[tuple[Any, ...], dict[str, Any]] = {}
    rates, quick = [], []
    for row in history:
        place = (row["attempt"], row["operator"], row["batch"])
        if row["name"] == "detect.started":
            started[place] = row
        elif row["name"] == "detect.finished" and place in started:
            begin = started.pop(place)
            seconds = (row["at"] - begin["at"]).total_seconds()
            detail = begin["detail"]
            events = detail.get("carried", 0) + detail.get("end_sn", 0) - detail.get("start_sn", 0)
            if seconds > 0:
                rates.append(events / seconds)
                quick.append(seconds)
    if not rates:
        return EVENTS_PER_SECOND, SECONDS_PER_BATCH
    return max(float(np.median(rates)), 1.0), min(quick)
