"""`late_events`: events of the log that came later than what is published can be corrected, and so are not in the output."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import TIMESTAMP, required

SCHEMA = pa.schema([
    required("sn", pa.int64()),
    required("source", pa.string()),
    required("source_seq", pa.int64()),
    required("type", pa.string()),
    required("key", pa.string()),
    required("ts", TIMESTAMP),
    required("arrival_ts", TIMESTAMP),
    required("stream_ts", TIMESTAMP),  # the time the log had reached when it came
    required("reason", pa.string()),
    required("at", TIMESTAMP),
])
