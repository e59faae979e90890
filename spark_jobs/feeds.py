"""What an operator reads: the event log, complex events of other operators, or several of them merged into one stream.

A feed says how far the next batch reaches, which files each shard has to look at, and when events happened that a shard may
not see. Cutting a batch elsewhere changes nothing: the merged order follows from instants alone (cep/order.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant, Instants, merge
from spark_jobs.errors import TrimmedEventNeeded
from spark_jobs.lake.outputs import Output, shard_files
from spark_jobs.lake.scan import EventLog
from spark_jobs.pipeline import EVENT_LOG
from spark_jobs.recovery.savepoint import Edge, Savepoint
from spark_jobs.tasks import packed, write_arrow


@dataclass(frozen=True)
class Reach:
    """How far a batch goes: the instant, the number of the last event in the operator's stream, and in each input."""

    at: Instant
    read: int
    ends: tuple[int, ...]
    numbers: tuple[Int64s, ...] = ()  # of several inputs: the places of their new events in the merged stream
    instants: Instants | None = field(default=None, repr=False)  # of the new events, where they are not the log's
    speculative: int = 0  # new events that are matched before their time, where events are put in order


class Feed(Protocol):
    """The inputs of one operator, as they are now."""

    def edges(self, at: Instant) -> list[Edge]:
        """The inputs, each read up to an instant."""

    def next(self, savepoint: Savepoint, batch_events: int) -> Reach | None:
        """The batch after a savepoint; None if there is nothing new."""

    def until(self, savepoint: Savepoint, at: Instant) -> Reach:
        """All that lies between a savepoint and an instant."""

    def check(self, savepoint: Savepoint) -> None:
        """Refuse to go on from a savepoint that needs what was trimmed."""

    def inputs(self, savepoint: Savepoint, reach: Reach, shard: int, shards: int, scratch: str) -> list[dict[str, Any]]:
        """What a task has to read, input by input."""

    def instants(self, reach: Reach, numbers: Int64s) -> Instants:
        """When the events with these numbers of the operator's stream happened, which lie in the batch and are in order."""


@dataclass(frozen=True)
class LogFeed:
    """The event log alone: its SNs are the operator's numbers."""

    operator: Operator
    log: EventLog

    def edges(self, at: Instant) -> list[Edge]:
        return [Edge(EVENT_LOG, 0, at.sn)]

    def next(self, savepoint: Savepoint, batch_events: int) -> Reach | None:
        end = min(savepoint.read + batch_events, self.log.last_sn)
        return self._reach(end) if end > savepoint.read else None

    def until(self, savepoint: Savepoint, at: Instant) -> Reach:
        return Reach(at, at.sn, (at.sn,))

    def check(self, savepoint: Savepoint) -> None:
        _check_trimmed(savepoint, 0, self.log.trimmed_sn)

    def _reach(self, end: int) -> Reach:
        # Deadlines decide matches, so how far the batch reaches in time has to be known before any shard matches.
        return Reach(Instant(self.log.stream_ts_at(end), end), end, (end,))

    def inputs(self, savepoint: Savepoint, reach: Reach, shard: int, shards: int, scratch: str) -> list[dict[str, Any]]:
        key, end = self.operator.partition_by, 2 * reach.read - savepoint.read  # as much as now, as far as anybody knows
        files, coming = (self.log.shard_files(shard, shards, key, upto) for upto in (reach.read, end))
        ahead = {"files": [file for file in coming if file["last_sn"] > reach.read], "end": end}
        return [_input(EVENT_LOG, files, savepoint, 0, reach, None) | {"ahead": ahead}]

    def instants(self, reach: Reach, numbers: Int64s) -> Instants:
        return Instants(self.log.stream_times(numbers), numbers)


