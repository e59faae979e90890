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
from spark_jobs.cep.bytecode import Programs, extend, fits
from spark_jobs.cep.compiled import allocating, compiled, inlined
from spark_jobs.cep.kernel import add_floors

WAIT, ACCEPTING, DONE, TIMED = 0, 1, 2, 3
PAST_LAST_ROW, TO_NEXT_ROW, TO_FIRST, TO_LAST, NO_SKIP = range(5)
NO_WINDOW, BY_COUNT, BY_TIME, PER_KEY, OPENED = range(5)
STRICT, NEXT, ANY = range(3)
TOO_MANY_RUNS, TOO_LONG, TOO_LARGE = 1, 2, 3

# As 64-bit numbers and not as literals, for each of which numba would compile every function they are handed to once more.
NEVER: Any = np.int64(FOREVER)
NO_ROW: Any = np.int64(0)
NOTHING: Any = np.int64(-1)

# Counters, in one array so that every function can move them on.
_RUNS, _NEXT, _NODES, ERROR, MATCHES, BOUND, _RESUME, _USED, _CHANGED, _READY, _PENDING = range(11)

# Why a walk over rows has stopped.
_GO_ON, _TO_RELEASE, _TO_EXPIRE, _TO_GROW = range(4)


class Rows(NamedTuple):
    """The rows of one shard that can matter, sorted by key, then by SN."""

    offsets: Any  # key k owns rows offsets[k] .. offsets[k + 1]
    bits: Any  # uint64: bit s is set where the columnar part of symbol s holds
    sn: Any
    ts: Any  # stream time, never decreasing in SN
    opens: Any  # bool: opens a window
    closes: Any  # bool: closes a window
    known: Any  # per key: the stream time up to which WITHIN can have expired


class Rule(NamedTuple):
    """What counts as a match, and what it consumes."""

    within: int
    within_steps: int
    skip: int
    skip_symbols: Any  # uint64, a bit per symbol of TO FIRST, TO LAST
    all_runs: bool
    timed_out: bool
    at_start: bool
    at_end: bool
    merges: bool  # runs of one start in the same state cannot be told apart: the first one stands for all
    dominates: bool  # .. nor can those of different starts, and a match of the first one consumes the others
    max_runs: int
    max_length: int
    max_nodes: int


class Split(NamedTuple):
    """The windows."""

    kind: int
    size: int
    slide: int
    by_rows: bool
    first_window: int
    last_window: int
    report_floors: int


class Progress(NamedTuple):
    """How far the log is known. What was decided at or before `after_sn` and `since` has been reported already."""

    after_sn: int
    end_sn: int
    since: int
    watermark: int
    complete: bool


class Runs(NamedTuple):
    start: Any
    state: Any
    live: Any
    node: Any
    deadline: Any
    kind: Any


class Out(NamedTuple):
    rows: Any
    symbols: Any
    excluded: Any
    head: Any  # (matches, 6): window, first row, at_ts, at_sn, timed out, rows bound


class _At(NamedTuple):
    """The row a walk has come to, why it stopped there, and what matters of the rows from there on (`_interest`)."""

    row: Any
    why: Any
    swapped: Any  # `now` and `later` have changed places
    interest: Any
    every_row: Any
    due: Any


