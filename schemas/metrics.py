"""`metrics`: where a pipeline stood after a task of Airflow, and what its last detection did."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import TIMESTAMP, required

SCHEMA = pa.schema([
    required("at", TIMESTAMP),
    required("pipeline", pa.string()),
    pa.field("operator", pa.string()),  # NULL: of the pipeline as a whole
    required("name", pa.string()),
    required("value", pa.float64()),
])
