"""Types shared by the tables."""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")

# The words a pipeline file uses for the types of attributes.
ATTRIBUTE_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
}


def required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)
