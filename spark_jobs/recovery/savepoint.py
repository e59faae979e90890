"""Savepoints: <SN_seed, SN_trim, v_skip> per shard and input, and the residual they leave to be replayed (seed 000).

The step from one savepoint to the next is a pure function of the events: no clock, no attempt number and no
layout enters it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from spark_jobs.cep.arrays import NO_FLOORS, Floors, Int64s
from spark_jobs.cep.matcher import ShardMatches
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed
from spark_jobs.recovery.sets import (
    EMPTY,
    count_kept,
    read_columns,
    read_kept,
    read_numbers,
    stored_columns,
    stored_gaps,
    stored_numbers,
    union,
)

NO_NUMBERS: Int64s = np.empty(0, np.int64)


@dataclass(frozen=True)
class Kept:
    """What one shard will not ask one input for again: everything up to `trim_sn`, and `skip` above it.

    Numbers are the input's own: SNs of the log, ordinals of an operator. Of what is left, `context` is not matched again:
    PREV looks at those events from the others. Where an operator has several inputs, `places` are the numbers that the
    events left have in the merged stream, in the same order.
    """

    trim_sn: int
    skip: bytes
    context: bytes = EMPTY
    places: bytes = b""

    def needed(self, end_sn: int) -> Int64s:
        return read_kept(self.skip, self.trim_sn, end_sn)

    @property
    def bytes(self) -> int:
        return len(self.skip) + len(self.context) + len(self.places)


@dataclass(frozen=True)
class ShardSavepoint:
    """Where one of `shards` shards stands: what it keeps of each input, and from where on its open windows go on."""

    shard: int
    shards: int
    kept: tuple[Kept, ...]
    floors: bytes = b""
    states: bytes = b""  # of events in order of time: where late ones can go back to
    checkpoint: str = ""  # the file that holds the events needed again; the name says whether there is one, or only memory

    @property
    def bytes(self) -> int:
        return sum(kept.bytes for kept in self.kept) + len(self.floors) + len(self.states)


@dataclass(frozen=True)
class Edge:
    """One input of an operator, and how far it was read: its events (start, end], in its own numbers."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Residual:
    """The events of one input that have to be replayed, in order, and their places in the operator's stream."""

    numbers: Int64s
    places: Int64s
    context: Int64s  # of the places: not matched again


