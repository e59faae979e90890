"""`verdicts`: what verification concluded, and on which evidence."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import TIMESTAMP, required

SCHEMA = pa.schema([
    required("at", TIMESTAMP),
    required("pipeline", pa.string()),
    required("operator", pa.string()),
    required("version", pa.int32()),
    required("verdict", pa.string()),  # valid, invalid, unknown
    required("events", pa.int64()),
    required("matches", pa.int64()),
    required("reference_matches", pa.int64()),
    required("findings", pa.string()),  # JSON, one entry per property
])
