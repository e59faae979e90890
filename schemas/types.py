"""Types shared by the tables."""

from __future__ import annotations

import re

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")

# The words a pipeline file uses for the types of attributes, besides decimal(precision, scale).
ATTRIBUTE_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
    "date": pa.date32(),
}
LONGEST_DECIMAL = 38


def attribute_type(word: str) -> pa.DataType | None:
    """The type that a pipeline file's word means; None if it means none."""
    decimal = re.fullmatch(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)", word)
    if decimal is None:
        return ATTRIBUTE_TYPES.get(word)
    precision, scale = int(decimal[1]), int(decimal[2])
    return pa.decimal128(precision, scale) if 1 <= precision <= LONGEST_DECIMAL and scale <= precision else None


def attribute_word(type_: pa.DataType) -> str:
    """The word of a pipeline file for a type."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return next((word for word, known in ATTRIBUTE_TYPES.items() if known == type_), str(type_))


def required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)
