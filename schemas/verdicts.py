"""`verdicts`: what verification concluded, on which evidence, and what it covers."""

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
    # What follows is NULL in verdicts of earlier releases; nobody goes on from those.
    pa.field("fingerprint", pa.string()),  # of the operator's definition
    pa.field("mode", pa.string()),  # full, or incremental: since the last valid verdict
    pa.field("from_ordinal", pa.int64()),  # the complex events that were compared
    pa.field("to_ordinal", pa.int64()),
    pa.field("from_sn", pa.int64()),  # the events of the log that the reference run read
    pa.field("to_sn", pa.int64()),
    pa.field("seconds", pa.float64()),
])
