"""What a Spark task of detection does: a small JSON payload in, its own I/O, a small JSON result out.

A task knows nothing of attempts or commits: it reads committed files, writes scratch files, and may be run twice.
"""

from __future__ import annotations

import base64
import time
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from spark_jobs.cep.matcher import ShardMatches, match_shard
from spark_jobs.lake.scan import of_shard, read_events
from spark_jobs.pipeline import Pipeline


def match_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Match one shard of one batch; matches and held events go to a scratch file each."""
    pipeline = pipeline_of(payload["pipeline"])
    operator = pipeline.built[payload["operator"]]
    started = time.perf_counter()
    residual = np.array(BitMap64.deserialize(base64.b64decode(payload["residual"])), dtype=np.int64)
    events = read_events(
        payload["files"],
        pipeline.source.schema,
        operator.columns,
        residual,
        payload["after_sn"],
        payload["end_sn"],
        in_sn_order=operator.partition_by != "key",
    )
    if operator.partition_by not in (None, "key") and payload["shards"] > 1:
        events = of_shard(events, str(operator.partition_by), payload["shard"], payload["shards"])
    scanned = time.perf_counter()
    found = match_shard(
        operator,
        events,
        first_window=payload["first_window"],
        after_sn=payload["after_sn"],
        end_sn=payload["end_sn"],
    )
    matched = time.perf_counter()
    write_arrow(f"{payload['out']}.matches", found.matches)
    write_arrow(f"{payload['out']}.held", pa.table({"sn": found.held_sn, "until": found.held_until}))
    return {
        "out": payload["out"],
        "events": events.num_rows,
        "watermark": found.watermark,
        "seconds": {"scan": scanned - started, "kernel": matched - scanned, "write": time.perf_counter() - matched},
    }


def read_shard(result: dict[str, Any]) -> ShardMatches:
    """What `match_task` left behind."""
    held = read_arrow(f"{result['out']}.held")
    return ShardMatches(
        read_arrow(f"{result['out']}.matches"), np.asarray(held["sn"]), np.asarray(held["until"]), result["watermark"]
    )


def write_arrow(path: str, table: pa.Table) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read_arrow(path: str) -> pa.Table:
    with pa.OSFile(path, "rb") as source:
        return pa.ipc.open_file(source).read_all()


@lru_cache(maxsize=8)  # a worker meets the same pipeline batch after batch
def pipeline_of(text: str) -> Pipeline:
    return Pipeline.model_validate_json(text)
