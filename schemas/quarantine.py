"""`quarantine`: what ingest could not accept, with its place and the reason. `row` is NULL for a whole file."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import TIMESTAMP, required

SCHEMA = pa.schema([
    required("file", pa.string()),
    pa.field("row", pa.int64()),
    required("reason", pa.string()),
    pa.field("content", pa.string()),
    required("digest", pa.string()),
    required("ingest", pa.int64()),
    required("at", TIMESTAMP),
])
