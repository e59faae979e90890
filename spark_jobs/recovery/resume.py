"""Where to go on from: the savepoint of the last commit, or, where that is damaged, one made anew from an older one.

A savepoint is made anew by replaying, shard by shard, from the newest older savepoint that is sound up to the place that
the commit names. What was published in between is found again and not published again. Nothing is guessed: if no savepoint
is left, the operator is replayed from its beginning; if what that needs was trimmed, the error says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spark_jobs.lake.outputs import Committed
from spark_jobs.recovery.savepoint import Savepoint, ShardSavepoint
from spark_jobs.recovery.store import Found, Savepoints, Stored


@dataclass(frozen=True)
class Resumption:
    """The savepoint to go on from, and what had to be done to have it."""

    savepoint: Savepoint
    said: tuple[str, ...] = ()

    @property
    def remade(self) -> bool:
        return bool(self.said)


@dataclass(frozen=True)
class Damage:
    """What is lost of the savepoint of a commit, and from where it can be made anew."""

    committed: Committed
    base: Savepoint
    sound: tuple[ShardSavepoint, ...]  # of the damaged savepoint itself
    shards: int
    missing: tuple[int, ...]
    problems: tuple[str, ...]


class Remake(Protocol):
    def __call__(self, damage: Damage) -> Savepoint:
        """Replay the missing shards from the base to the commit."""


class Beginning(Protocol):
    def __call__(self) -> Savepoint:
        """The savepoint of somebody who has read nothing yet."""


def resume(
    kept: Savepoints,
    operator: str,
    version: int,
    committed: Committed | None,
    beginning: Beginning,
    shards: int,
    by_key: bool,
    remake: Remake,
) -> Resumption:
    if committed is None:
        return Resumption(beginning())
    found = kept.find(operator, version, committed.batch)
    stored = found.of(committed)
    if stored is not None and stored.whole:
        return Resumption(stored.savepoint)
    damage = assess(kept, operator, version, committed, found, stored, beginning, shards, by_key)
    return Resumption(remake(damage), said=damage_report(damage))


def assess(
    kept: Savepoints,
    operator: str,
    version: int,
    committed: Committed,
    found: Found,
    stored: Stored | None,
    beginning: Beginning,
    shards: int,
    by_key: bool,
) -> Damage:
    """`by_key`: shards are sets of keys, so that what is left of the others can be used."""
    if stored is None or not by_key:
        stored = None
    missing = stored.missing if stored else tuple(range(shards))
    base = _base(kept.find(operator, version).before(committed), stored, missing) or beginning()
    problems = tuple(found.problems) or (f"batch {committed.batch}: the table 'savepoints' has no row for it",)
    sound = stored.savepoint.shards if stored else ()
    return Damage(committed, base, sound, stored.shards if stored else shards, missing, problems)


def damage_report(damage: Damage) -> tuple[str, ...]:
    """What happened, and what was done about it, for the person who watches."""
    shards = f"shard {', '.join(map(str, damage.missing))} of {damage.shards}" if damage.sound else "all shards"
    begin = f"the savepoint of batch {damage.base.batch}" if damage.base.batch else "the beginning, as no savepoint is left"
    batch = damage.committed.batch
    return (*damage.problems, f"the savepoint of batch {batch} is damaged; {shards} replayed from {begin}, output unchanged")


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
