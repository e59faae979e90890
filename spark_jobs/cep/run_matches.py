"""What is decided, by a row, by time or by the end of a window: it comes out in order, and consumes what follows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_jobs.cep.arrays import FOREVER, Nodes
from spark_jobs.cep.automaton import Tables
from spark_jobs.cep.compiled import allocating, compiled
from spark_jobs.cep.run_state import (
    ACCEPTING,
    BOUND,
    CHANGED,
    DONE,
    ERROR,
    MATCHES,
    NO_ROW,
    NO_SKIP,
    PAST_LAST_ROW,
    RESUME,
    RUNS,
    TIMED,
    TO_LAST,
    TO_NEXT_ROW,
    TOO_LONG,
    WAIT,
    Out,
    Progress,
    Rows,
    Rule,
    Runs,
    copy_run,
)


@allocating
def expire(
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
    lapse(tables, rule, now, n, due)
    return release(rows, rule, progress, now, nodes, n, out, number, due, NO_ROW)


@compiled
def lapse(tables: Tables, rule: Rule, now: Runs, n: Any, due: int) -> None:
    """Stream time reaches `due`: waiting runs end, accepts that only waited for this are complete."""
    kept = 0
    decided = -1
    for r in range(n[RUNS]):
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
            copy_run(now, r, now, kept)
            now.deadline[kept] = FOREVER
        else:
            copy_run(now, r, now, kept)
        now.kind[kept] = kind
        kept += 1
    n[RUNS] = kept


@compiled
def _accepted(tables: Tables, rule: Rule, now: Runs, n: Any, r: int) -> bool:
    """Has the rows of waiting run r been accepted as a match of its own, or is that about to happen?"""
    if tables.accept[now.state[r]] < 0 or rule.at_end:
        return False
    if tables.never_after[0] == 0:
        return True
    found = False
    for other in range(n[RUNS]):
        found = found or (now.node[other] == now.node[r] and now.kind[other] != WAIT)
    return found


@allocating
def close_window(
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
    for r in range(n[RUNS]):
        if now.kind[r] == WAIT or now.start[r] == decided:
            continue
        copy_run(now, r, now, kept)
        if now.kind[kept] == ACCEPTING:
            now.kind[kept] = DONE
            if not rule.all_runs:
                decided = now.start[kept]
        kept += 1
    n[RUNS] = kept
    return release(rows, rule, progress, now, nodes, n, out, number, at_ts, at_sn)


@allocating
def release(
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
    while r < n[RUNS]:
        start = now.start[r]
        group = r
        while r < n[RUNS] and now.start[r] == start:
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
                copy_run(now, g, now, kept)
                kept += 1
            continue
        if n[CHANGED] == 0:
            n[CHANGED] = 1
        timed = best == r
        node = now.node[group] if timed else now.node[best]
        out = _emit(rows, rule, progress, nodes, n, out, node, start, number, at_ts, at_sn, timed)
        if in_turn and not timed:
            drop_below = _resume(rule, nodes, node, start)
            n[RESUME] = max(n[RESUME], drop_below)
    n[RUNS] = kept
    return out


@allocating
def _release_all(
    rows: Rows, rule: Rule, progress: Progress, now: Runs, nodes: Nodes, n: Any, out: Out, number: int, at_ts: int, at_sn: int
) -> Out:
    r = 0
    emitted_from = n[MATCHES]
    while r < n[RUNS]:
        if now.kind[r] != DONE and now.kind[r] != TIMED:
            r += 1
            continue
        n[CHANGED] = 1
        start, node, timed = now.start[r], now.node[r], now.kind[r] == TIMED
        if not _known(nodes, n, out, node, start, timed, emitted_from):
            out = _emit(rows, rule, progress, nodes, n, out, node, start, number, at_ts, at_sn, timed)
        drop_below = -1
        if rule.skip != NO_SKIP and rule.skip != TO_NEXT_ROW and not timed:
            drop_below = _resume(rule, nodes, node, start)
            n[RESUME] = max(n[RESUME], drop_below)
        kept = following = 0
        for k in range(n[RUNS]):
            consumed = not timed and rule.skip != NO_SKIP and (now.start[k] == start or now.start[k] < drop_below)
            if k == r:
                following = kept
            elif not consumed:
                copy_run(now, k, now, kept)
                kept += 1
        n[RUNS] = kept
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