def new_runs(capacity: int) -> Runs:
    whole = [np.empty(capacity, np.int64) for _ in range(5)]
    return Runs(whole[0], whole[1], np.empty(capacity, np.uint64), whole[2], whole[3], whole[4])


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
    n = np.zeros(11, np.int64)
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
        begin = first if on_grid else _floor(rows, floors, key, NO_ROW, first, end)
        open_count, held_from = 0, end
        keep_from = end  # windows that begin at a row: everything from the first open one on
        low, high, number = begin, begin, split.first_window
        while low < end:
            low, high, number = _next_window(rows, split, low, high, number, end)
            if low == end or number > split.last_window:
                break
            close_ts, close_sn = _close_of(rows, split, progress, boundary_ts, first_boundary, low, high, number)
            is_open = close_ts > progress.watermark and not progress.complete

            n[_RUNS] = n[_NODES] = n[_USED] = 0
            n[_RESUME] = low
            first_row = _floor(rows, floors, key, number, low, high) if on_grid else low
            at = _At(first_row, _GO_ON, False, np.uint64(0), False, NEVER)
            while True:
                at = _walk(rows, tables, programs, rule, now, later, nodes, n, used, at, low, high)
                if at.swapped:
                    now, later = later, now
                if at.why == _TO_RELEASE:
                    out = _release(rows, rule, progress, now, nodes, n, out, number, rows.ts[at.row], rows.sn[at.row])
                    _note_used(rule, n, used, at.row, rule.at_start and at.row == low)
                elif at.why == _TO_EXPIRE:
                    out = _expire(rows, tables, rule, progress, now, nodes, n, out, number, at.due)
                elif at.why == _TO_GROW:
                    nodes = _room(nodes, n, rule, tables)
                if n[ERROR] != 0:
                    return out, n, held, at.row, floors_out
                if at.why == _GO_ON:
                    break
                interest, every_row, due = _interest(tables, rule, now, n)
                at = _At(at.row + (at.why == _TO_RELEASE), _GO_ON, False, interest, every_row, due)
            due = at.due

            # A deadline at the very time at which the window closes is the same instant: what it decides comes out with that.
            last = close_ts if close_sn != 0 else close_ts - 1
            while due <= min(last, rows.known[key]):
                out = _expire(rows, tables, rule, progress, now, nodes, n, out, number, due)
                _, _, due = _interest(tables, rule, now, n)
            if close_sn == 0 and due == close_ts and due <= rows.known[key]:
                _lapse(tables, rule, now, n, due)
            if is_open:
                _hold(rule, now, n, used, held)
                if n[_RUNS] > 0:
                    held_from = min(held_from, now.start[0])
                if split.report_floors and on_grid:
                    opened[open_count, 0] = number
                    opened[open_count, 1] = _goes_on(rows, progress, now, n)
                    open_count += 1
            else:
                if close_ts > progress.watermark:  # the input ends before the window does
                    close_ts, close_sn = NEVER, NO_ROW
                out = _close(rows, rule, progress, now, nodes, n, out, number, close_ts, close_sn)
            if n[ERROR] != 0:
                return out, n, held, low, floors_out
            if _is_needed(split, low, end, is_open):
                keep_from = min(keep_from, low)
            if split.kind == NO_WINDOW:
                if n[_RUNS] > 0:
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
    start_bits, any_start = _start_bits(tables)
    widest = _widest(tables)
    interest, every_row, due, swapped = at.interest, at.every_row, at.due, False
    for i in range(at.row, high):
        if due <= rows.ts[i]:
            return _At(i, _TO_EXPIRE, swapped, interest, every_row, due)
        bits = rows.bits[i]
        at_first = rule.at_start and i == low
        starts = (any_start or (bits & start_bits) != 0) and (at_first or not rule.at_start)
        if starts or every_row or (bits & interest) != 0:
            if n[_NODES] + (n[_RUNS] + 1) * widest > nodes.parent.size:
                return _At(i, _TO_GROW, swapped, interest, every_row, due)
            n[_CHANGED] = n[_READY] = 0
            _step(rows, tables, programs, rule, now, later, nodes, n, i)
            if starts and i >= n[_RESUME]:
                _start(rows, tables, programs, rule, later, nodes, n, i)
            now, later, swapped = later, now, not swapped
            n[_RUNS] = n[_NEXT]
            if n[_READY] != 0 or n[ERROR] != 0:
                return _At(i, _TO_RELEASE, swapped, interest, every_row, due)
            interest, every_row, due = _interest(tables, rule, now, n)
        elif not at_first:
            continue
        _note_used(rule, n, used, i, at_first)
    return _At(high, _GO_ON, swapped, interest, every_row, due)