@dataclass(frozen=True)
class Savepoint:
    """Where an operator stands after a batch: all it needs to go on, besides the events of the residual."""

    operator: str
    version: int
    batch: int
    seed: Seed
    seed_y: int
    at: Instant  # how far the log was known
    read: int  # events of all inputs so far, which is the number of the last one in the operator's stream
    edges: tuple[Edge, ...]
    shards: tuple[ShardSavepoint, ...]
    ordering: str = ""  # of events in order of time: clock, slack, speculation

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def residuals(self) -> tuple[Residual, ...]:
        """What a recovery has to replay, input by input: above SN_trim, minus v_skip."""
        return tuple(self._residual(edge) for edge in range(len(self.edges)))

    def of_shard(self, shard: int) -> Savepoint:
        """What one shard alone needs again."""
        return replace(self, shards=tuple(mine for mine in self.shards if mine.shard == shard))

    @cached_property
    def replayed(self) -> int:
        """How many events that are; counted, not listed, because of events in order of time whole stretches are kept."""
        edges = enumerate(self.edges)
        return sum(count_kept([(s.kept[at].skip, s.kept[at].trim_sn) for s in self.shards], edge.end) for at, edge in edges)

    @cached_property
    def floors(self) -> Floors:
        parts = [Floors(*read_columns(shard.floors)) for shard in self.shards if shard.floors]
        return Floors(*(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else NO_FLOORS

    def _residual(self, edge: int) -> Residual:
        parts, end = [shard.kept[edge] for shard in self.shards], self.edges[edge].end
        needed = [kept.needed(end) for kept in parts]
        numbers = union(needed)
        context = union([read_numbers(kept.context) for kept in parts])
        if len(self.edges) == 1:
            return Residual(numbers, numbers, context)
        # Both rise together, so that the k-th event kept has the k-th place.
        places = np.empty(numbers.size, np.int64)
        for kept, mine in zip(parts, needed, strict=True):
            places[np.searchsorted(numbers, mine)] = read_numbers(kept.places)
        return Residual(numbers, places, places[np.searchsorted(numbers, context)])


def fresh_savepoint(operator: Operator, version: int = 1, edges: Sequence[Edge] = (Edge("event_log", 0, 0),)) -> Savepoint:
    """The empty savepoint a first start recovers from."""
    return starting_at(operator, version, Instant(), edges)


def starting_at(operator: Operator, version: int, at: Instant, edges: Sequence[Edge]) -> Savepoint:
    """A savepoint that knows nothing of what lies before `at`; the edges say which of their events do."""
    read = sum(edge.end for edge in edges)
    seed_y = operator.window.first_open(read, at.ts) if read else operator.window.first_window()
    return Savepoint(operator.name, version, 0, Seed(), seed_y, at, read, tuple(edges), ())


def advance(
    operator: Operator,
    savepoint: Savepoint,
    seed: Seed,
    shards: Sequence[ShardSavepoint],
    at: Instant,
    read: int,
    ends: Sequence[int],
    ordering: str = "",
) -> Savepoint:
    """The next savepoint: the batch ended at instant `at`, each input at its end, and the numbers after it begin at `seed`."""
    return Savepoint(
        operator=savepoint.operator,
        version=savepoint.version,
        batch=savepoint.batch + 1,
        seed=seed,
        seed_y=operator.window.first_open(read, at.ts),
        at=at,
        read=read,
        edges=tuple(Edge(edge.name, edge.end, end) for edge, end in zip(savepoint.edges, ends, strict=True)),
        shards=tuple(shards),
        ordering=ordering,
    )


@dataclass(frozen=True)
class Origin:
    """Where the events of one input that a shard has read lie in the operator's stream, in order."""

    end: int  # the last number of the input that the batch reaches
    numbers: Int64s
    places: Int64s


def shard_savepoint(
    shard: int, shards: int, found: ShardMatches, end_sn: int, *, skip: bool = True, origins: Sequence[Origin] = ()
) -> ShardSavepoint:
    """What a shard that still needs what it found lets go. Several inputs need their `origins`, and are always skipped in."""
    floors = stored_columns(list(found.floors)) if found.floors.sn.size else b""
    context = np.setdiff1d(found.context_sn, found.held_sn) if found.context_sn.size else NO_NUMBERS
    if not origins:
        return ShardSavepoint(shard, shards, (_kept(found.held_sn, context, end_sn, skip=skip),), floors)
    kept = tuple(_kept_of(origin, found.held_sn, context) for origin in origins)
    return ShardSavepoint(shard, shards, kept, floors)


def _kept_of(origin: Origin, held: Int64s, context: Int64s) -> Kept:
    is_held, is_context = (np.isin(origin.places, places) for places in (held, context))
    kept = _kept(origin.numbers[is_held], origin.numbers[is_context], origin.end, skip=True)
    left = kept.needed(origin.end)
    places = origin.places[np.searchsorted(origin.numbers, left)]
    return Kept(kept.trim_sn, kept.skip, kept.context, stored_numbers(places))


def _kept(held: Int64s, context: Int64s, end_sn: int, *, skip: bool) -> Kept:
    needed = union([held, context]) if context.size else held
    trim_sn = int(needed[0]) - 1 if needed.size else end_sn
    if not skip:  # the base method: everything above SN_trim
        return Kept(trim_sn, EMPTY)
    return Kept(trim_sn, stored_gaps(needed, trim_sn, end_sn), stored_numbers(context))
