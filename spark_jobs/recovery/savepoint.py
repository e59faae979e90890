"""Savepoints: <SN_seed, SN_trim, v_skip> per shard, and the residual they leave to be replayed (seed 000).

The step from one savepoint to the next is a pure function of the events: no clock, no attempt number and no
layout enters it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from spark_jobs.cep.arrays import NOT_HELD, Int64s
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, number
from spark_jobs.errors import SavepointMissing

if TYPE_CHECKING:  # the kernel is compiled code; reading a savepoint does not need it
    from spark_jobs.cep.matcher import ShardMatches

# The first byte of a stored v_skip. 1: a portable 64-bit Roaring bitmap follows.
SKIP_FORMAT = 1


@dataclass(frozen=True)
class ShardSavepoint:
    """What one shard will not ask for again: everything up to `trim_sn`, and `skip` above it."""

    shard: int
    trim_sn: int
    skip: bytes

    @property
    def skipped(self) -> BitMap64:
        if not self.skip or self.skip[0] != SKIP_FORMAT:
            found = self.skip[0] if self.skip else "nothing"
            raise SavepointMissing(
                f"the skip set of shard {self.shard} has format {found}, this version reads {SKIP_FORMAT}; "
                "the savepoint was written by another version of Reprise"
            )
        return BitMap64.deserialize(self.skip[1:])


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
        return sum(len(shard.skip) for shard in self.shards)

    def residual(self) -> Int64s:
        """The SNs a recovery has to replay, in order: above SN_trim, minus v_skip."""
        needed = BitMap64()
        for shard in self.shards:
            kept = BitMap64()
            kept.add_range(shard.trim_sn + 1, self.end_sn + 1)
            needed |= kept - shard.skipped
        return np.array(needed, dtype=np.int64)


def fresh_savepoint(operator: Operator) -> Savepoint:
    """The empty savepoint a first start recovers from."""
    return Savepoint(operator.name, 0, Seed(), operator.window.first_window(), 0, 0, NOT_HELD, ())


def advance(
    operator: Operator, savepoint: Savepoint, shards: Sequence[ShardMatches], end_sn: int
) -> tuple[pa.Table, Savepoint]:
    """Join what the shards found in the batch that ends at `end_sn`: complex events, and the next savepoint."""
    watermark = max([savepoint.watermark, *(shard.watermark for shard in shards)])
    batch = savepoint.batch + 1
    complex_events, seed = number(operator, savepoint.seed, batch, [shard.matches for shard in shards])
    return complex_events, Savepoint(
        operator=operator.name,
        batch=batch,
        seed=seed,
        seed_y=operator.window.first_open(end_sn, watermark),
        start_sn=savepoint.end_sn,
        end_sn=end_sn,
        watermark=watermark,
        shards=tuple(
            _shard_savepoint(index, shard.held_sn[shard.held_until > watermark], end_sn) for index, shard in enumerate(shards)
        ),
    )


def _shard_savepoint(shard: int, held: Int64s, end_sn: int) -> ShardSavepoint:
    trim_sn = int(held.min()) - 1 if held.size else end_sn
    skipped = BitMap64()
    skipped.add_range(trim_sn + 1, end_sn + 1)
    skipped -= BitMap64(held.tolist())
    skipped.run_optimize()
    return ShardSavepoint(shard, trim_sn, bytes([SKIP_FORMAT]) + skipped.serialize())
