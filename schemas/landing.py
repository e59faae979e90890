"""`landing_files`: the landing files an ingest has taken in. A row counts only if the commit of `event_log`
names its ingest number."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import required

SCHEMA = pa.schema([
    required("ingest", pa.int64()),
    required("attempt", pa.int64()),
    required("file", pa.string()),
    required("partition", pa.string()),
    required("digest", pa.string()),
    required("source", pa.string()),
    required("rows", pa.int64()),
    required("accepted", pa.int64()),
    required("duplicates", pa.int64()),
    required("quarantined", pa.int64()),
    required("last_seq", pa.int64()),
    required("sequences", pa.binary()),  # Roaring bitmap of the accepted source_seq
])
