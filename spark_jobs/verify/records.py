"""Complex events reduced to records of a fixed size: what one is, and what it says, as hashes that can be sorted and compared.

A record holds a 128-bit hash of the identity (window, events, inputs, symbols, timed out), a 64-bit hash of the content (key,
times, measures), the numbers, the batch, and the address of the row, under which the few rows that an example names are
found again. That any two of 20 million different complex events share an identity has a probability of 10^-24.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.columns import int64s, one_chunk
from spark_jobs.cep.compiled import compiled

# What a complex event is: the same events may be bound to other symbols, or be the start of a match that timed out.
IDENTITY = ["y", "sns", "inputs", "symbols", "timed_out"]
# What it says besides, and its measures; the other columns are numbers and where it came from.
SAID = ["key", "ts", "decided_ts", "decided_sn"]
NUMBERS = ["x", "ordinal", "batch"]

RECORD = np.dtype([
    ("high", np.uint64),
    ("low", np.uint64),
    ("content", np.uint64),
    ("x", np.int64),
    ("ordinal", np.int64),
    ("batch", np.int64),
    ("file", np.uint32),
    ("row", np.uint32),
])
Records = npt.NDArray[Any]  # of RECORD
UInt64s = npt.NDArray[np.uint64]

# Seeds of the three hashes: digits of e, pi and the square root of 2, so that nobody wonders why these.
_HIGH, _LOW, _CONTENT = np.uint64(0x2B7E151628AED2A6), np.uint64(0x243F6A8885A308D3), np.uint64(0x6A09E667F3BCC908)
# The multipliers and shifts of splitmix64 (Steele, Lea, Flood 2014).
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S1, _S2, _S3, _BYTE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(8)
_NULL = np.uint64(0xDEAD_0000_0000_0001)


def records_of(rows: pa.Table, said: Sequence[str], file: int, places: Any) -> Records:
    """The records of some rows of one file; a column that the file does not have is NULL."""
    found = np.zeros(rows.num_rows, RECORD)
    for name, seed in (("high", _HIGH), ("low", _LOW)):
        found[name] = _hashed(rows, IDENTITY, seed)
    found["content"] = _hashed(rows, said, _CONTENT)
    for name in NUMBERS:
        found[name] = int64s(rows[name]) if name in rows.column_names else 0
    found["file"], found["row"] = file, places
    return found


def said_columns(measures: Iterable[str]) -> list[str]:
    """The columns that make the content, in the order in which they are hashed."""
    return sorted([*SAID, *measures])


def plain_types(rows: pa.Table) -> pa.Table:
    """Rows of a file that another writer has made, say deltalake: text as `string_view`, which Arrow can do little with."""

    def plain(type_: pa.DataType) -> pa.DataType:
        if pa.types.is_list(type_) or pa.types.is_large_list(type_):
            return pa.list_(plain(type_.value_type))
        return pa.string() if pa.types.is_string_view(type_) or pa.types.is_large_string(type_) else type_

    types = {field.name: plain(field.type) for field in rows.schema}
    if all(types[field.name].equals(field.type) for field in rows.schema):
        return rows
    return pa.table({name: rows[name].cast(type_) for name, type_ in types.items()})


def warm_up() -> None:
    """Compile the hashes where this host has not yet."""
    rows = {"y": [1], "sns": [[1]], "symbols": [["A"]], "timed_out": [False], "x": [1], "ordinal": [1], "batch": [1]}
    records_of(pa.table({**rows, "key": ["k"]}), ["key"], 0, np.zeros(1, np.int64))


def _hashed(rows: pa.Table, columns: Sequence[str], seed: np.uint64) -> UInt64s:
    hashes = np.full(rows.num_rows, seed)
    for name in columns:
        column = _column(rows, name)
        if pa.types.is_list(column.type):
            offsets = np.asarray(column.offsets).astype(np.int64)
            values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
            _fold_lists(hashes, offsets - offsets[0], _words(values, seed)[0])
        else:
            _fold(hashes, *_words(column, seed))
    return hashes


def _column(rows: pa.Table, name: str) -> Any:
    """A column, where its absence has a meaning: an operator with one input names none, one without WITHIN times out never."""
    column = one_chunk(rows[name]) if name in rows.column_names else pa.nulls(rows.num_rows)
    if name == "inputs" and pa.types.is_null(column.type):
        return column.cast(pa.list_(pa.string()))
    return pc.fill_null(column.cast(pa.bool_()), False) if name == "timed_out" else column


def _words(column: Any, seed: np.uint64) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
    """A column as 64-bit words, and where it is not NULL."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.uint64), np.zeros(len(column), np.bool_)
    valid = np.asarray(column.is_valid()) if column.null_count else np.ones(len(column), np.bool_)
    if pa.types.is_dictionary(column.type):
        words, _ = _words(column.dictionary, seed)
        codes = np.asarray(pc.fill_null(column.indices, 0))
        return (words[codes] if words.size else np.zeros(len(column), np.uint64)), valid
    if pa.types.is_string(column.type):
        return _text_words(column, seed), valid
    if pa.types.is_floating(column.type):
        values = np.asarray(pc.fill_null(column, 0).cast(pa.float64())).copy()
        values[np.isnan(values)] = np.nan  # there are many, and they all say the same
        return values.view(np.uint64), valid
    if pa.types.is_decimal(column.type):  # 38 digits do not fit into one word; of one scale, equal values are equal text
        return _text_words(column.cast(pa.string()), seed), valid
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0)).view(np.uint64), valid


def _text_words(column: Any, seed: np.uint64) -> UInt64s:
    column = column.cast(pa.large_string())
    count, (_, offsets, data) = len(column), column.buffers()
    words = np.empty(count, np.uint64)
    if count:
        bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + count + 1]
        letters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        # Arrow's memory is read-only, for which a kernel would be compiled once more.
        _hash_texts(words, bounds.copy(), np.require(letters[: bounds[-1]], requirements=["C", "W"]), seed)
    return words


@compiled
def _mixed(state: Any, word: Any) -> Any:
    state = (state ^ word) + _GOLDEN
    state = (state ^ (state >> _S1)) * _M1
    state = (state ^ (state >> _S2)) * _M2
    return state ^ (state >> _S3)


@compiled
def _fold(hashes: Any, words: Any, valid: Any) -> None:
    for i in range(hashes.size):
        hashes[i] = _mixed(_mixed(hashes[i], np.uint64(valid[i])), words[i] if valid[i] else _NULL)


@compiled
def _fold_lists(hashes: Any, offsets: Any, words: Any) -> None:
    """The length goes in too, so that what one list lacks the next cannot supply."""
    for i in range(hashes.size):
        state = _mixed(hashes[i], np.uint64(offsets[i + 1] - offsets[i]))
        for j in range(offsets[i], offsets[i + 1]):
            state = _mixed(state, words[j])
        hashes[i] = state


@compiled
def _hash_texts(out: Any, offsets: Any, letters: Any, seed: Any) -> None:
    for i in range(out.size):
        state = _mixed(seed, np.uint64(offsets[i + 1] - offsets[i]))
        word, filled = np.uint64(0), 0
        for j in range(offsets[i], offsets[i + 1]):
            word = (word << _BYTE) | np.uint64(letters[j])
            filled += 1
            if filled == 8:
                state = _mixed(state, word)
                word, filled = np.uint64(0), 0
        out[i] = _mixed(state, word)
