"""`history`: what every attempt did, phase by phase, including the faults that ended it."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import TIMESTAMP, required

SCHEMA = pa.schema([
    required("at", TIMESTAMP),
    required("job", pa.string()),
    required("attempt", pa.int64()),
    pa.field("operator", pa.string()),
    pa.field("batch", pa.int64()),
    required("kind", pa.string()),  # attempt, phase, replay, transactions, commit, fence, fault, end
    required("name", pa.string()),
    pa.field("detail", pa.string()),  # JSON
])
