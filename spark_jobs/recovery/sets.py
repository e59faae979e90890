"""Sets of sequence numbers and small tables of numbers as bytes, behind a byte that says which format they have.

A set is stored as a compressed bitmap or as ranges, whichever is smaller. Formats are never changed, only added:
`tests/recovery/frozen/` holds bytes of every one of them, which have to stay readable.

    1  a portable 64-bit Roaring bitmap
    2  ranges: how many, then for each the gap before it and its length less one, as variable-length integers
    3  columns of integers: how many columns and rows, then each as differences from row to row, zigzag, variable-length
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pyroaring import BitMap64

from spark_jobs.cep.arrays import Int64s
from spark_jobs.errors import SavepointDamaged
from spark_jobs.recovery import varint

ROARING, RANGES, COLUMNS = 1, 2, 3


def stored_numbers(numbers: Int64s) -> bytes:
    """A set given as rising numbers."""
    return _smaller(varint.runs(numbers), lambda: roaring_of(numbers)) if numbers.size else EMPTY


def stored_gaps(kept: Int64s, low: int, high: int) -> bytes:
    """The set of all numbers above `low` up to `high` that are not in `kept`, which are rising and lie between them."""

    def bitmap() -> BitMap64:
        skipped = BitMap64()
        skipped.add_range(low + 1, high + 1)
        return skipped - roaring_of(kept)

    return _smaller(varint.gaps(kept, low, high), bitmap)


def read_numbers(stored: bytes) -> Int64s:
    """The numbers of a set, rising."""
    if stored == EMPTY:
        return _NO_NUMBERS
    if _format(stored) == ROARING:
        return numbers_of(_bitmap(stored))
    ranges = _ranges(stored).view(np.int64)
    last = np.cumsum(ranges[1::2] + ranges[2::2])
    return _expanded(last - ranges[2::2], last)


def read_kept(stored: bytes, low: int, high: int) -> Int64s:
    """The numbers above `low` up to `high` that are not in the set: few, where the set is large."""
    if _format(stored) == ROARING:
        kept = BitMap64()
        kept.add_range(low + 1, high + 1)
        return numbers_of(kept - _bitmap(stored))
    kept_numbers: Int64s = varint.left(_ranges(stored), low, high)
    return kept_numbers


def count_kept(stored: Sequence[tuple[bytes, int]], high: int) -> int:
    """How many numbers up to `high` are missing in at least one of some sets, each from above its own `low` on."""
    if not stored:
        return 0
    first, last = (np.concatenate(ends) for ends in zip(*(_kept_ranges(data, low, high) for data, low in stored), strict=True))
    order = np.argsort(first, kind="stable")
    first, last = first[order], last[order]
    before = np.concatenate([[-1], np.maximum.accumulate(last)[:-1]])
    return int(np.maximum(last - np.maximum(first - 1, before), 0).sum())


def union(sets: Sequence[Int64s]) -> Int64s:
    """All numbers of some sets, each given as rising numbers."""
    if len(sets) == 1:
        return sets[0]
    # Of millions, np.unique takes ten times as long.
    joined: Int64s = np.sort(np.concatenate([_NO_NUMBERS, *sets]), kind="stable")
    distinct: Int64s = joined[np.diff(joined, prepend=-1) != 0]
    return distinct


def stored_columns(columns: Sequence[Int64s]) -> bytes:
    """Columns of equal length."""
    return _packed(COLUMNS, varint.zigzag(np.stack(columns)))


def read_columns(stored: bytes) -> list[Int64s]:
    if _format(stored) != COLUMNS:
        raise SavepointDamaged(f"columns of numbers expected, found format {stored[0]}")
    numbers = _unpacked(stored)
    width, rows = (int(number) for number in numbers[:2]) if numbers.size >= 2 else (0, -1)
    if numbers.size != 2 + width * rows:
        raise SavepointDamaged(f"{width} columns of {rows} numbers expected, found {numbers.size - 2} numbers")
    return list(varint.unzigzag(numbers, width, rows))


def roaring_of(numbers: Int64s) -> BitMap64:
    # Through array, which pyroaring takes as a buffer; number by number takes four times as long.
    return BitMap64(array("Q", numbers.tobytes()))


def numbers_of(bitmap: BitMap64) -> Int64s:
    return np.frombuffer(bitmap.to_array(), np.int64)


def warm_up() -> None:
    """Compile what this host has not yet."""
    numbers = np.array([2, 3, 7])
    read_kept(stored_gaps(numbers, 1, 9), 1, 9)
    read_numbers(stored_numbers(numbers))
    read_columns(stored_columns([numbers, numbers]))


def _smaller(ranges: Any, bitmap: Callable[[], BitMap64]) -> bytes:
    """Ranges, or the bitmap of the same numbers."""
    packed = _packed(RANGES, ranges)
    if len(packed) <= varint.least_bitmap(ranges):
        return packed
    compressed = bitmap()
    compressed.run_optimize()
    roaring = bytes([ROARING]) + compressed.serialize()
    return packed if len(packed) <= len(roaring) else roaring


def _packed(format_: int, numbers: Any) -> bytes:
    return bytes([format_]) + bytes(varint.pack(numbers))


def _format(stored: bytes) -> int:
    if not stored or stored[0] not in (ROARING, RANGES, COLUMNS):
        found = stored[0] if stored else "nothing"
        raise SavepointDamaged(f"a set of numbers has format {found}; this version reads {ROARING}, {RANGES} and {COLUMNS}")
    return stored[0]


def _bitmap(stored: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(stored[1:])
    except Exception as error:  # pyroaring raises whatever fits; what cannot be read is damaged
        raise SavepointDamaged(f"a bitmap of {len(stored)} bytes cannot be read: {error}") from error


def _ranges(stored: bytes) -> Any:
    if stored[0] != RANGES:
        raise SavepointDamaged(f"a set of numbers expected, found format {stored[0]}")
    numbers = _unpacked(stored)
    if numbers.size == 0 or numbers.size != 1 + 2 * int(numbers[0]):
        raise SavepointDamaged(f"a set of ranges of {len(stored)} bytes is cut off")
    return numbers


def _unpacked(stored: bytes) -> Any:
    numbers, sound = varint.unpack(np.frombuffer(stored, np.uint8)[1:])
    if not sound:
        raise SavepointDamaged(f"a number in {len(stored)} stored bytes is cut off, or has more than 64 bits")
    return numbers


def _kept_ranges(stored: bytes, low: int, high: int) -> tuple[Int64s, Int64s]:
    """First and last number of each range between those of a set."""
    if _format(stored) == ROARING:
        numbers = read_kept(stored, low, high)
        return numbers, numbers
    ranges = _ranges(stored).view(np.int64)
    last = np.cumsum(ranges[1::2] + ranges[2::2])
    return np.append(low, last) + 1, np.append(np.minimum(last - ranges[2::2] - 1, high), high)


def _expanded(first: Int64s, last: Int64s) -> Int64s:
    """All numbers of some ranges."""
    lengths = last - first + 1
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(first - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)


_NO_NUMBERS: Int64s = np.empty(0, np.int64)
EMPTY = bytes([RANGES, 0])
