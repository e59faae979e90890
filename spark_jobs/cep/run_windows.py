"""The windows of one key: where each begins and ends in the rows, when it closes, and from which row on it is matched again."""

from __future__ import annotations

from typing import Any

from spark_jobs.cep.arrays import FOREVER, KeyFloors
from spark_jobs.cep.compiled import compiled, inlined
from spark_jobs.cep.run_state import BY_COUNT, BY_TIME, NO_WINDOW, OPENED, PER_KEY, Progress, Rows, Split


@compiled
def floor_of(rows: Rows, floors: KeyFloors, key: int, number: int, low: int, high: int) -> int:
    """The row from which a window goes on; `high` if none of its rows is left. Without a grid, number 0 is the whole key."""
    for f in range(floors.offsets[key], floors.offsets[key + 1]):
        if floors.low[f] <= number <= floors.high[f]:
            while low < high and rows.sn[low] < floors.sn[f]:
                low += 1
    return low


@compiled
def next_window(rows: Rows, split: Split, low: int, high: int, number: int, end: int) -> Any:
    """The next window that has rows: low .. high, and its number; low is `end` if there is none.

    Windows on the grid: `number` is the first to look at, and both ends only move forward. The others begin at `low` or later.
    """
    if split.kind == NO_WINDOW:
        return low, end, 1
    if split.kind == PER_KEY:
        return low, min(low + split.size, end), rows.sn[low]
    if split.kind == OPENED:
        while low < end and not rows.opens[low]:
            low += 1
        if low == end:
            return end, end, 0
        high = low + 1
        while high < end and _in_reach(rows, split, low, high):
            high += 1
            if rows.closes[high - 1]:
                break
        return low, high, rows.sn[low]
    number = max(number, _lowest_window(split, rows, low))
    while low < end:
        opens = (number - 1) * split.slide
        if _position(split, rows, low) < opens:
            low += 1
        elif _position(split, rows, low) >= opens + split.size:
            number = max(number + 1, _lowest_window(split, rows, low))
        else:
            break
    high = max(high, low)
    while high < end and _position(split, rows, high) < (number - 1) * split.slide + split.size:
        high += 1
    return low, high, number


@inlined
def _in_reach(rows: Rows, split: Split, low: int, i: int) -> bool:
    """Does an opened window reach as far as row i?"""
    return i - low < split.size if split.by_rows else rows.ts[i] < rows.ts[low] + split.size


@compiled
def close_of(
    rows: Rows, split: Split, progress: Progress, boundary_ts: Any, first_boundary: int, low: int, high: int, number: int
) -> Any:
    """When a window closes: stream time, and the SN of the row that closes it (0: time does); FOREVER if nothing has yet."""
    if split.kind == BY_TIME:
        return (number - 1) * split.slide + split.size, 0
    if split.kind == BY_COUNT:
        last_sn = (number - 1) * split.slide + split.size
        return (boundary_ts[number - first_boundary], last_sn) if last_sn <= progress.end_sn else (FOREVER, 0)
    if split.kind == PER_KEY or (split.kind == OPENED and split.by_rows):
        by_row = high - low == split.size or (split.kind == OPENED and high - 1 > low and rows.closes[high - 1])
        return (rows.ts[high - 1], rows.sn[high - 1]) if by_row else (FOREVER, 0)
    if split.kind == OPENED:
        by_row = high - 1 > low and rows.closes[high - 1]
        return (rows.ts[high - 1], rows.sn[high - 1]) if by_row else (rows.ts[low] + split.size, 0)
    return FOREVER, 0


@inlined
def is_needed(split: Split, low: int, end: int, is_open: bool) -> bool:
    """Must every row from this window's first one on be kept, because the window, or the next one, is counted from there?"""
    if split.kind == PER_KEY:
        return low + max(split.size, split.slide) > end
    return split.kind == OPENED and is_open


@inlined
def _position(split: Split, rows: Rows, i: int) -> int:
    return int(rows.sn[i] - 1 if split.kind == BY_COUNT else rows.ts[i])


@inlined
def _lowest_window(split: Split, rows: Rows, i: int) -> int:
    """The first window that contains row i, or the next one to open where the slide leaves gaps."""
    return (_position(split, rows, i) - split.size) // split.slide + 2
