"""Variable-length integers: seven bits a byte, the lowest first; the high bit says that more follow. In numba, because a
savepoint is a few dozen numbers, for which every call into numpy costs more than the work itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_jobs.cep.compiled import allocating

# 64 bits take at most ten bytes.
MOST_BYTES = 10
# Of a Roaring bitmap: what its head takes, and a container that is stored bit by bit.
_HEAD, _BITS = 20, 8192


@allocating
def pack(numbers: Any) -> Any:
    out = np.empty(MOST_BYTES * numbers.size, np.uint8)
    place = 0
    for i in range(numbers.size):
        rest = numbers[i]
        while rest >= np.uint64(128):
            out[place] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
            rest >>= np.uint64(7)
            place += 1
        out[place] = np.uint8(rest)
        place += 1
    return out[:place]


@allocating
def unpack(raw: Any) -> Any:
    """The numbers, and whether the last byte ended one and none was too long."""
    out = np.empty(raw.size, np.uint64)
    count, size, value = 0, 0, np.uint64(0)
    sound = True
    for i in range(raw.size):
        sound = sound and size < MOST_BYTES
        value |= np.uint64(raw[i] & np.uint8(127)) << np.uint64(7 * min(size, MOST_BYTES - 1))
        size += 1
        if raw[i] < 128:
            out[count] = value
            count += 1
            size, value = 0, np.uint64(0)
    return out[:count], sound and size == 0


@allocating
def gaps(kept: Any, low: int, high: int) -> Any:
    """The numbers above `low` up to `high` not in `kept`, as ranges: how many, then gap and length less one of each."""
    out = np.empty(3 + 2 * kept.size, np.uint64)
    count, last, before = 0, 0, low
    for i in range(kept.size + 1):
        here = kept[i] if i < kept.size else high + 1
        if here - before > 1:
            out[1 + 2 * count] = np.uint64(before + 1 - last)
            out[2 + 2 * count] = np.uint64(here - before - 2)
            last = here - 1
            count += 1
        before = here
    out[0] = np.uint64(count)
    return out[: 1 + 2 * count]


@allocating
def left(ranges: Any, low: int, high: int) -> Any:
    """The numbers above `low` up to `high` that are in none of the ranges, which are given as `gaps` gives them."""
    begins, ends = np.empty(ranges.size // 2 + 1, np.int64), np.empty(ranges.size // 2 + 1, np.int64)
    before, last, total = low, 0, 0
    for r in range(ends.size):
        begins[r] = before + 1
        ends[r] = high
        if r + 1 < ends.size:
            first = last + int(ranges[1 + 2 * r])
            last = first + int(ranges[2 + 2 * r])
            ends[r], before = min(first - 1, high), last
        total += max(ends[r] - begins[r] + 1, 0)
    out = np.empty(total, np.int64)
    place = 0
    for r in range(ends.size):
        for number in range(begins[r], ends[r] + 1):
            out[place] = number
            place += 1
    return out


@allocating
def runs(numbers: Any) -> Any:
    """Rising numbers as ranges: how many, then gap and length less one of each."""
    out = np.empty(1 + 2 * numbers.size, np.uint64)
    count, last = 0, 0
    i = 0
    while i < numbers.size:
        j = i
        while j + 1 < numbers.size and numbers[j + 1] == numbers[j] + 1:
            j += 1
        out[1 + 2 * count] = np.uint64(numbers[i] - last)
        out[2 + 2 * count] = np.uint64(numbers[j] - numbers[i])
        last = numbers[j]
        count += 1
        i = j + 1
    out[0] = np.uint64(count)
    return out[: 1 + 2 * count]


@allocating
def least_bitmap(ranges: Any) -> int:
    """Bytes that a Roaring bitmap of the same numbers takes at least: each of its containers, which hold 65,536 numbers,
    stores runs in four bytes, numbers in two, or all bits. Making one to see takes ten times as long as the rest."""
    least, container, runs, numbers, last = _HEAD, 0, 0, 0, 0
    for r in range(ranges.size // 2):
        first = last + int(ranges[1 + 2 * r])
        last = first + int(ranges[2 + 2 * r])
        if last >> 16 != container:
            least += min(4 * runs, 2 * numbers, _BITS)
            container, runs, numbers = last >> 16, 0, 0
        runs += 1
        numbers += last - max(first, container << 16) + 1
    return least + min(4 * runs, 2 * numbers, _BITS)


@allocating
def zigzag(columns: Any) -> Any:
    """Columns as differences from row to row, small ones small whatever their sign; how many columns and rows before them."""
    width, rows = columns.shape
    out = np.empty(2 + width * rows, np.uint64)
    out[0], out[1] = np.uint64(width), np.uint64(rows)
    for c in range(width):
        last = np.int64(0)
        for r in range(rows):
            difference = columns[c, r] - last
            last = columns[c, r]
            out[2 + c * rows + r] = np.uint64((difference << 1) ^ (difference >> 63))
    return out


@allocating
def unzigzag(numbers: Any, width: int, rows: int) -> Any:
    out = np.empty((width, rows), np.int64)
    for c in range(width):
        last = np.int64(0)
        for r in range(rows):
            value = numbers[2 + c * rows + r]
            last += np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
            out[c, r] = last
    return out
