"""One row: what it does to the runs that wait for it, and the run that begins with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_jobs.cep.arrays import FOREVER, Nodes
from spark_jobs.cep.automaton import Tables
from spark_jobs.cep.bytecode import Programs, extend, fits
from spark_jobs.cep.compiled import compiled, inlined
from spark_jobs.cep.run_state import (
    ACCEPTING,
    CHANGED,
    DONE,
    ERROR,
    NEXT,
    NEXT_RUNS,
    NODES,
    NOTHING,
    PENDING,
    READY,
    RUNS,
    STRICT,
    TIMED,
    TOO_MANY_RUNS,
    WAIT,
    Rows,
    Rule,
    Runs,
)


@inlined
def step_runs(
    rows: Rows, tables: Tables, programs: Programs, rule: Rule, now: Runs, later: Runs, nodes: Nodes, n: Any, i: int
) -> None:
    """Move every entry on over row i, from `now` into `later`."""
    n[NEXT_RUNS] = n[PENDING] = 0
    bits = rows.bits[i]
    decided = -1  # the start of which a match is complete: what comes after it in preference is dropped
    for r in range(n[RUNS]):
        start = now.start[r]
        if start == decided:
            n[CHANGED] = 1
            continue
        kind = now.kind[r]
        if kind in (DONE, ACCEPTING):
            n[PENDING] = 1
        if kind in (DONE, TIMED):
            _push(rule, later, n, start, now.state[r], now.live[r], now.node[r], now.deadline[r], kind)
        elif kind == ACCEPTING:
            if rule.at_end or _hit(programs, nodes, bits & tables.never_after[0], i, now.node[r]):
                n[CHANGED] = 1
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
        n[CHANGED] = 1
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
        n[CHANGED] = 1
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
def start_run(rows: Rows, tables: Tables, programs: Programs, rule: Rule, later: Runs, nodes: Nodes, n: Any, i: int) -> None:
    """Row i as the first row of new runs."""
    before = n[NEXT_RUNS]
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
    if n[NEXT_RUNS] != before:
        n[CHANGED] = 1


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
    node = n[NODES]
    n[NODES] += 1
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
    count = n[NEXT_RUNS]
    if rule.merges and kind == WAIT:
        r = count - 1
        while r >= 0 and (runs.start[r] == start or (rule.dominates and n[PENDING] == 0)):
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
    n[NEXT_RUNS] = count + 1
    if kind in (DONE, TIMED):
        n[READY] = 1


@inlined
def interest_of(tables: Tables, rule: Rule, now: Runs, n: Any) -> Any:
    """Which symbols any entry waits for, whether every row matters, and the first deadline."""
    interest = np.uint64(0)
    every_row = False
    due = FOREVER
    for r in range(n[RUNS]):
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
def start_bits_of(tables: Tables) -> Any:
    """The symbols a match can begin with; True where a match can be empty, so that every row is a start."""
    bits = np.uint64(0)
    for o in range(tables.first[0], tables.first[1]):
        bits |= np.uint64(1) << np.uint64(tables.symbol[o])
    return bits, tables.accept[0] >= 0


@compiled
def widest_of(tables: Tables) -> int:
    """The most options that a state has."""
    widest = 0
    for state in range(tables.first.size - 1):
        widest = max(widest, tables.first[state + 1] - tables.first[state])
    return widest
