"""Savepoints as rows of the `savepoints` table: one per shard, written before the batch is published."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from schemas import savepoints
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed
from spark_jobs.errors import SavepointMissing
from spark_jobs.lake.commit import Claim
from spark_jobs.lake.tables import Lake
from spark_jobs.recovery.savepoint import Savepoint, ShardSavepoint, fresh_savepoint


def save(lake: Lake, savepoint: Savepoint, attempt: int) -> None:
    """Write the savepoint of a batch that has not happened yet; without its commit it is a dead letter."""
    lake.append(
        "savepoints", pa.Table.from_pylist([_row(savepoint, shard, attempt) for shard in savepoint.shards], savepoints.SCHEMA)
    )


def load(lake: Lake, operator: Operator, claim: Claim) -> Savepoint:
    """The savepoint that the operator's last commit names; the empty one before the first."""
    if claim.step == 0:
        return fresh_savepoint(operator)
    where = (pc.field("operator") == operator.name) & (pc.field("batch") == claim.step) & (pc.field("attempt") == claim.attempt)
    rows = sorted(lake.read("savepoints", where=where).to_pylist(), key=lambda row: int(row["shard"]))
    if not rows:
        raise SavepointMissing(
            f"operator '{operator.name}' has published batch {claim.step} in attempt {claim.attempt}, but the table "
            f"'savepoints' has no row for it. The output up to there is right; going on from nothing would not be. "
            "Restore the savepoints table, or detect into a new lake."
        )
    first = rows[0]
    return Savepoint(
        operator=operator.name,
        batch=first["batch"],
        seed=Seed(first["seed_x"], first["seed_ordinal"]),
        seed_y=first["seed_y"],
        start_sn=first["start_sn"],
        end_sn=first["end_sn"],
        watermark=first["watermark"],
        shards=tuple(ShardSavepoint(row["shard"], row["trim_sn"], row["skip"], row["context"]) for row in rows),
    )


def _row(savepoint: Savepoint, shard: ShardSavepoint, attempt: int) -> dict[str, object]:
    return {
        "operator": savepoint.operator,
        "shard": shard.shard,
        "batch": savepoint.batch,
        "attempt": attempt,
        "seed_x": savepoint.seed.x,
        "seed_y": savepoint.seed_y,
        "seed_ordinal": savepoint.seed.ordinal,
        "trim_sn": shard.trim_sn,
        "skip": shard.skip,
        "context": shard.context,
        "start_sn": savepoint.start_sn,
        "end_sn": savepoint.end_sn,
        "watermark": savepoint.watermark,
        "bytes": len(shard.skip) + len(shard.context),
    }
