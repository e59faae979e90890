"""The matcher for the whole language: an ordered list of runs per key and window, moved on row by row (docs/LANGUAGE.md).

The list is ordered by first row, then by preference, so the best match of a start is simply the first one in the list
that is complete with nothing still waiting before it. An entry is one of

    WAIT       has taken rows and waits with its living options
    ACCEPTING  has taken all rows, but '$' or a negation at the end may still undo it
    DONE       is complete; comes out when nothing before it in the list can still be preferred
    TIMED      was ended by WITHIN; comes out as a partial match if its start ends without a match

A row is *used* if the list is another one after it than before (PATTERNS.md, "When an event may be skipped"). What has
to be kept for a replay are the used rows from the first start that is still in the list; in windows that begin at a row,
all rows since the first one still open. A row kept for one window is replayed into all that contain it: floors say from
where on the others go on (arrays.py).

Rows that no entry waits for are passed over without looking at the list at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_jobs.cep.arrays import FLOORS_NEEDED, FOREVER, NOT_HELD, KeyFloors, Nodes
from spark_jobs.cep.automaton import Tables
from spark_jobs.cep.bytecode import Programs
from spark_jobs.cep.compiled import allocating, compiled, inlined
from spark_jobs.cep.kernel import add_floors
from spark_jobs.cep.run_matches import close_window, expire, lapse, release
from spark_jobs.cep.run_state import (
    BY_COUNT,
    BY_TIME,
    CHANGED,
    COUNTERS,
    ERROR,
    NEVER,
    NEXT_RUNS,
    NO_ROW,
    NO_WINDOW,
    NODES,
    OPENED,
    PER_KEY,
    READY,
    RESUME,
    RUNS,
    TOO_LARGE,
    USED,
    Out,
    Progress,
    Rows,
    Rule,
    Runs,
    Split,
)
from spark_jobs.cep.run_steps import interest_of, start_bits_of, start_run, step_runs, widest_of
from spark_jobs.cep.run_windows import close_of, floor_of, is_needed, next_window

# Why a walk over rows has stopped.
_GO_ON, _TO_RELEASE, _TO_EXPIRE, _TO_GROW = range(4)


class _At(NamedTuple):
    """The row a walk has come to, why it stopped there, and what matters of the rows from there on (`interest_of`)."""

    row: Any
    why: Any
    swapped: Any  # `now` and `later` have changed places
    interest: Any
    every_row: Any
    due: Any


@allocating
def find_runs(
    rows: Rows,
    tables: Tables,
    programs: Programs,
    rule: Rule,
    split: Split,
    progress: Progress,
    now: Runs,
    later: Runs,
    nodes: Nodes,
    boundary_ts: Any,
    first_boundary: int,
    floors: KeyFloors,
) -> Any:
    """All matches of a shard, what has to be held, the floors of that, and an error with the row of the key it happened in.

    `boundary_ts[k]` is the stream time of the row that closes count window `first_boundary + k`.
    """
    n = np.zeros(COUNTERS, np.int64)
    used = np.empty(rows.sn.size, np.int64)
    held = np.zeros(rows.sn.size, np.bool_)
    out = Out(np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.bool_), np.empty((16, 6), np.int64))
    on_grid = split.kind == BY_COUNT or split.kind == BY_TIME
    opened = np.empty((split.size // split.slide + 2 if on_grid else 2, 2), np.int64)
    floors_out = np.empty((16 if split.report_floors else 0, 4), np.int64)
    floor_count = 0
    needed_until = np.empty(rows.sn.size if split.report_floors == FLOORS_NEEDED else 0, np.int64)
    for key in range(rows.offsets.size - 1):
        first, end = rows.offsets[key], rows.offsets[key + 1]
        begin = first if on_grid else floor_of(rows, floors, key, NO_ROW, first, end)
        open_count, held_from = 0, end
        keep_from = end  # windows that begin at a row: everything from the first open one on
        low, high, number = begin, begin, split.first_window
        while low < end:
            low, high, number = next_window(rows, split, low, high, number, end)
            if low == end or number > split.last_window:
                break
            close_ts, close_sn = close_of(rows, split, progress, boundary_ts, first_boundary, low, high, number)
            is_open = close_ts > progress.watermark and not progress.complete

            n[RUNS] = n[NODES] = n[USED] = 0
            n[RESUME] = low
            first_row = floor_of(rows, floors, key, number, low, high) if on_grid else low
            at = _At(first_row, _GO_ON, False, np.uint64(0), False, NEVER)
            while True:
                at = _walk(rows, tables, programs, rule, now, later, nodes, n, used, at, low, high)
                if at.swapped:
                    now, later = later, now
                if at.why == _TO_RELEASE:
                    out = release(rows, rule, progress, now, nodes, n, out, number, rows.ts[at.row], rows.sn[at.row])
                    _note_used(rule, n, used, at.row, rule.at_start and at.row == low)
                elif at.why == _TO_EXPIRE:
                    out = expire(rows, tables, rule, progress, now, nodes, n, out, number, at.due)
                elif at.why == _TO_GROW:
                    nodes = _room(nodes, n, rule, tables)
                if n[ERROR] != 0:
                    return out, n, held, at.row, floors_out
                if at.why == _GO_ON:
                    break
                interest, every_row, due = interest_of(tables, rule, now, n)
                at = _At(at.row + (at.why == _TO_RELEASE), _GO_ON, False, interest, every_row, due)
            due = at.due

            # A deadline at the very time at which the window closes is the same instant: what it decides comes out with that.
            last = close_ts if close_sn != 0 else close_ts - 1
            while due <= min(last, rows.known[key]):
                out = expire(rows, tables, rule, progress, now, nodes, n, out, number, due)
                _, _, due = interest_of(tables, rule, now, n)
            if close_sn == 0 and due == close_ts and due <= rows.known[key]:
                lapse(tables, rule, now, n, due)
            if is_open:
                _hold(rule, now, n, used, held)
                if n[RUNS] > 0:
                    held_from = min(held_from, now.start[0])
                if split.report_floors and on_grid:
                    opened[open_count, 0] = number
                    opened[open_count, 1] = _goes_on(rows, progress, now, n)
                    open_count += 1
            else:
                if close_ts > progress.watermark:  # the input ends before the window does
                    close_ts, close_sn = NEVER, NO_ROW
                out = close_window(rows, rule, progress, now, nodes, n, out, number, close_ts, close_sn)
            if n[ERROR] != 0:
                return out, n, held, low, floors_out
            if is_needed(split, low, end, is_open):
                keep_from = min(keep_from, low)
            if split.kind == NO_WINDOW:
                if n[RUNS] > 0:
                    keep_from = now.start[0]
                break
            number += 1
            if split.kind == PER_KEY or split.kind == OPENED:
                low += split.slide if split.kind == PER_KEY else 1
        if split.kind != NO_WINDOW:
            held[keep_from:end] = True
        if split.report_floors and not on_grid and first < end:  # also of a key of which nothing was matched again
            opened[0, 0], opened[0, 1] = NO_ROW, rows.sn[keep_from] if keep_from < end else progress.end_sn + 1
            open_count = 1
        if open_count:
            if split.report_floors == FLOORS_NEEDED:
                for i in range(held_from, end):
                    needed_until[i] = FOREVER if held[i] else NOT_HELD
            floors_out, floor_count = add_floors(
                floors_out, floor_count, opened, open_count, rows.sn, needed_until, held_from, end, 0, split.report_floors
            )
    return out, n, held, 0, floors_out[:floor_count]


@compiled
def _walk(
    rows: Rows,
    tables: Tables,
    programs: Programs,
    rule: Rule,
    now: Runs,
    later: Runs,
    nodes: Nodes,
    n: Any,
    used: Any,
    at: _At,
    low: int,
    high: int,
) -> _At:
    """Go on over the rows of a window until something has to be done that may need memory, or up to its end.

    What makes no arrays counts no references to them: this is where the time goes, and most rows come and go in here.
    """
    start_bits, any_start = start_bits_of(tables)
    widest = widest_of(tables)
    interest, every_row, due, swapped = at.interest, at.every_row, at.due, False
    for i in range(at.row, high):
        if due <= rows.ts[i]:
            return _At(i, _TO_EXPIRE, swapped, interest, every_row, due)
        bits = rows.bits[i]
        at_first = rule.at_start and i == low
        starts = (any_start or (bits & start_bits) != 0) and (at_first or not rule.at_start)
        if starts or every_row or (bits & interest) != 0:
            if n[NODES] + (n[RUNS] + 1) * widest > nodes.parent.size:
                return _At(i, _TO_GROW, swapped, interest, every_row, due)
            n[CHANGED] = n[READY] = 0
            step_runs(rows, tables, programs, rule, now, later, nodes, n, i)
            if starts and i >= n[RESUME]:
                start_run(rows, tables, programs, rule, later, nodes, n, i)
            now, later, swapped = later, now, not swapped
            n[RUNS] = n[NEXT_RUNS]
            if n[READY] != 0 or n[ERROR] != 0:
                return _At(i, _TO_RELEASE, swapped, interest, every_row, due)
            interest, every_row, due = interest_of(tables, rule, now, n)
        elif not at_first:
            continue
        _note_used(rule, n, used, i, at_first)
    return _At(high, _GO_ON, swapped, interest, every_row, due)


@inlined
def _note_used(rule: Rule, n: Any, used: Any, i: int, at_first: bool) -> None:
    """Row i was matched: was it used, and is what was used before still held by anything?"""
    if at_first or n[CHANGED] != 0:
        used[n[USED]] = i
        n[USED] += 1
    if n[RUNS] == 0:
        n[NODES] = 0
        if not rule.at_start:
            n[USED] = 0


@inlined
def _goes_on(rows: Rows, progress: Progress, now: Runs, n: Any) -> int:
    """The SN of the first start that still lives; what follows the known rows if there is none."""
    return int(rows.sn[now.start[0]]) if n[RUNS] > 0 else progress.end_sn + 1


@compiled
def _hold(rule: Rule, now: Runs, n: Any, used: Any, held: Any) -> None:
    """Mark what an open window needs of what it used; behind '^' that is also its first row."""
    for u in range(n[USED]):
        if rule.at_start or (n[RUNS] > 0 and used[u] >= now.start[0]):
            held[used[u]] = True


@allocating
def _room(nodes: Nodes, n: Any, rule: Rule, tables: Tables) -> Nodes:
    """Room for all nodes that one row can add."""
    needed = n[NODES] + (n[RUNS] + 1) * widest_of(tables)
    capacity = nodes.parent.size
    if needed > rule.max_nodes:
        n[ERROR] = TOO_LARGE
    larger = needed * 2
    aggregates = nodes.agg_int.shape[1]
    grown = Nodes(
        np.empty(larger, np.int64),
        np.empty(larger, np.int64),
        np.empty(larger, np.int64),
        np.empty((larger, aggregates), np.int64),
        np.empty((larger, aggregates), np.float64),
        np.empty((larger, aggregates), np.int64),
        np.empty(larger, np.bool_),
    )
    grown.parent[:capacity] = nodes.parent
    grown.row[:capacity] = nodes.row
    grown.symbol[:capacity] = nodes.symbol
    grown.agg_int[:capacity] = nodes.agg_int
    grown.agg_float[:capacity] = nodes.agg_float
    grown.agg_count[:capacity] = nodes.agg_count
    grown.excluded[:capacity] = nodes.excluded
    return grown
