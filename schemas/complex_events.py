"""`complex_events`: the output. Its Delta log is the one commit point of detection."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from schemas.types import TIMESTAMP, required

FIXED = [
    required("operator", pa.string()),
    required("x", pa.int64()),
    required("y", pa.int64()),
    required("ordinal", pa.int64()),
    pa.field("key", pa.string()),
    required("ts", TIMESTAMP),
    required("symbols", pa.list_(pa.string())),
    required("sns", pa.list_(pa.int64())),
    required("timed_out", pa.bool_()),  # a partial match that WITHIN ended
    required("batch", pa.int64()),
]
FIXED_NAMES = [field.name for field in FIXED]


def schema(measures: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*FIXED, *(pa.field(name, type_) for name, type_ in measures.items())])
