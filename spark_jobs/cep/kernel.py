"""The matcher: sequences under skip-till-next-match over all keys and windows of a shard, in one numba call.

Because every step takes the first event that fits, the completion of a run depends on its first event only,
and a run that starts later never completes earlier. So one backward pass gives `completion[i]`, the position
where a run started at i ends, whatever the window; a window's matches are then jumps from start to start
(FACTS.md, "Kernels"). WITHIN makes later starts matter: if the run of the first start comes too late, the
next start is tried, as SQL does.

What is still *held* (must be replayed after a failure) falls out of the same pass: the events of runs that may still
complete, in an open window and before their WITHIN deadline. An event held for one window is replayed into all windows
that contain it, also into those in which a match has consumed it ("unused is not always unneeded", DESIGN.md section 3);
their floors say from where on those windows go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_jobs.cep.arrays import FLOORS_NEEDED, FLOORS_NEVER, FOREVER, NOT_HELD, Floors, Int64s, KeyFloors
from spark_jobs.cep.compiled import allocating, compiled, inlined
from spark_jobs.cep.windows import Window

NOT_YET = -1
NEVER = 2**31 - 1
# More keys than that are arranged group by group; so many groups (as a power of two) can be written to side by side.
MANY_KEYS, _GROUP_BITS = 1 << 15, 10
# Room for matches at first: memory that is never touched costs nothing, growing copies.
_MOST_AT_FIRST = 1 << 20
WINDOWS = ("none", "count", "time")


class Stream(NamedTuple):
    """The events of one shard that carry a symbol, sorted by key, then by SN."""

    offsets: Int64s  # key k owns rows offsets[k] .. offsets[k + 1]
    mask: Int64s  # bit s is set where the event fits step s
    sn: Int64s
    ts: Int64s  # stream time, never decreasing in SN


class Matched(NamedTuple):
    """Matches completed after `after_sn`, and what has to be kept; rows index into the stream."""

    rows: Any  # (matches, steps), int32
    window: Int64s  # window number y per match
    held: Any  # per stream row, bool
    floors: Floors


def match(
    stream: Stream,
    steps: int,
    window: Window,
    *,
    within: int,
    to_next_row: bool,
    first_window: int,
    after_sn: int,
    end_sn: int,
    watermark: int,
    last_window: int = FOREVER,
    floors: KeyFloors | None = None,
    report_floors: int = FLOORS_NEVER,
    keep: bool = True,
) -> Matched:
    """Match one shard. `within` 0 means no limit; windows below `first_window` no longer exist, those above
    `last_window` are another shard's.

    Without `keep` nothing is held: an input that is known to its end leaves nothing to be replayed.
    """
    rows, numbers, deadline, reported = _match(
        stream.offsets,
        stream.mask,
        stream.sn,
        stream.ts,
        steps,
        WINDOWS.index(window.kind),
        window.size,
        window.slide,
        within,
        to_next_row,
        keep,
        first_window,
        last_window,
        after_sn,
        end_sn,
        watermark,
        *(floors or no_floors(stream.offsets.size - 1)),
        report_floors,
    )
    return Matched(rows, numbers, deadline > watermark, Floors(*reported.T.copy()))


def no_floors(keys: int) -> KeyFloors:
    return KeyFloors(np.zeros(keys + 1, np.int64), *(np.empty(0, np.int64) for _ in range(3)))


def count(stream: Stream, steps: int, size: int, slide: int) -> int:
    """How many matches count windows have, and not which: what finding costs without telling."""
    return int(_count(stream.offsets, stream.mask, stream.sn, steps, size, slide))


@allocating
def sort_by_key(codes: Any, keys: int) -> Any:
    """A stable counting sort: the row order by key, and where each key begins."""
    offsets = np.zeros(keys + 1, np.int64)
    for i in range(codes.size):
        offsets[codes[i] + 1] += 1
    for k in range(keys):
        offsets[k + 1] += offsets[k]
    place = offsets[:keys].copy()
    order = np.empty(codes.size, np.int64)
    for i in range(codes.size):
        order[place[codes[i]]] = i
        place[codes[i]] += 1
    return order, offsets


@allocating
def rows_by_number(numbers: Any, low: int, high: int) -> Any:
    """The row of each number from low to high; -1 where there is none."""
    rows = np.full(high - low + 1, -1, np.int64)
    for i in range(numbers.size):
        rows[numbers[i] - low] = i
    return rows


def arrange(codes: Any, keys: int, wanted: Any, mask: Any, sn: Any, ts: Any) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
    """The rows that are wanted, by key and then as they come; with them, in one go, what a `Stream` is made of.

    A counting sort: two walks over the events in their order, instead of one in the order of keys per column. What belongs
    to a row lies side by side, so that with a million keys it takes one miss of the cache and not four; and numpy, unlike
    numba, asks for large pages, of which a hundred megabytes need few.
    """
    offsets = np.zeros(keys + 1, np.int64)
    _count_keys(codes, wanted, offsets)
    arranged = np.empty((int(offsets[-1]), 4), np.int64)
    place = offsets[:-1].copy()
    if keys <= MANY_KEYS:
        _arrange(codes, wanted, mask, sn, ts, place, arranged)
    else:
        shift = keys.bit_length() - _GROUP_BITS
        groups, grouped = offsets[: -1 : 1 << shift].copy(), np.empty((len(arranged), 5), np.int64)
        _arrange_by_groups(codes, wanted, mask, sn, ts, place, arranged, shift, groups, grouped)
    rows, masks, sns, times = arranged.T
    return rows, offsets, masks, sns, times


@compiled
def _count_keys(codes: Any, wanted: Any, offsets: Any) -> None:
    for i in range(codes.size):
        offsets[codes[i] + 1] += wanted[i] != 0  # no branch: it would be taken at random
    for k in range(offsets.size - 1):
        offsets[k + 1] += offsets[k]


@compiled
def _arrange(codes: Any, wanted: Any, mask: Any, sn: Any, ts: Any, place: Any, arranged: Any) -> None:
    for i in range(codes.size):
        if wanted[i] != 0:
            p = place[codes[i]]
            place[codes[i]] = p + 1
            arranged[p, 0], arranged[p, 1], arranged[p, 2], arranged[p, 3] = i, mask[i], sn[i], ts[i]


@compiled
def _arrange_by_groups(
    codes: Any, wanted: Any, mask: Any, sn: Any, ts: Any, place: Any, arranged: Any, shift: int, groups: Any, grouped: Any
) -> None:
    """First by groups of neighbouring keys, then by key within what of a group fits into the cache: each row is moved twice,
    and with half a million keys it takes a quarter of the time."""
    for i in range(codes.size):
        if wanted[i] != 0:
            p = groups[codes[i] >> shift]
            groups[codes[i] >> shift] = p + 1
            grouped[p, 0], grouped[p, 1], grouped[p, 2], grouped[p, 3], grouped[p, 4] = codes[i], i, mask[i], sn[i], ts[i]
    for j in range(grouped.shape[0]):
        p = place[grouped[j, 0]]
        place[grouped[j, 0]] = p + 1
        arranged[p, 0], arranged[p, 1], arranged[p, 2], arranged[p, 3] = (
            grouped[j, 1],
            grouped[j, 2],
            grouped[j, 3],
            grouped[j, 4],
        )


@allocating
def _match(
    offsets: Any,
    mask: Any,
    sn: Any,
    ts: Any,
    steps: int,
    kind: int,
    size: int,
    slide: int,
    within: int,
    to_next_row: bool,
    keep: bool,
    first_window: int,
    last_window: int,
    after_sn: int,
    end_sn: int,
    watermark: int,
    floor_offsets: Any,
    floor_low: Any,
    floor_high: Any,
    floor_sn: Any,
    report_floors: int,
) -> Any:
    n = mask.size
    # 32 bits are enough for the rows of a shard, and half the memory to walk through. Row n stands for "none".
    completion = np.empty(n + 1, np.int32)
    next_start = np.empty(n + 1, np.int32)
    follow = np.empty(n + 1, np.int32)  # where the next match may start if one starts here
    completion[n], next_start[n], follow[n] = NEVER, n, n
    # The first match written for a start: a run binds the same rows in every window that reports it.
    again = kind != 0 and slide < size
    written = np.full(n if again else 0, NOT_YET, np.int32)
    deadline = np.full(n if keep else 0, NOT_HELD, np.int64)
    waiting = np.empty(steps + 1, np.int64)
    ends = np.empty(steps + 1, np.int32)
    capacity = max(64, min(_MOST_AT_FIRST, n // steps * (1 if kind == 0 else size // slide + 1)))
    out_rows = np.empty(capacity * steps, np.int32)
    out_window = np.empty(capacity, np.int64)
    found = 0
    axis, shift = (ts, 0) if kind == 2 else (sn, 1)  # count windows lie on SN - 1
    # The windows of one key that are still open, and the SN from which each goes on.
    opened = np.empty((2 if kind == 0 else size // slide + 2, 2), np.int64)
    floors = np.empty((16 if report_floors else 0, 4), np.int64)
    floor_count = 0

    for key in range(offsets.size - 1):
        begin, end = offsets[key], offsets[key + 1]
        if begin == end:
            continue
        _complete(mask, begin, end, steps, to_next_row, completion, next_start, follow, ends)

        fresh = begin + np.searchsorted(sn[begin:end], after_sn, side="right") if after_sn >= sn[begin] else begin
        number = 1 if kind == 0 else max(first_window, _lowest_window(axis[begin] - shift, size, slide))
        low, high = begin, begin if kind != 0 else end
        open_count, held_from = 0, end  # nothing before that row is held
        while low < end:
            # The stretch low..high of this key that lies in window `number`; both ends only move forward.
            closes = FOREVER
            if kind != 0:
                opens = (number - 1) * slide + shift
                while low < end and axis[low] < opens:
                    low += 1
                if low == end:
                    break
                if number > last_window:
                    break
                if axis[low] >= opens + size:
                    number = max(number + 1, _lowest_window(axis[low] - shift, size, slide))
                    continue
                high = max(high, low)
                while high < end and axis[high] < opens + size:
                    high += 1
                if kind == 2:
                    closes = opens + size
                elif end_sn >= opens + size - shift:
                    closes = NOT_HELD
            first = low
            if floor_sn.size:
                mine, others = floor_offsets[key], floor_offsets[key + 1]
                first = _floor(sn, floor_low, floor_high, floor_sn, mine, others, number, low, high)
            start = next_start[first]
            while completion[start] < high:
                last = completion[start]
                if within > 0 and ts[last] - ts[start] >= within:
                    start = next_start[start + 1] if start + 1 < end else n
                    continue
                if last >= fresh:
                    if found == out_window.size:
                        out_window = _grown(out_window)
                        out_rows = _grown(out_rows)
                    out_window[found] = number
                    earlier = written[start] if again else NOT_YET
                    if earlier == NOT_YET:
                        _bind(mask, start, steps, out_rows, found * steps)
                        if again:
                            written[start] = found
                    else:
                        for s in range(steps):
                            out_rows[found * steps + s] = out_rows[earlier * steps + s]
                    found += 1
                start = follow[start]
            if keep and closes > watermark:
                if start < high:
                    held_from = min(held_from, start)
                    _hold_runs(mask, ts, start, high, steps, within, within > 0 or to_next_row, closes, deadline, waiting)
                if report_floors:
                    opened[open_count, 0] = number
                    opened[open_count, 1] = sn[start] if start < high else end_sn + 1
                    open_count += 1
            if kind == 0:
                break
            number += 1
        if open_count:
            floors, floor_count = add_floors(
                floors, floor_count, opened, open_count, sn, deadline, held_from, end, watermark, report_floors
            )
    return out_rows[: found * steps].reshape(found, steps), out_window[:found], deadline, floors[:floor_count]


@inlined
def _floor(
    sn: Any, floor_low: Any, floor_high: Any, floor_sn: Any, first: int, last: int, number: int, low: int, high: int
) -> int:
    """The row from which a window goes on; `sn.size` if no row of it is left."""
    for f in range(first, last):
        if floor_low[f] <= number <= floor_high[f]:
            while low < high and sn[low] < floor_sn[f]:
                low += 1
            return low if low < high else sn.size
    return low


@allocating
def add_floors(
    floors: Any,
    count: int,
    opened: Any,
    open_count: int,
    sn: Any,
    deadline: Any,
    begin: int,
    end: int,
    watermark: int,
    report_floors: int,
) -> Any:
    """Append the floors of one key, of which nothing is held before row `begin`: one entry for neighbouring windows that go
    on from the same row."""
    witness = sn[end - 1]
    if report_floors == FLOORS_NEEDED:
        held = begin
        while held < end and deadline[held] <= watermark:
            held += 1
        if held == end:
            return floors, count
        witness = sn[held]
    for w in range(open_count):
        number, from_sn = opened[w, 0], opened[w, 1]
        if report_floors == FLOORS_NEEDED and from_sn <= witness:
            continue
        if count and floors[count - 1, 1] == number - 1 and floors[count - 1, 2] == from_sn and floors[count - 1, 3] == witness:
            floors[count - 1, 1] = number
            continue
        if count == floors.shape[0]:
            floors = _grown(floors)
        floors[count, 0] = number
        floors[count, 1] = number
        floors[count, 2] = from_sn
        floors[count, 3] = witness
        count += 1
    return floors, count


@allocating
def _count(offsets: Any, mask: Any, sn: Any, steps: int, size: int, slide: int) -> int:
    n = mask.size
    completion = np.empty(n + 1, np.int32)
    next_start = np.empty(n + 1, np.int32)
    follow = np.empty(n + 1, np.int32)
    completion[n], next_start[n], follow[n] = NEVER, n, n
    ends = np.empty(steps + 1, np.int32)
    found = 0
    for key in range(offsets.size - 1):
        begin, end = offsets[key], offsets[key + 1]
        _complete(mask, begin, end, steps, False, completion, next_start, follow, ends)
        low = high = begin
        number = max(1, _lowest_window(sn[begin] - 1, size, slide)) if begin < end else 1
        while low < end:
            opens = (number - 1) * slide + 1
            while low < end and sn[low] < opens:
                low += 1
            while high < end and sn[high] < opens + size:
                high += 1
            start = next_start[low] if low < end else n
            while completion[start] < high:
                found += 1
                start = follow[start]
            number += 1
    return found


@compiled
def _complete(
    mask: Any, begin: int, end: int, steps: int, to_next_row: bool, completion: Any, next_start: Any, follow: Any, ends: Any
) -> None:
    """Backward over one key: where does a run started here end, and where is the next start, now and after a match?"""
    none = mask.size
    ends[:] = NEVER  # ends[s]: where a run that waits for step s will end
    start = none
    for i in range(end - 1, begin - 1, -1):
        bits = mask[i]
        ends[steps] = i
        # For a run that starts here; what this says of other rows is never asked for, and asking would cost a branch.
        last = ends[1]
        completion[i] = last
        after = i + 1 if to_next_row else last + 1
        follow[i] = next_start[after if after < end else none]
        start = i if bits & 1 else start
        next_start[i] = start
        for s in range(steps):  # upwards, so that ends[s + 1] is still the value after i
            ends[s] = ends[s + 1] if bits >> s & 1 else ends[s]


@inlined
def _bind(mask: Any, start: int, steps: int, out: Any, place: int) -> None:
    """The rows of the run that starts here and is known to complete."""
    i = start
    for s in range(steps):
        while not mask[i] >> s & 1:
            i += 1
        out[place + s] = i
        i += 1


@compiled
def _hold_runs(
    mask: Any,
    ts: Any,
    start: int,
    high: int,
    steps: int,
    within: int,
    every_start: bool,
    closes: int,
    deadline: Any,
    waiting: Any,
) -> None:
    """Mark the events of runs that have not completed; waiting[s] is the latest deadline among runs at step s."""
    for s in range(steps):
        waiting[s] = NOT_HELD
    for i in range(start, high):
        bits = mask[i]
        for s in range(steps - 1, 0, -1):
            if waiting[s] != NOT_HELD and bits >> s & 1:
                deadline[i] = max(deadline[i], waiting[s])
                # The last step would complete the run: only runs past their WITHIN get here, and they end.
                if s + 1 < steps:
                    waiting[s + 1] = max(waiting[s + 1], waiting[s])
                waiting[s] = NOT_HELD
        # Without WITHIN no later start can overtake the first one, and a match of the first consumes it.
        if bits & 1 and (i == start or every_start):
            until = min(closes, ts[i] + within) if within > 0 else closes
            deadline[i] = max(deadline[i], until)
            if steps > 1:
                waiting[1] = max(waiting[1], until)


@inlined
def _lowest_window(position: int, size: int, slide: int) -> int:
    """The first window that contains this place on the axis, or the next one to open where the slide leaves gaps."""
    return (position - size) // slide + 2


@allocating
def _grown(array: Any) -> Any:
    larger = np.empty((array.shape[0] * 2,) + array.shape[1:], array.dtype)
    larger[: array.shape[0]] = array
    return larger
