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

from spark_jobs.cep.arrays import FOREVER, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.matcher import Boundaries, Known, match_shard
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, Slice, in_order, marks, plain, stamp
from spark_jobs.lake.scan import of_shard, read_events
from spark_jobs.pipeline import Pipeline
from spark_jobs.recovery.savepoint import set_of, shard_savepoint, sns_of


def match_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Match one shard of one batch. Its matches go to a scratch file, in their final order; the driver gets facts only."""
    pipeline = pipeline_of(payload["pipeline"])
    operator = pipeline.built[payload["operator"]]
    known = Known(*payload["known"])
    started = time.perf_counter()
    events = _events(payload, pipeline.source.schema, operator, known)
    scanned = time.perf_counter()
    closes = payload["closes"]
    boundaries = Boundaries(payload["closes_from"], np.asarray(read_arrow(closes)["ts"])) if closes else None
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


def _events(payload: dict[str, Any], schema: pa.Schema, operator: Operator, known: Known) -> pa.Table:
    """The residual and the new events of a shard: of its keys, or of its windows."""
    residual, after_sn, end_sn = unpacked(payload["residual"]), known.after_sn, known.end_sn
    grouped = known.last_window != FOREVER
    low, high = operator.window.reach(known.first_window, known.last_window) if grouped else (0, 0)
    if grouped and operator.window.kind == "count":
        # Positions are SN - 1; PREV looks at rows before the first window.
        first_sn = low + 1 - operator.back
        residual = residual[(residual >= first_sn) & (residual <= high)]
        after_sn, end_sn = max(after_sn, first_sn - 1), min(end_sn, high)
    in_sn_order = operator.partition_by != "key"
    events = read_events(payload["files"], schema, operator.columns, residual, after_sn, end_sn, in_sn_order=in_sn_order)
    if grouped and operator.window.kind == "time":
        begin, end = np.searchsorted(int64s(events["stream_ts"]), [low, high])
        begin = max(begin - operator.back, 0)
        events = events.slice(begin, end - begin)
    if operator.partition_by not in (None, "key") and payload["shards"] > 1:
        events = of_shard(events, str(operator.partition_by), payload["shard"], payload["shards"])
    return events


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
    columns = [_written(complex_events[f.name], f.type) if f.name in names else pa.nulls(count, f.type) for f in schema]
    fields = [pa.field(f.name, column.type, f.nullable) for f, column in zip(schema, columns, strict=True)]
    rising = ["x", "y", "ordinal", "ts", "batch"]
    pq.write_table(
        pa.table(columns, schema=pa.schema(fields)),
        path,
        compression={f.name: "none" if f.name in rising else "snappy" for f in schema},
        # Lists are named by their inner column; what is not named here is written as it is, without trying codes first.
        use_dictionary=["operator", "key", "symbols.list.element"],
        column_encoding={**dict.fromkeys(rising, "DELTA_BINARY_PACKED"), "sns.list.element": "DELTA_BINARY_PACKED"},
        store_schema=False,  # in the file coded text is text
    )


def _written(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """The column as it can be written: text, alone or in lists, may stay coded, everything else has its type."""
    return column if plain(column.type) == type_ else column.cast(type_)


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
