"""Columns of a table as arrays: in one piece, as plain values, codes or 64-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s


def one_chunk(column: Any) -> Any:
    """A table's column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def decoded(column: Any) -> Any:
    """A column as one array of plain values."""
    column = one_chunk(column)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def writable(array: Any) -> Any:
    """numba compiles once more for arrays that cannot be written to, as Arrow's are."""
    return np.require(array, requirements=["C", "W"])


def codes_of(coded: pa.DictionaryArray) -> Any:
    """The code of each row; NULL has the one after the last."""
    if coded.null_count == 0:
        return np.asarray(coded.indices)
    return np.asarray(pc.fill_null(coded.indices.cast(pa.int64()), len(coded.dictionary)))


def int64s(column: Any) -> Int64s:
    """Integers or times, none of them NULL."""
    return np.asarray(one_chunk(column).cast(pa.int64()))
