"""`corrections`: events of the log that correct earlier ones, which came with the same sequence number. A row counts only if
the commit of `event_log` names its ingest number. Only pipelines with `ordering` have it."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import required

SCHEMA = pa.schema([
    required("ingest", pa.int64()),
    required("attempt", pa.int64()),
    required("sn", pa.int64()),
    required("replaces", pa.int64()),  # the SN of the event that no longer counts
    required("replaced_ts", pa.int64()),  # its time in microseconds, and its bucket
    required("replaced_bucket", pa.int64()),
    required("since_ts", pa.int64()),  # the earliest time that any event with this sequence number ever had
    required("source", pa.string()),
    required("source_seq", pa.int64()),
])
