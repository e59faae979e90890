"""What Spark tasks of detection do: a small JSON payload in, their own I/O, a small JSON result out.

A task knows nothing of attempts or commits: it reads committed files, writes files that no table names, and may be run twice.
"""

from __future__ import annotations

import base64
import time
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.matcher import Boundaries, Known, match_shard
from spark_jobs.cep.sequencer import Seed, Slice, in_order, marks, stamp
from spark_jobs.lake.scan import of_shard, read_events
from spark_jobs.pipeline import Pipeline
from spark_jobs.recovery.savepoint import set_of, shard_savepoint, sns_of


def match_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Match one shard of one batch. Its matches go to a scratch file, in their final order; the driver gets facts only."""
    pipeline = pipeline_of(payload["pipeline"])
    operator = pipeline.built[payload["operator"]]
    known = Known(*payload["known"])
    started = time.perf_counter()
    events = read_events(
        payload["files"],
        pipeline.source.schema,
        operator.columns,
        unpacked(payload["residual"]),
        known.after_sn,
        known.end_sn,
        in_sn_order=operator.partition_by != "key",
    )
    if operator.partition_by not in (None, "key") and payload["shards"] > 1:
        events = of_shard(events, str(operator.partition_by), payload["shard"], payload["shards"])
    scanned = time.perf_counter()
    closes, first = payload["closes"], known.first_window
    boundaries = Boundaries(first, np.asarray(read_arrow(closes)["ts"])) if closes else None
    found = match_shard(operator, events, known, context=unpacked(payload["context"]), boundaries=boundaries)
    matched = time.perf_counter()
    matches = in_order(found.matches)
    write_arrow(payload["out"], matches)
    kept = shard_savepoint(payload["shard"], found.held_sn, found.context_sn, known.end_sn)
    return {
        "out": payload["out"],
        "matches": matches.num_rows,
        "marks": marks(matches),
        "trim_sn": kept.trim_sn,
        "skip": base64.b64encode(kept.skip).decode(),
        "context": base64.b64encode(kept.context).decode(),
        "seconds": {"scan": scanned - started, "kernel": matched - scanned, "write": time.perf_counter() - matched},
    }


def stamp_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Number one slice of a batch and write its complex events as a Parquet file that no table names yet."""
    schema = pipeline_of(payload["pipeline"]).output_schema
    shards = [read_arrow(path) for path in payload["shards"]]
    part = Slice(*(tuple(bound) if bound else None for bound in (payload["low"], payload["high"])))
    complex_events, seed = stamp(payload["operator"], Seed(*payload["seed"]), payload["batch"], shards, part)
    write_complex_events(payload["path"], complex_events, schema)
    return {"rows": complex_events.num_rows, "seed": seed}


def write_complex_events(path: str, complex_events: pa.Table, schema: pa.Schema) -> None:
    """In the columns of the table: an operator without one of the measures leaves it empty."""
    count = complex_events.num_rows
    names = set(complex_events.column_names)
    table = pa.table([complex_events[f.name] if f.name in names else pa.nulls(count, f.type) for f in schema], schema.names)
    pq.write_table(table.cast(schema), path, compression="snappy")


def write_arrow(path: str, table: pa.Table) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        # In one piece, so that a reader that maps the file finds every column in one piece.
        writer.write_table(table.combine_chunks())


def read_arrow(path: str) -> pa.Table:
    """Mapped, not read: who needs a slice touches a slice."""
    return pa.ipc.open_file(pa.memory_map(path)).read_all()


def packed(sns: Int64s) -> str:
    return base64.b64encode(set_of(sns).serialize()).decode()


def unpacked(text: str) -> Int64s:
    return sns_of(BitMap64.deserialize(base64.b64decode(text)))


@lru_cache(maxsize=8)  # a worker meets the same pipeline batch after batch
def pipeline_of(text: str) -> Pipeline:
    return Pipeline.model_validate_json(text)