@inlined
def _note_used(rule: Rule, n: Any, used: Any, i: int, at_first: bool) -> None:
    """Row i was matched: was it used, and is what was used before still held by anything?"""
    if at_first or n[_CHANGED] != 0:
        used[n[_USED]] = i
        n[_USED] += 1
    if n[_RUNS] == 0:
        n[_NODES] = 0
        if not rule.at_start:
            n[_USED] = 0


@compiled
def _floor(rows: Rows, floors: KeyFloors, key: int, number: int, low: int, high: int) -> int:
    """The row from which a window goes on; `high` if none of its rows is left. Without a grid, number 0 is the whole key."""
    for f in range(floors.offsets[key], floors.offsets[key + 1]):
        if floors.low[f] <= number <= floors.high[f]:
            while low < high and rows.sn[low] < floors.sn[f]:
                low += 1
    return low


@inlined
def _goes_on(rows: Rows, progress: Progress, now: Runs, n: Any) -> int:
    """The SN of the first start that still lives; what follows the known rows if there is none."""
    return int(rows.sn[now.start[0]]) if n[_RUNS] > 0 else progress.end_sn + 1


@compiled
def _next_window(rows: Rows, split: Split, low: int, high: int, number: int, end: int) -> Any:
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
def _close_of(
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
def _is_needed(split: Split, low: int, end: int, is_open: bool) -> bool:
    """Must every row from this window's first one on be kept, because the window, or the next one, is counted from there?"""
    if split.kind == PER_KEY:
        return low + max(split.size, split.slide) > end
    return split.kind == OPENED and is_open


@compiled
def _hold(rule: Rule, now: Runs, n: Any, used: Any, held: Any) -> None:
    """Mark what an open window needs of what it used; behind '^' that is also its first row."""
    for u in range(n[_USED]):
        if rule.at_start or (n[_RUNS] > 0 and used[u] >= now.start[0]):
            held[used[u]] = True


@inlined
def _step(
    rows: Rows, tables: Tables, programs: Programs, rule: Rule, now: Runs, later: Runs, nodes: Nodes, n: Any, i: int
) -> None:
    """Move every entry on over row i, from `now` into `later`."""
    n[_NEXT] = n[_PENDING] = 0
    bits = rows.bits[i]
    decided = -1  # the start of which a match is complete: what comes after it in preference is dropped
    for r in range(n[_RUNS]):
        start = now.start[r]
        if start == decided:
            n[_CHANGED] = 1
            continue
        kind = now.kind[r]
        if kind in (DONE, ACCEPTING):
            n[_PENDING] = 1
        if kind in (DONE, TIMED):
            _push(rule, later, n, start, now.state[r], now.live[r], now.node[r], now.deadline[r], kind)
        elif kind == ACCEPTING:
            if rule.at_end or _hit(programs, nodes, bits & tables.never_after[0], i, now.node[r]):
                n[_CHANGED] = 1
            else:
                _push(rule, later, n, start, now.state[r], now.live[r], now.node[r], now.deadline[r], kind)
        elif _move(rows, tables, programs, rule, now, later, nodes, n, i, r):
            decided = start
        if n[ERROR] != 0:
            return


@inlined
def _move(
    rows: Rows, tables: Tables, programs: Programs, rule: Rule, now: Runs, later: Runs, nodes: Nodes, n: Any, i: int, r: int
) -> bool:
    """A waiting run meets row i: the fitting options take it, in order, then it may be passed over."""
    start, state, live, node = now.start[r], now.state[r], now.live[r], now.node[r]
    bits = rows.bits[i]
    fitted = False
    first = tables.first[state]
    for o in range(first, tables.first[state + 1]):
        if (live >> np.uint64(o - first)) & np.uint64(1) == 0:
            continue
        symbol = tables.symbol[o]
        if (bits >> np.uint64(symbol)) & np.uint64(1) == 0 or not fits(programs, symbol, i, node, nodes):
            continue
        fitted = True
        n[_CHANGED] = 1
        if _enter(rows, tables, programs, rule, later, nodes, n, start, tables.target[o], node, i, symbol):
            return True
        if n[ERROR] != 0:
            return True
    left = np.uint64(0)
    for o in range(first, tables.first[state + 1]):
        bit = np.uint64(1) << np.uint64(o - first)
        if live & bit == 0 or tables.connector[o] == STRICT or (fitted and tables.connector[o] == NEXT):
            continue
        if not _hit(programs, nodes, bits & tables.negated[o], i, node):
            left |= bit
    if left != live:
        n[_CHANGED] = 1
    if left != 0:
        _push(rule, later, n, start, state, left, node, now.deadline[r], WAIT)
    return False


@inlined
def _hit(programs: Programs, nodes: Nodes, negated: Any, i: int, node: int) -> bool:
    """Does row i fit one of the negated symbols?"""
    symbol: Any = np.int64(0)
    while negated != 0:
        if negated & np.uint64(1) and fits(programs, symbol, i, node, nodes):
            return True
        negated >>= np.uint64(1)
        symbol += 1
    return False


@inlined
def _start(rows: Rows, tables: Tables, programs: Programs, rule: Rule, later: Runs, nodes: Nodes, n: Any, i: int) -> None:
    """Row i as the first row of new runs."""
    before = n[_NEXT]
    accept = tables.accept[0]
    empty = accept >= 0 and not rule.at_end and tables.never_after[0] == 0
    for o in range(tables.first[0], tables.first[1]):
        if empty and o == accept:
            _push(rule, later, n, i, 0, np.uint64(0), -1, FOREVER, DONE)
            empty = False
            if not rule.all_runs:
                break
        symbol = tables.symbol[o]
        if (rows.bits[i] >> np.uint64(symbol)) & np.uint64(1) == 0 or not fits(programs, symbol, i, NOTHING, nodes):
            continue
        if _enter(rows, tables, programs, rule, later, nodes, n, i, tables.target[o], NOTHING, i, symbol):
            empty = False
            break
        if n[ERROR] != 0:
            return
    if empty:
        _push(rule, later, n, i, 0, np.uint64(0), -1, FOREVER, DONE)
    if n[_NEXT] != before:
        n[_CHANGED] = 1


@inlined
def _enter(
    rows: Rows,
    tables: Tables,
    programs: Programs,
    rule: Rule,
    later: Runs,
    nodes: Nodes,
    n: Any,
    start: int,
    state: int,
    parent: int,
    i: int,
    symbol: int,
) -> bool:
    """Take row i and wait in `state`, or accept. True if the match is complete and preferred to all that follows."""
    node = n[_NODES]
    n[_NODES] += 1
    nodes.parent[node] = parent
    nodes.row[node] = i
    nodes.symbol[node] = symbol
    nodes.excluded[node] = tables.excluded[state]
    extend(programs, nodes, node)
    deadline = FOREVER
    if rule.within > 0:
        deadline = rows.ts[start] + rule.within
    if rule.within_steps > 0:
        deadline = min(deadline, rows.ts[i] + rule.within_steps)
    options = tables.first[state + 1] - tables.first[state]
    every = (np.uint64(1) << np.uint64(options)) - np.uint64(1)
    accept = tables.accept[state]
    if accept < 0:
        _push(rule, later, n, start, state, every, node, deadline, WAIT)
        return False
    before = (np.uint64(1) << np.uint64(accept)) - np.uint64(1)
    if rule.at_end or tables.never_after[0] != 0:
        # '$' hides no option, because no row can come after it; a negation at the end does, as any accept.
        waits = every if rule.all_runs or rule.at_end else before
        if accept > 0:
            _push(rule, later, n, start, state, waits, node, deadline, WAIT)
        _push(rule, later, n, start, state, every, node, FOREVER if rule.at_end else deadline, ACCEPTING)
        if accept == 0 and waits != 0:
            _push(rule, later, n, start, state, waits, node, deadline, WAIT)
        return False
    if rule.all_runs:
        _push(rule, later, n, start, state, every, node, FOREVER, DONE)
        if options > 0:
            _push(rule, later, n, start, state, every, node, deadline, WAIT)
        return False
    if accept > 0:
        _push(rule, later, n, start, state, before, node, deadline, WAIT)
    _push(rule, later, n, start, state, every, node, FOREVER, DONE)
    return True


@inlined
def _push(rule: Rule, runs: Runs, n: Any, start: int, state: int, live: Any, node: int, deadline: int, kind: int) -> None:
    """Append an entry, unless one before it in the order has the same future.

    That of another start must not stand for this one while a match is held back that ended earlier: coming out, it may consume
    the one start and leave the other. What completes from now on ends at this row or later, and consumes both.
    """
    count = n[_NEXT]
    if rule.merges and kind == WAIT:
        r = count - 1
        while r >= 0 and (runs.start[r] == start or (rule.dominates and n[_PENDING] == 0)):
            if runs.state[r] == state and runs.live[r] == live and runs.kind[r] == WAIT and runs.deadline[r] >= deadline:
                return
            r -= 1
    if count == rule.max_runs:
        n[ERROR] = TOO_MANY_RUNS
        return
    runs.start[count] = start
    runs.state[count] = state
    runs.live[count] = live
    runs.node[count] = node
    runs.deadline[count] = deadline
    runs.kind[count] = kind
    n[_NEXT] = count + 1
    if kind in (DONE, TIMED):
        n[_READY] = 1


@allocating
def _expire(
    rows: Rows,
    tables: Tables,
    rule: Rule,
    progress: Progress,
    now: Runs,
    nodes: Nodes,
    n: Any,
    out: Out,
    number: int,
    due: int,
) -> Out:
    """Stream time reaches `due`: what that decides comes out."""
    _lapse(tables, rule, now, n, due)
    return _release(rows, rule, progress, now, nodes, n, out, number, due, NO_ROW)


@compiled
def _lapse(tables: Tables, rule: Rule, now: Runs, n: Any, due: int) -> None:
    """Stream time reaches `due`: waiting runs end, accepts that only waited for this are complete."""
    kept = 0
    decided = -1
    for r in range(n[_RUNS]):
        kind = now.kind[r]
        if now.start[r] == decided:
            continue
        if now.deadline[r] <= due:
            if kind == ACCEPTING:
                kind = DONE
                if not rule.all_runs:
                    decided = now.start[r]
            elif not rule.timed_out or (rule.all_runs and _accepted(tables, rule, now, n, r)):
                continue
            else:
                kind = TIMED
            _copy(now, r, now, kept)
            now.deadline[kept] = FOREVER
        else:
            _copy(now, r, now, kept)
        now.kind[kept] = kind
        kept += 1
    n[_RUNS] = kept


@compiled
def _accepted(tables: Tables, rule: Rule, now: Runs, n: Any, r: int) -> bool:
    """Has the rows of waiting run r been accepted as a match of its own, or is that about to happen?"""
    if tables.accept[now.state[r]] < 0 or rule.at_end:
        return False
    if tables.never_after[0] == 0:
        return True
    found = False
    for other in range(n[_RUNS]):
        found = found or (now.node[other] == now.node[r] and now.kind[other] != WAIT)
    return found


@allocating
def _close(
    rows: Rows,
    rule: Rule,
    progress: Progress,
    now: Runs,
    nodes: Nodes,
    n: Any,
    out: Out,
    number: int,
    at_ts: int,
    at_sn: int,
) -> Out:
    """The window ends: nothing more can be taken, what is accepting is complete."""
    kept = 0
    decided = -1
    for r in range(n[_RUNS]):
        if now.kind[r] == WAIT or now.start[r] == decided:
            continue
        _copy(now, r, now, kept)
        if now.kind[kept] == ACCEPTING:
            now.kind[kept] = DONE
            if not rule.all_runs:
                decided = now.start[kept]
        kept += 1
    n[_RUNS] = kept
    return _release(rows, rule, progress, now, nodes, n, out, number, at_ts, at_sn)


@inlined
def _copy(source: Runs, r: int, target: Runs, to: int) -> None:
    target.start[to] = source.start[r]
    target.state[to] = source.state[r]
    target.live[to] = source.live[r]
    target.node[to] = source.node[r]
    target.deadline[to] = source.deadline[r]
    target.kind[to] = source.kind[r]


@allocating
def _release(
    rows: Rows, rule: Rule, progress: Progress, now: Runs, nodes: Nodes, n: Any, out: Out, number: int, at_ts: int, at_sn: int
) -> Out:
    """Put out what is decided, in order, and drop what it consumes."""
    if rule.all_runs:
        return _release_all(rows, rule, progress, now, nodes, n, out, number, at_ts, at_sn)
    in_turn = rule.skip != TO_NEXT_ROW and rule.skip != NO_SKIP
    kept = 0
    r = 0
    drop_below = -1
    waiting = False
    while r < n[_RUNS]:
        start = now.start[r]
        group = r
        while r < n[_RUNS] and now.start[r] == start:
            r += 1
        if start < drop_below:
            continue
        best = group
        while best < r and now.kind[best] == TIMED:
            best += 1
        decided = (best == r or now.kind[best] == DONE) and not (in_turn and waiting)
        if not decided:
            waiting = True
            for g in range(group, r):
                _copy(now, g, now, kept)
                kept += 1
            continue
        if n[_CHANGED] == 0:
            n[_CHANGED] = 1
        timed = best == r
        node = now.node[group] if timed else now.node[best]
        out = _emit(rows, rule, progress, nodes, n, out, node, start, number, at_ts, at_sn, timed)
        if in_turn and not timed:
            drop_below = _resume(rule, nodes, node, start)
            n[_RESUME] = max(n[_RESUME], drop_below)
    n[_RUNS] = kept
    return out


@allocating
def _release_all(
    rows: Rows, rule: Rule, progress: Progress, now: Runs, nodes: Nodes, n: Any, out: Out, number: int, at_ts: int, at_sn: int
) -> Out:
    r = 0
    emitted_from = n[MATCHES]
    while r < n[_RUNS]:
        if now.kind[r] != DONE and now.kind[r] != TIMED:
            r += 1
            continue
        n[_CHANGED] = 1
        start, node, timed = now.start[r], now.node[r], now.kind[r] == TIMED
        if not _known(nodes, n, out, node, start, timed, emitted_from):
            out = _emit(rows, rule, progress, nodes, n, out, node, start, number, at_ts, at_sn, timed)
        drop_below = -1
        if rule.skip != NO_SKIP and rule.skip != TO_NEXT_ROW and not timed:
            drop_below = _resume(rule, nodes, node, start)
            n[_RESUME] = max(n[_RESUME], drop_below)
        kept = following = 0
        for k in range(n[_RUNS]):
            consumed = not timed and rule.skip != NO_SKIP and (now.start[k] == start or now.start[k] < drop_below)
            if k == r:
                following = kept
            elif not consumed:
                _copy(now, k, now, kept)
                kept += 1
        n[_RUNS] = kept
        r = following
    return out


@compiled
def _known(nodes: Nodes, n: Any, out: Out, node: int, start: int, timed: bool, emitted_from: int) -> bool:
    """Has a match with the same rows and symbols come out at this instant?"""
    end = n[BOUND]
    for m in range(n[MATCHES] - 1, emitted_from - 1, -1):
        length = out.head[m, 5]
        if out.head[m, 1] == start and (out.head[m, 4] != 0) == timed:
            at, k = node, end - 1
            while at >= 0 and k >= end - length and out.rows[k] == nodes.row[at] and out.symbols[k] == nodes.symbol[at]:
                at = nodes.parent[at]
                k -= 1
            if at < 0 and k == end - length - 1:
                return True
        end -= length
    return False


@compiled
def _resume(rule: Rule, nodes: Nodes, node: int, start: int) -> int:
    """The first row at which a match may start after this one."""
    if node < 0:
        return start + 1
    if rule.skip == PAST_LAST_ROW:
        return int(nodes.row[node]) + 1
    found = start
    while node >= 0:
        if (rule.skip_symbols >> np.uint64(nodes.symbol[node])) & np.uint64(1):
            found = nodes.row[node]
            if rule.skip == TO_LAST:
                break
        node = nodes.parent[node]
    return max(found, start + 1)


@allocating
def _emit(
    rows: Rows,
    rule: Rule,
    progress: Progress,
    nodes: Nodes,
    n: Any,
    out: Out,
    node: int,
    start: int,
    number: int,
    at_ts: int,
    at_sn: int,
    timed: bool,
) -> Out:
    """Write a match out, unless an earlier batch did."""
    if at_sn <= progress.after_sn if at_sn > 0 else at_ts <= progress.since:
        return out
    length = 0
    at = node
    while at >= 0:
        length += 1
        at = nodes.parent[at]
    if length > rule.max_length:
        n[ERROR] = TOO_LONG
        return out
    m, end = n[MATCHES], n[BOUND] + length
    if m == out.head.shape[0] or end > out.rows.size:
        out = _grown(out, max(m + 1, out.head.shape[0]), max(end, out.rows.size))
    at = node
    for k in range(end - 1, n[BOUND] - 1, -1):
        out.rows[k] = nodes.row[at]
        out.symbols[k] = nodes.symbol[at]
        out.excluded[k] = nodes.excluded[at]
        at = nodes.parent[at]
    out.head[m, 0] = number
    out.head[m, 1] = start
    out.head[m, 2] = at_ts
    out.head[m, 3] = at_sn
    out.head[m, 4] = timed
    out.head[m, 5] = length
    n[MATCHES] = m + 1
    n[BOUND] = end
    return out


@allocating
def _grown(out: Out, matches: int, bound: int) -> Out:
    rows = np.empty(bound * 2, np.int64)
    symbols = np.empty(bound * 2, np.int64)
    excluded = np.empty(bound * 2, np.bool_)
    head = np.empty((matches * 2, 6), np.int64)
    rows[: out.rows.size] = out.rows
    symbols[: out.symbols.size] = out.symbols
    excluded[: out.excluded.size] = out.excluded
    head[: out.head.shape[0]] = out.head
    return Out(rows, symbols, excluded, head)


@allocating
def _room(nodes: Nodes, n: Any, rule: Rule, tables: Tables) -> Nodes:
    """Room for all nodes that one row can add."""
    needed = n[_NODES] + (n[_RUNS] + 1) * _widest(tables)
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


@compiled
def _widest(tables: Tables) -> int:
    """The most options that a state has."""
    widest = 0
    for state in range(tables.first.size - 1):
        widest = max(widest, tables.first[state + 1] - tables.first[state])
    return widest


@inlined
def _interest(tables: Tables, rule: Rule, now: Runs, n: Any) -> Any:
    """Which symbols any entry waits for, whether every row matters, and the first deadline."""
    interest = np.uint64(0)
    every_row = False
    due = FOREVER
    for r in range(n[_RUNS]):
        due = min(due, now.deadline[r])
        if now.kind[r] == ACCEPTING:
            interest |= tables.never_after[0]
            every_row = every_row or rule.at_end
        elif now.kind[r] == WAIT:
            first = tables.first[now.state[r]]
            for o in range(first, tables.first[now.state[r] + 1]):
                if (now.live[r] >> np.uint64(o - first)) & np.uint64(1):
                    interest |= (np.uint64(1) << np.uint64(tables.symbol[o])) | tables.negated[o]
                    every_row = every_row or tables.connector[o] == STRICT
    return interest, every_row, due


@compiled
def _start_bits(tables: Tables) -> Any:
    """The symbols a match can begin with; True where a match can be empty, so that every row is a start."""
    bits = np.uint64(0)
    for o in range(tables.first[0], tables.first[1]):
        bits |= np.uint64(1) << np.uint64(tables.symbol[o])
    return bits, tables.accept[0] >= 0


@inlined
def _position(split: Split, rows: Rows, i: int) -> int:
    return int(rows.sn[i] - 1 if split.kind == BY_COUNT else rows.ts[i])


@inlined
def _lowest_window(split: Split, rows: Rows, i: int) -> int:
    """The first window that contains row i, or the next one to open where the slide leaves gaps."""
    return (_position(split, rows, i) - split.size) // split.slide + 2