@dataclass(frozen=True)
class GraphFeed:
    """Complex events of other operators, and the log where it is among the inputs."""

    operator: Operator
    log: EventLog
    outputs: Mapping[str, Output]  # by input; the log has none
    names: tuple[str, ...]

    def edges(self, at: Instant) -> list[Edge]:
        ends = [self.outputs[name].upto(at) if name in self.outputs else at.sn for name in self.names]
        return [Edge(name, 0, end) for name, end in zip(self.names, ends, strict=True)]

    def next(self, savepoint: Savepoint, batch_events: int) -> Reach | None:
        at = self._known(savepoint, batch_events)
        if at <= savepoint.at:
            return None
        reach = self.until(savepoint, at)
        if reach.read - savepoint.read > batch_events:
            return self.until(savepoint, self._cut(reach, batch_events, at))
        return reach

    def _known(self, savepoint: Savepoint, batch_events: int) -> Instant:
        """How far all inputs are known. Of the log, a batch takes no more than its share."""
        at = min(output.committed.at for output in self.outputs.values())
        if EVENT_LOG not in self.names:
            return at
        end = min(at.sn, self.log.last_sn, savepoint.at.sn + batch_events)
        return Instant(self.log.stream_ts_at(end), end) if end else Instant()

    def _cut(self, reach: Reach, batch_events: int, at: Instant) -> Instant:
        """The instant of the last event that still fits, or of the next one that a row of the log has brought about."""
        assert reach.instants is not None
        rows = np.flatnonzero(reach.instants.sn[batch_events - 1 :])
        if not rows.size:
            return at
        last = batch_events - 1 + rows[0]
        return Instant(int(reach.instants.ts[last]), int(reach.instants.sn[last]))

    def until(self, savepoint: Savepoint, at: Instant) -> Reach:
        parts = [self._instants(edge, at) for edge in savepoint.edges]
        ends = tuple(edge.end + part.ts.size for edge, part in zip(savepoint.edges, parts, strict=True))
        numbers, instants = merge(parts, savepoint.read + 1)
        return Reach(at, savepoint.read + instants.ts.size, ends, tuple(numbers) if len(parts) > 1 else (), instants)

    def _instants(self, edge: Edge, at: Instant) -> Instants:
        if edge.name in self.outputs:
            found = self.outputs[edge.name].instants(edge.end)
            count = found.upto(at)
            return Instants(found.ts[:count], found.sn[:count])
        sns = np.arange(edge.end + 1, at.sn + 1)
        return Instants(self.log.stream_times(sns), sns)

    def check(self, savepoint: Savepoint) -> None:
        for index, edge in enumerate(savepoint.edges):
            trimmed = self.outputs[edge.name].trimmed_sn if edge.name in self.outputs else self.log.trimmed_sn
            _check_trimmed(savepoint, index, trimmed)

    def inputs(self, savepoint: Savepoint, reach: Reach, shard: int, shards: int, scratch: str) -> list[dict[str, Any]]:
        payloads = []
        for index, edge in enumerate(savepoint.edges):
            if edge.name in self.outputs:
                needed = savepoint.residuals[index].numbers
                files = shard_files(self.outputs[edge.name].files, edge.end, reach.ends[index], needed)
            else:
                files = self.log.shard_files(0, 1, None, reach.ends[index])
            places = None
            if reach.numbers:
                places = f"{scratch}-places-{index}"
                if not Path(places).exists():
                    write_arrow(places, pa.table({"place": reach.numbers[index]}))
            payloads.append(_input(edge.name, files, savepoint, index, reach, places))
        return payloads

    def instants(self, reach: Reach, numbers: Int64s) -> Instants:
        assert reach.instants is not None
        rows = numbers - (reach.read - reach.instants.ts.size) - 1
        return Instants(reach.instants.ts[rows], reach.instants.sn[rows])


def feed_of(operator: Operator, inputs: Sequence[str], log: EventLog, outputs: Mapping[str, Output]) -> Feed:
    if list(inputs) == [EVENT_LOG]:
        return LogFeed(operator, log)
    return GraphFeed(operator, log, {name: outputs[name] for name in inputs if name != EVENT_LOG}, tuple(inputs))


def _input(
    name: str, files: list[dict[str, Any]], savepoint: Savepoint, index: int, reach: Reach, places: str | None
) -> dict[str, Any]:
    residual = savepoint.residuals[index]
    return {
        "name": name,
        "files": files,
        "residual": packed(residual.numbers),
        "residual_places": packed(residual.places) if places else None,
        "after": savepoint.edges[index].end,
        "end": reach.ends[index],
        "places": places,
    }


def _check_trimmed(savepoint: Savepoint, index: int, trimmed_sn: int) -> None:
    edge = savepoint.edges[index]
    if edge.end >= trimmed_sn:
        return
    raise TrimmedEventNeeded(
        f"operator '{savepoint.operator}' (version {savepoint.version}) has read '{edge.name}' up to {edge.end:,} and needs "
        f"what follows, but '{edge.name}' was trimmed up to {trimmed_sn:,}. Nothing was changed. Deliver what was trimmed into "
        f"a new lake, or let the operator begin later: 'reprise upgrade PIPELINE --lake LAKE --from SN'"
    )
