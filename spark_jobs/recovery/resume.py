"""Where to go on from: the savepoint of the last commit, or one made anew from an older one where the batch has none.

A batch has no savepoint of its own if the policy did not want one, or if it is damaged. It is made anew by replaying, shard
by shard, from an older savepoint up to the place that the commit names: from the one that the commit says is the last, or
from the newest that is sound. What was published in between is found again and not published again. Nothing is guessed: if
no savepoint is left, the operator is replayed from its beginning; if what that needs was trimmed, the error says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spark_jobs.lake.outputs import Committed, Named
from spark_jobs.recovery.savepoint import Savepoint, ShardSavepoint
from spark_jobs.recovery.store import Found, Savepoints, Stored


@dataclass(frozen=True)
class Gap:
    """What lies between a savepoint that is there and a commit that has none of its own, or only some shards of it."""

    committed: Committed
    base: Savepoint
    sound: tuple[ShardSavepoint, ...]  # of the commit's own savepoint
    shards: int
    missing: tuple[int, ...]
    problems: tuple[str, ...]  # none: nothing is damaged, there was no reason to save

    @property
    def said(self) -> tuple[str, ...]:
        """What happened, and what is done about it, for the person who watches."""
        batch = self.committed.batch
        if not self.problems:
            last = f"last savepoint is of batch {self.base.batch}" if self.base.batch else "there is no savepoint yet"
            first = self.base.batch + 1
            return (f"{last}, replays {f'batches {first} to {batch}' if first < batch else f'batch {batch}'}",)
        shards = f"shard {', '.join(map(str, self.missing))} of {self.shards}" if self.sound else "all shards"
        begin = f"the savepoint of batch {self.base.batch}" if self.base.batch else "the beginning, as no savepoint is left"
        named = self.committed.savepoint
        lost = named.batch if named and self.base.batch < named.batch else batch
        return (*self.problems, f"the savepoint of batch {lost} is damaged; {shards} replayed from {begin}, output unchanged")


@dataclass(frozen=True)
class Resumption:
    """The savepoint to go on from, and what had to be done to have it."""

    savepoint: Savepoint
    name: Named | None = None  # None: it was made anew, and is not saved yet
    gap: Gap | None = None
    remade: Remade | None = None


@dataclass(frozen=True)
class Remade:
    """A savepoint made by closing a gap, and what that took."""

    savepoint: Savepoint
    read: tuple[int, ...]  # events replayed, by shard
    restored: int = 0  # of those, taken from checkpoints


class Beginning(Protocol):
    def __call__(self) -> Savepoint:
        """The savepoint of somebody who has read nothing yet."""


class Stood(Protocol):
    def __call__(self, found: Stored) -> bool:
        """May this savepoint be gone on from?"""


class Remake(Protocol):
    def __call__(self, gap: Gap) -> Remade:
        """Replay the missing shards from the base to the commit."""


def resume(
    kept: Savepoints,
    operator: str,
    version: int,
    committed: Committed | None,
    beginning: Beginning,
    shards: int,
    by_key: bool,
    remake: Remake,
    stood: Stood = lambda found: True,
) -> Resumption:
    if committed is None:
        return Resumption(beginning(), Named())
    found = found_of(kept, operator, version, committed, beginning, shards, by_key, stood)
    if isinstance(found, Stored):
        return Resumption(found.savepoint, Named(committed.batch, found.attempt))
    remade = remake(found)
    return Resumption(remade.savepoint, gap=found, remade=remade)


def found_of(
    kept: Savepoints,
    operator: str,
    version: int,
    committed: Committed,
    beginning: Beginning,
    shards: int,
    by_key: bool,
    stood: Stood = lambda found: True,
) -> Stored | Gap:
    """The savepoint of a commit's own batch, or what it takes to make it.

    `by_key`: shards are sets of keys, so that what is left of the others can be used.
    """
    found = kept.find(operator, version, committed.batch)
    own = found.of(committed)
    if own is not None and own.whole:
        return own
    batch, problems = committed.batch, found.problems
    if own is None and committed.savepoint is not None:
        last, base = _last(kept, operator, version, committed.savepoint, beginning)
        if base is not None:
            damage = tuple(problems) if base.batch else ()  # before anything was saved, the table is not there
            return Gap(committed, base, (), shards, tuple(range(shards)), damage)
        batch, problems = committed.savepoint.batch, [*problems, *last.problems]
    if not by_key:
        own = None
    missing = own.missing if own else tuple(range(shards))
    older = [found for found in kept.find(operator, version).before(committed) if stood(found)]
    base = _base(older, own, missing) or beginning()
    said = tuple(problems) or (f"batch {batch}: the table 'savepoints' has no row for it",)
    return Gap(committed, base, own.savepoint.shards if own else (), own.shards if own else shards, missing, said)


def _last(kept: Savepoints, operator: str, version: int, name: Named, beginning: Beginning) -> tuple[Found, Savepoint | None]:
    """The savepoint that a commit names, and what was found where it should be; None if it is damaged."""
    if not name.batch:
        return Found(), beginning()
    found = kept.find(operator, version, name.batch)
    stored = found.named(name)
    return found, stored.savepoint if stored else None


def _base(older: Sequence[Stored], damaged: Stored | None, missing: tuple[int, ...]) -> Savepoint | None:
    """The newest savepoint that knows what is missing: a whole one, or one with the same shards where those are sound."""
    for candidate in older:
        if candidate.whole:
            return candidate.savepoint
        same_layout = damaged is not None and candidate.shards == damaged.shards
        if same_layout and not set(missing) & set(candidate.missing):
            mine = tuple(shard for shard in candidate.savepoint.shards if shard.shard in missing)
            return replace(candidate.savepoint, shards=mine)
    return None
