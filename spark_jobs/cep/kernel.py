"""The matcher: sequences under skip-till-next-match over all keys and windows of a shard, in one numba call.

Because every step takes the first event that fits, the completion of a run depends on its first event only,
and a run that starts later never completes earlier. So one backward pass gives `completion[i]`, the position
where a run started at i ends, whatever the window; a window's matches are then jumps from start to start
(FACTS.md, "Kernels"). WITHIN makes later starts matter: if the run of the first start comes too late, the
next start is tried, as SQL does.

What is still *held* (must be replayed after a failure) falls out of the same pass:
- the events of runs that may still complete: in an open window and before their WITHIN deadline;
- where windows overlap and a match consumes its events, also the events of matches in windows still open.
  An event held for one window is replayed into all windows that contain it; only the repeated match tells
  the others that they have already consumed it (DESIGN.md section 3, "unused is not always unneeded").
Each held event carries a deadline in stream time: from then on it is no longer needed. The watermark, known
only when all shards have reported, decides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from spark_jobs.cep.arrays import FOREVER, NOT_HELD, Int64s
from spark_jobs.cep.windows import Window

NOT_YET = -1


class Stream(NamedTuple):
    """The events of one shard that carry a symbol, sorted by key, then by SN."""

    offsets: Int64s  # key k owns rows offsets[k] .. offsets[k + 1]
    mask: Int64s  # bit s is set where the event fits step s
    sn: Int64s
    ts: Int64s  # stream time, never decreasing in SN


class Matched(NamedTuple):
    """Matches completed after `after_sn`, and what has to be kept; rows index into the stream."""

    rows: Int64s  # (matches, steps)
    window: Int64s  # window number y per match
    deadline: Int64s  # per stream row: needed while the watermark is below it; NOT_HELD if never


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
) -> Matched:
    """Match one shard. `within` 0 means no limit; windows below `first_window` no longer exist."""
    rows, numbers, deadline = _match(
        stream.offsets,
        stream.mask,
        stream.sn,
        stream.ts,
        steps,
        ("none", "count", "time").index(window.kind),
        window.size,
        window.slide,
        within,
        to_next_row,
        window.overlapping and not to_next_row,
        first_window,
        after_sn,
        end_sn,
    )
    return Matched(rows, numbers, deadline)


@njit(cache=True)
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


@njit(cache=True)
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
    hold_matches: bool,
    first_window: int,
    after_sn: int,
    end_sn: int,
) -> Any:
    n = mask.size
    completion = np.full(n, NOT_YET, np.int64)
    next_start = np.empty(n, np.int64)
    deadline = np.full(n, NOT_HELD, np.int64)
    waiting = np.empty(steps + 1, np.int64)
    out_rows = np.empty((64, steps), np.int64)
    out_window = np.empty(64, np.int64)
    found = 0

    for key in range(offsets.size - 1):
        begin, end = offsets[key], offsets[key + 1]
        if begin == end:
            continue
        _complete(mask, begin, end, steps, completion, next_start, waiting)

        number = 1 if kind == 0 else max(first_window, _lowest_window(kind, sn, ts, begin, size, slide))
        low, high = begin, begin if kind != 0 else end
        while low < end:
            # The stretch low..high of this key that lies in window `number`; both ends only move forward.
            closes = FOREVER
            if kind != 0:
                opens = (number - 1) * slide
                while low < end and _position(kind, sn, ts, low) < opens:
                    low += 1
                if low == end:
                    break
                if _position(kind, sn, ts, low) >= opens + size:
                    number = max(number + 1, _lowest_window(kind, sn, ts, low, size, slide))
                    continue
                high = max(high, low)
                while high < end and _position(kind, sn, ts, high) < opens + size:
                    high += 1
                if kind == 2:
                    closes = opens + size
                elif end_sn >= opens + size:
                    closes = NOT_HELD
            start = next_start[low]
            while NOT_YET < start < high:
                last = completion[start]
                if last == NOT_YET or last >= high:
                    break
                if within > 0 and ts[last] - ts[start] >= within:
                    start = next_start[start + 1] if start + 1 < end else NOT_YET
                    continue
                report = sn[last] > after_sn
                if report:
                    if found == out_window.size:
                        out_rows = _grown(out_rows)
                        out_window = _grown(out_window)
                    out_window[found] = number
                if report or hold_matches:
                    step = 0
                    for i in range(start, last + 1):
                        if mask[i] >> step & 1:
                            if report:
                                out_rows[found, step] = i
                            if hold_matches and closes > deadline[i]:
                                deadline[i] = closes
                            step += 1
                            if step == steps:
                                break
                found += report
                after = start + 1 if to_next_row else last + 1
                start = next_start[after] if after < end else NOT_YET
            if NOT_YET < start < high and closes != NOT_HELD:
                _hold_runs(mask, ts, start, high, steps, within, within > 0 or to_next_row, closes, deadline, waiting)
            if kind == 0:
                break
            number += 1
    return out_rows[:found], out_window[:found], deadline


@njit(cache=True)
def _complete(mask: Any, begin: int, end: int, steps: int, completion: Any, next_start: Any, ends: Any) -> None:
    """Backward over one key: where does a run started here end, and where is the next start?"""
    for s in range(steps + 1):
        ends[s] = NOT_YET  # ends[s]: where a run that waits for step s will end
    start = NOT_YET
    for i in range(end - 1, begin - 1, -1):
        bits = mask[i]
        if bits & 1:
            start = i
            completion[i] = i if steps == 1 else ends[1]
        next_start[i] = start
        for s in range(steps):  # upwards, so that ends[s + 1] is still the value after i
            if bits >> s & 1:
                ends[s] = i if s == steps - 1 else ends[s + 1]


@njit(cache=True)
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


@njit(cache=True)
def _position(kind: int, sn: Any, ts: Any, i: int) -> int:
    return sn[i] - 1 if kind == 1 else ts[i]  # type: ignore[no-any-return]  # numba arrays are untyped here


@njit(cache=True)
def _lowest_window(kind: int, sn: Any, ts: Any, i: int, size: int, slide: int) -> int:
    """The first window that contains row i, or the next one to open where the slide leaves gaps."""
    return (_position(kind, sn, ts, i) - size) // slide + 2


@njit(cache=True)
def _grown(array: Any) -> Any:
    larger = np.empty((array.shape[0] * 2,) + array.shape[1:], array.dtype)
    larger[: array.shape[0]] = array
    return larger
