"""`savepoints`: one row per operator, batch, attempt and shard. A row counts only if a commit of
`complex_events` names its (operator, batch, attempt)."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import required

SCHEMA = pa.schema([
    required("operator", pa.string()),
    required("shard", pa.int32()),
    required("batch", pa.int64()),
    required("attempt", pa.int64()),
    required("seed_x", pa.int64()),
    required("seed_y", pa.int64()),
    required("seed_ordinal", pa.int64()),
    required("trim_sn", pa.int64()),
    required("skip", pa.binary()),  # v_skip: a format byte, then a portable 64-bit Roaring bitmap
    required("context", pa.binary()),  # in the same format: of what is left, the events needed only as rows before others
    required("start_sn", pa.int64()),  # the batch read the events (start_sn, end_sn]
    required("end_sn", pa.int64()),
    required("watermark", pa.int64()),  # stream time in microseconds
    required("bytes", pa.int64()),
])
