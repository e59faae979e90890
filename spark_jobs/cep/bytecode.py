"""Cross-event predicates in the kernel: a stack machine over arrays, so that one compiled kernel serves every pattern.

What depends on one row alone was evaluated by Arrow into *slots*, one value per row. The byte code fetches slots at
the rows a run has bound, and combines them. Values are int64 or float64 with a state: NULL, fine, or failed. A failed
value (an integer overflow) stays failed through everything that needs it; only if a predicate's result is failed,
`Programs.failed` says so and the caller must raise: a wrapped or rounded number never decides about a match.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_jobs.cep.arrays import Nodes
from spark_jobs.cep.compiled import compiled, inlined

# States of a value.
NULL, FINE, FAILED = 0, 1, 2

# Operations. Those from NEG on replace the top value, those from ADD on the two top values, SELECT the three top ones.
CONST_INT, CONST_FLOAT, PUSH_NULL, SLOT_INT, SLOT_FLOAT, AGG_INT, AGG_FLOAT, AGG_COUNT = range(8)
NEG_INT, NEG_FLOAT, ABS_INT, ABS_FLOAT, NOT, IS_NULL, SCALE, TO_FLOAT, FLOOR, CEIL = range(8, 18)
ADD_INT, SUB_INT, MUL_INT, MOD_INT, ADD_FLOAT, SUB_FLOAT, MUL_FLOAT, DIV_FLOAT, MOD_FLOAT = range(18, 27)
EQ_INT, NE_INT, GT_INT, GE_INT, LT_INT, LE_INT = range(27, 33)
EQ_FLOAT, NE_FLOAT, GT_FLOAT, GE_FLOAT, LT_FLOAT, LE_FLOAT = range(33, 39)
AND, OR, COALESCE = range(39, 42)
SELECT = 42

# Ways to a row: the candidate; the j-th last bound row of some symbols; the row an aggregate remembers.
CANDIDATE, WALK, LAST_SEEN, FIRST_SEEN = range(4)

# Aggregates; the last two remember a row.
COUNT, SUM_INT, SUM_FLOAT, MIN_INT, MIN_FLOAT, MAX_INT, MAX_FLOAT, FIRST_ROW, LAST_ROW = range(9)

SMALLEST = -(2**63)


class Programs(NamedTuple):
    """Byte code, slots and aggregates of one operator and shard. Has scratch space: one thread at a time."""

    code: Any  # (instructions, 3): operation and two operands
    begin: Any  # per symbol, where its code begins ..
    end: Any  # .. and ends; begin == end: it has no cross-event part
    const_int: Any
    const_float: Any
    ints: Any  # (slots, rows + 1) int64; the last column is the value where there is no such row
    ints_state: Any  # (slots, rows + 1) int8
    floats: Any
    floats_state: Any
    ways: Any  # (ways, 4): kind, mask of symbols, steps back, aggregate
    aggregates: Any  # per aggregate its kind
    agg_mask: Any  # .. the symbols whose rows count
    agg_slot: Any  # .. the slot that goes in, -1: the row itself
    agg_offset: Any  # .. for FIRST_ROW, how many rows to let pass
    stack_int: Any
    stack_float: Any
    stack_state: Any
    failed: Any  # [0] 1 + the symbol whose predicate overflowed, 0 if none has


@inlined
def fits(programs: Programs, symbol: int, row: int, node: int, nodes: Nodes) -> bool:
    """Is the cross-event part of `symbol` true for the candidate `row` after what `node` (-1: nothing) bound?"""
    if programs.begin[symbol] == programs.end[symbol]:
        return True
    state = _run(programs, symbol, row, node, nodes)
    if state == FAILED:
        programs.failed[0] = symbol + 1
    return bool(state == FINE and programs.stack_int[0] != 0)


@inlined
def extend(programs: Programs, nodes: Nodes, node: int) -> None:
    """Fill the aggregates of a new `node`, whose parent, row and symbol are set."""
    if programs.aggregates.shape[0]:
        _extend(programs, nodes, node)


@compiled
def _extend(programs: Programs, nodes: Nodes, node: int) -> None:
    parent, row, symbol = nodes.parent[node], nodes.row[node], nodes.symbol[node]
    for g in range(programs.aggregates.shape[0]):
        count, i, f = 0, 0, 0.0
        if parent >= 0:
            count, i, f = nodes.agg_count[parent, g], nodes.agg_int[parent, g], nodes.agg_float[parent, g]
        if (programs.agg_mask[g] >> symbol) & 1:
            count, i, f = _with_row(programs, g, row, count, i, f)
        nodes.agg_count[node, g], nodes.agg_int[node, g], nodes.agg_float[node, g] = count, i, f


@inlined
def _with_row(programs: Programs, g: int, row: int, count: int, i: int, f: float) -> Any:
    """Aggregate `g` with one more row. A count of -1 marks a sum that has overflowed."""
    kind, slot = programs.aggregates[g], programs.agg_slot[g]
    if kind == LAST_ROW:
        return count + 1, row, f
    if kind == FIRST_ROW:
        return count + 1, (row if count == programs.agg_offset[g] else i), f
    if kind == COUNT and slot == -1:
        return count + 1, i, f
    if kind in (SUM_FLOAT, MIN_FLOAT, MAX_FLOAT):
        if programs.floats_state[slot, row] != FINE:
            return count, i, f
        x = programs.floats[slot, row]
        if kind == SUM_FLOAT:
            return count + 1, i, f + x
        smaller = _float_less(x, f) if kind == MIN_FLOAT else _float_less(f, x)
        return count + 1, i, (x if count == 0 or smaller else f)
    return _with_int(programs, kind, slot, row, count, i, f)


@inlined
def _with_int(programs: Programs, kind: int, slot: int, row: int, count: int, i: int, f: float) -> Any:
    if kind == COUNT:
        # The slot of COUNT(expression) has its states among the integers or, below -1, among the doubles.
        state = programs.ints_state[slot, row] if slot >= 0 else programs.floats_state[-2 - slot, row]
        return (count + 1 if state == FINE else count), i, f
    if count < 0 or programs.ints_state[slot, row] != FINE:
        return count, i, f
    x = programs.ints[slot, row]
    if kind == SUM_INT:
        total = i + x
        if ((i ^ total) & (x ^ total)) < 0:
            return -1, i, f
        return count + 1, total, f
    smaller = x < i if kind == MIN_INT else x > i
    return count + 1, (x if count == 0 or smaller else i), f


@inlined
def _float_less(left: float, right: float) -> bool:
    """NaN is larger than every number, so that MIN and MAX do not depend on the order of rows."""
    return left < right or (right != right and left == left)


@inlined
def _row_of(programs: Programs, way: int, symbol: int, row: int, node: int, nodes: Nodes) -> Any:
    """The row a reference means, -1 if there is none."""
    kind, mask, back, g = programs.ways[way, 0], programs.ways[way, 1], programs.ways[way, 2], programs.ways[way, 3]
    if kind == CANDIDATE:
        return row
    if kind == WALK:
        while node >= 0:
            if (mask >> nodes.symbol[node]) & 1:
                if back == 0:
                    return nodes.row[node]
                back -= 1
            node = nodes.parent[node]
        return -1
    count, found = 0, -1
    if node >= 0:
        count, found = nodes.agg_count[node, g], nodes.agg_int[node, g]
    if kind == LAST_SEEN:
        return found if count > 0 else -1
    if count > programs.agg_offset[g]:
        return found
    return row if (mask >> symbol) & 1 and count == programs.agg_offset[g] else -1


@inlined
def _aggregate(programs: Programs, g: int, symbol: int, row: int, node: int, nodes: Nodes) -> Any:
    """Aggregate `g` over what `node` has bound and, where it counts, the candidate."""
    count, i, f = 0, 0, 0.0
    if node >= 0:
        count, i, f = nodes.agg_count[node, g], nodes.agg_int[node, g], nodes.agg_float[node, g]
    if (programs.agg_mask[g] >> symbol) & 1:
        count, i, f = _with_row(programs, g, row, count, i, f)
    return count, i, f


@compiled
def _run(programs: Programs, symbol: int, row: int, node: int, nodes: Nodes) -> Any:
    """Run a symbol's code; its result is at the bottom of the stack, the state of which is returned."""
    ints, floats, states = programs.stack_int, programs.stack_float, programs.stack_state
    top = -1
    for at in range(programs.begin[symbol], programs.end[symbol]):
        op, a, b = programs.code[at, 0], programs.code[at, 1], programs.code[at, 2]
        if op <= AGG_COUNT:
            top += 1
            states[top] = FINE
            if op == SLOT_INT:
                where = _row_of(programs, b, symbol, row, node, nodes)
                ints[top], states[top] = programs.ints[a, where], programs.ints_state[a, where]
            elif op == SLOT_FLOAT:
                where = _row_of(programs, b, symbol, row, node, nodes)
                floats[top], states[top] = programs.floats[a, where], programs.floats_state[a, where]
            elif op == CONST_INT:
                ints[top] = programs.const_int[a]
            elif op == CONST_FLOAT:
                floats[top] = programs.const_float[a]
            elif op == PUSH_NULL:
                states[top] = NULL
            else:
                count, i, f = _aggregate(programs, a, symbol, row, node, nodes)
                ints[top], floats[top] = (count if op == AGG_COUNT else i), f
                if op != AGG_COUNT:
                    states[top] = FINE if count > 0 else (NULL if count == 0 else FAILED)
        elif op <= CEIL:
            _unary(programs, op, a, ints, floats, states, top)
        elif op <= LE_FLOAT:
            top -= 1
            if states[top] == FINE and states[top + 1] == FINE:
                if op <= MOD_FLOAT:
                    _binary(op, ints, floats, states, top)
                else:
                    ints[top] = _compare(op, ints, floats, top)
            elif states[top] == FAILED or states[top + 1] == FAILED:
                states[top] = FAILED
            else:
                states[top] = NULL
        elif op == SELECT:
            top -= 2
            chosen = top + 1 if states[top] == FINE and ints[top] != 0 else top + 2
            if states[top] != FAILED:
                ints[top], floats[top], states[top] = ints[chosen], floats[chosen], states[chosen]
        else:
            top -= 1
            _connect(op, ints, floats, states, top)
    return states[0]


