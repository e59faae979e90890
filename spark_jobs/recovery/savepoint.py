"""Savepoints: <SN_seed, SN_trim, v_skip> per shard, and the residual they leave to be replayed (seed 000).

The step from one savepoint to the next is a pure function of the events: no clock, no attempt number and no
layout enters it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap64

from spark_jobs.cep.arrays import NOT_HELD, Int64s
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed
from spark_jobs.errors import SavepointMissing

# The first byte of a stored set of SNs. 1: a portable 64-bit Roaring bitmap follows.
SET_FORMAT = 1
EMPTY_SET = bytes([SET_FORMAT]) + BitMap64().serialize()


@dataclass(frozen=True)
class ShardSavepoint:
    """What one shard will not ask for again: everything up to `trim_sn`, and `skip` above it.

    Of what is left, `context` is not matched again: PREV looks at those rows from the others.
    """

    shard: int
    trim_sn: int
    skip: bytes
    context: bytes = EMPTY_SET

    @property
    def skipped(self) -> BitMap64:
        return _set(self.shard, self.skip)

    @property
    def only_context(self) -> BitMap64:
        return _set(self.shard, self.context)

    def needed(self, end_sn: int) -> BitMap64:
        kept = BitMap64()
        kept.add_range(self.trim_sn + 1, end_sn + 1)
        return kept - self.skipped


@dataclass(frozen=True)
class Savepoint:
    """Where an operator stands after a batch: all it needs to go on, besides the events of the residual."""

    operator: str
    batch: int
    seed: Seed
    seed_y: int
    start_sn: int
    end_sn: int
    watermark: int
    shards: tuple[ShardSavepoint, ...]

    @property
    def bytes(self) -> int:
        return sum(len(shard.skip) + len(shard.context) for shard in self.shards)

    def residual(self) -> Int64s:
        """The SNs a recovery has to replay, in order: above SN_trim, minus v_skip."""
        needed = BitMap64()
        for shard in self.shards:
            needed |= shard.needed(self.end_sn)
        return sns_of(needed)

    def context(self) -> Int64s:
        """Those of the residual that are there for others to look back at, and are not matched again."""
        only = BitMap64()
        for shard in self.shards:
            only |= shard.only_context
        return sns_of(only)


def fresh_savepoint(operator: Operator) -> Savepoint:
    """The empty savepoint a first start recovers from."""
    return Savepoint(operator.name, 0, Seed(), operator.window.first_window(), 0, 0, NOT_HELD, ())


def advance(
    operator: Operator, savepoint: Savepoint, seed: Seed, shards: Sequence[ShardSavepoint], end_sn: int, watermark: int
) -> Savepoint:
    """The next savepoint: the batch ended at `end_sn` and `watermark`, and the numbers after it begin at `seed`."""
    return Savepoint(
        operator=operator.name,
        batch=savepoint.batch + 1,
        seed=seed,
        seed_y=operator.window.first_open(end_sn, watermark),
        start_sn=savepoint.end_sn,
        end_sn=end_sn,
        watermark=watermark,
        shards=tuple(shards),
    )


def shard_savepoint(shard: int, held: Int64s, context: Int64s, end_sn: int) -> ShardSavepoint:
    """What a shard that still needs `held` and `context` lets go."""
    only, needed = set_of(context), set_of(held)
    only -= needed
    needed |= only
    trim_sn = int(needed.min()) - 1 if needed else end_sn
    skipped = BitMap64()
    skipped.add_range(trim_sn + 1, end_sn + 1)
    skipped -= needed
    return ShardSavepoint(shard, trim_sn, _stored(skipped), _stored(only))


def set_of(sns: Int64s) -> BitMap64:
    # Through array, which pyroaring takes as a buffer; number by number takes four times as long.
    return BitMap64(array("Q", sns.tobytes()))


def sns_of(numbers: BitMap64) -> Int64s:
    return np.frombuffer(numbers.to_array(), np.int64)


def _set(shard: int, stored: bytes) -> BitMap64:
    if not stored or stored[0] != SET_FORMAT:
        found = stored[0] if stored else "nothing"
        raise SavepointMissing(
            f"a set of shard {shard} has format {found}, this version reads {SET_FORMAT}; "
            "the savepoint was written by another version of Reprise"
        )
    return BitMap64.deserialize(stored[1:])


def _stored(numbers: BitMap64) -> bytes:
    numbers.run_optimize()
    return bytes([SET_FORMAT]) + numbers.serialize()
