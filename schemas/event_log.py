"""`event_log`: every accepted event once, numbered densely, in key buckets, SN-ordered within files."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from schemas.types import TIMESTAMP, required

# `stream_ts` is the largest `ts` up to and including this event in SN order: the time the log had reached. An
# event with ts < stream_ts came late, by the difference.
FIXED = [
    required("sn", pa.int64()),
    required("source", pa.string()),
    required("source_seq", pa.int64()),
    required("type", pa.string()),
    required("key", pa.string()),
    required("ts", TIMESTAMP),
    required("arrival_ts", TIMESTAMP),
    required("stream_ts", TIMESTAMP),
    required("bucket", pa.int32()),
]
FIXED_NAMES = [field.name for field in FIXED]

# Delta keeps the bucket in the folder name, so a task finds its files without opening any.
PARTITION_BY = ["bucket"]


def schema(attributes: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*FIXED, *(pa.field(name, type_) for name, type_ in attributes.items())])