@inlined
def _unary(programs: Programs, op: int, a: int, ints: Any, floats: Any, states: Any, top: int) -> None:
    if op == IS_NULL:
        if states[top] != FAILED:
            ints[top], states[top] = (1 if states[top] == NULL else 0), FINE
        return
    if states[top] != FINE:
        return
    if op == NOT:
        ints[top] = 1 - ints[top]
    elif op == NEG_FLOAT:
        floats[top] = -floats[top]
    elif op == ABS_FLOAT:
        floats[top] = abs(floats[top])
    elif op == FLOOR:
        floats[top] = np.floor(floats[top])
    elif op == CEIL:
        floats[top] = np.ceil(floats[top])
    elif op == TO_FLOAT:
        floats[top] = ints[top] / programs.const_float[a]
    elif op == SCALE:
        ints[top], states[top] = _multiply(ints[top], programs.const_int[a])
    elif op == NEG_INT or ints[top] < 0:
        if ints[top] == SMALLEST:
            states[top] = FAILED
        ints[top] = -ints[top]


@inlined
def _multiply(left: int, right: int) -> Any:
    product = left * right
    wrapped = (left == -1 and right == SMALLEST) or (left != 0 and left != -1 and product // left != right)
    return product, (FAILED if wrapped else FINE)


@inlined
def _binary(op: int, ints: Any, floats: Any, states: Any, top: int) -> None:
    """The two top values, both FINE, become one."""
    left, right, x, y = ints[top], ints[top + 1], floats[top], floats[top + 1]
    if op == ADD_INT:
        ints[top] = left + right
        if ((left ^ ints[top]) & (right ^ ints[top])) < 0:
            states[top] = FAILED
    elif op == SUB_INT:
        ints[top] = left - right
        if ((left ^ right) & (left ^ ints[top])) < 0:
            states[top] = FAILED
    elif op == MUL_INT:
        ints[top], states[top] = _multiply(left, right)
    elif op == MOD_INT:
        if right == 0:
            states[top] = NULL
        elif right == -1:
            ints[top] = 0
        else:
            rest = left % right
            ints[top] = rest - right if rest != 0 and (rest ^ left) < 0 else rest  # the sign is the dividend's
    elif op == ADD_FLOAT:
        floats[top] = x + y
    elif op == SUB_FLOAT:
        floats[top] = x - y
    elif op == MUL_FLOAT:
        floats[top] = x * y
    elif y == 0.0:
        states[top] = NULL
    else:
        floats[top] = x / y if op == DIV_FLOAT else np.fmod(x, y)


@inlined
def _compare(op: int, ints: Any, floats: Any, top: int) -> int:
    left, right, x, y = ints[top], ints[top + 1], floats[top], floats[top + 1]
    if op <= LE_INT:
        if op == EQ_INT:
            return 1 if left == right else 0
        if op == NE_INT:
            return 1 if left != right else 0
        if op == GT_INT:
            return 1 if left > right else 0
        if op == GE_INT:
            return 1 if left >= right else 0
        if op == LT_INT:
            return 1 if left < right else 0
        return 1 if left <= right else 0
    if op == EQ_FLOAT:
        return 1 if x == y else 0
    if op == NE_FLOAT:
        return 1 if x != y else 0
    if op == GT_FLOAT:
        return 1 if x > y else 0
    if op == GE_FLOAT:
        return 1 if x >= y else 0
    if op == LT_FLOAT:
        return 1 if x < y else 0
    return 1 if x <= y else 0


@inlined
def _connect(op: int, ints: Any, floats: Any, states: Any, top: int) -> None:
    """AND, OR and COALESCE: the second value need not be there, so it need not be fine either."""
    left, right = states[top], states[top + 1]
    if op == COALESCE:
        if left == NULL:
            ints[top], floats[top], states[top] = ints[top + 1], floats[top + 1], right
        return
    deciding = 0 if op == AND else 1  # false AND anything, true OR anything
    if (left == FINE and ints[top] == deciding) or (right == FINE and ints[top + 1] == deciding):
        ints[top], states[top] = deciding, FINE
    elif left == FAILED or right == FAILED:
        states[top] = FAILED
    elif left == NULL or right == NULL:
        states[top] = NULL
