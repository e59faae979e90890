"""The cross-event parts of predicates as byte code for one shard: instructions, constants, slots, aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep import bytecode as code
from spark_jobs.cep import nodes
from spark_jobs.cep.bytecode import Programs
from spark_jobs.cep.nodes import Aggregate, Call, Const, Nav, Node
from spark_jobs.errors import ExpressionError


@dataclass(frozen=True)
class Slot(Node):
    """The value of the `index`-th slot at the row that `nav` says."""

    index: int
    nav: Nav


_OPERATIONS = {
    "+": (code.ADD_INT, code.ADD_FLOAT),
    "-": (code.SUB_INT, code.SUB_FLOAT),
    "*": (code.MUL_INT, code.MUL_FLOAT),
    "/": (code.DIV_FLOAT, code.DIV_FLOAT),
    "%": (code.MOD_INT, code.MOD_FLOAT),
    "=": (code.EQ_INT, code.EQ_FLOAT),
    "<>": (code.NE_INT, code.NE_FLOAT),
    ">": (code.GT_INT, code.GT_FLOAT),
    ">=": (code.GE_INT, code.GE_FLOAT),
    "<": (code.LT_INT, code.LT_FLOAT),
    "<=": (code.LE_INT, code.LE_FLOAT),
    "NEG": (code.NEG_INT, code.NEG_FLOAT),
    "ABS": (code.ABS_INT, code.ABS_FLOAT),
    "AND": (code.AND, code.AND),
    "OR": (code.OR, code.OR),
    "NOT": (code.NOT, code.NOT),
    "IS NULL": (code.IS_NULL, code.IS_NULL),
    "COALESCE": (code.COALESCE, code.COALESCE),
    "FLOOR": (code.FLOOR, code.FLOOR),
    "CEIL": (code.CEIL, code.CEIL),
}

# Operands of these must have one scale where they are decimals.
_SAME_SCALE = {"+", "-", "%", "=", "<>", ">", ">=", "<", "<=", "COALESCE", "CASE"}

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Assembler:
    """Writes byte code for the slots of one shard. Scales of decimals and codes of texts depend on the values."""

    def __init__(
        self, symbols: Sequence[str], crossing: Mapping[str, Node], trees: Sequence[Node], slots: Sequence[Any], rows: int
    ) -> None:
        self.symbols = symbols
        self.crossing = crossing
        self.trees = trees  # what the slots are the values of
        self.rows = rows
        self.code: list[tuple[int, int, int]] = []
        self.const_int: list[int] = []
        self.const_float: list[float] = []
        self.ints: list[tuple[Any, Any]] = []  # values and states
        self.floats: list[tuple[Any, Any]] = []
        self.where: list[int] = []  # per slot its place among self.ints or self.floats
        self.scales: list[int] = []  # per slot, of decimals
        self.texts: Any = pa.array([], pa.large_string())
        self.ways: list[tuple[int, int, int, int]] = []
        self.aggregates: list[tuple[int, int, int, int]] = []
        self._place(slots)

    def programs(self) -> Programs:
        begin, end, depth = [], [], 1
        for bit, symbol in enumerate(self.symbols):
            begin.append(len(self.code))
            tree = self.crossing.get(symbol)
            if tree is not None:
                self._emit(tree, bit)
                depth = max(depth, _depth(tree))
            end.append(len(self.code))
        values, states = self._stacked(self.ints, np.int64)
        doubles, double_states = self._stacked(self.floats, np.float64)
        kinds = np.array(self.aggregates, np.int64).reshape(-1, 4).T.copy()
        return Programs(
            np.array(self.code, np.int64).reshape(-1, 3),
            np.array(begin, np.int64),
            np.array(end, np.int64),
            np.array(self.const_int, np.int64),
            np.array(self.const_float, np.float64),
            values,
            states,
            doubles,
            double_states,
            np.array(self.ways, np.int64).reshape(-1, 4),
            kinds[0].copy(),
            kinds[1].copy(),
            kinds[2].copy(),
            kinds[3].copy(),
            np.zeros(depth, np.int64),
            np.zeros(depth, np.float64),
            np.zeros(depth, np.int8),
            np.zeros(1, np.int64),
        )

    def _stacked(self, slots: list[tuple[Any, Any]], dtype: Any) -> tuple[Any, Any]:
        values = np.zeros((len(slots), self.rows + 1), dtype)
        states = np.zeros((len(slots), self.rows + 1), np.int8)
        for at, (value, state) in enumerate(slots):
            values[at], states[at] = value, state
        return values, states

    def _place(self, slots: Sequence[Any]) -> None:
        """Slots as numbers; texts as codes in one order, common to all slots and literals."""
        texts = [at for at, slot in enumerate(slots) if nodes.is_text(slot.type)]
        literals = pa.array(self._literals(), pa.large_string())
        ranks, self.texts = nodes.ranks_of([*(pc.cast(slots[at], pa.large_string()) for at in texts), literals])
        coded = dict(zip(texts, ranks, strict=False))
        for at, slot in enumerate(slots):
            state = np.asarray(pc.is_valid(slot)).astype(np.int8)
            scale = 0
            if at in coded:
                values = coded[at]
            elif pa.types.is_decimal(slot.type):
                values, scale = nodes.scaled_decimals(slot, self.trees[at])
            elif pa.types.is_floating(slot.type):
                values = np.asarray(pc.fill_null(slot.cast(pa.float64()), 0.0))
            else:
                values = nodes.int64s_of(slot)
            group = self.floats if values.dtype == np.float64 else self.ints
            self.where.append(len(group))
            self.scales.append(scale)
            group.append((values, state))

    def _literals(self) -> list[str | None]:
        found = [leaf for tree in self.crossing.values() for leaf in nodes.leaves(tree) if isinstance(leaf, Const)]
        return [leaf.value.as_py() for leaf in found if nodes.is_text(leaf.type)]

    def _scale(self, node: Node) -> int:
        """Digits after the point of a decimal in byte code; they follow the values, not the declared type."""
        if not pa.types.is_decimal(node.type):
            return 0
        if isinstance(node, Const):
            return _decimal_parts(node)[1]
        if isinstance(node, Slot):
            return self.scales[node.index]
        if isinstance(node, Aggregate):
            return self._scale(node.value) if node.value is not None else 0
        assert isinstance(node, Call)
        if node.op == "*":
            return sum(self._scale(arg) for arg in node.args)
        return max(self._scale(arg) for arg in node.args)

    def _emit(self, node: Node, symbol: int) -> None:
        if isinstance(node, Const):
            self._emit_const(node)
        elif isinstance(node, Slot):
            op = code.SLOT_FLOAT if pa.types.is_floating(node.type) else code.SLOT_INT
            self.code.append((op, self.where[node.index], self._way(node.nav, symbol)))
        elif isinstance(node, Aggregate):
            self._emit_aggregate(node)
        elif isinstance(node, Call):
            self._emit_call(node, symbol)

    def _emit_const(self, node: Const) -> None:
        if not node.value.is_valid:
            self.code.append((code.PUSH_NULL, 0, 0))
        elif pa.types.is_floating(node.type):
            self.code.append((code.CONST_FLOAT, self._float(float(node.value.as_py())), 0))
        else:
            self.code.append((code.CONST_INT, self._int(self._integer(node)), 0))

    def _integer(self, node: Const) -> int:
        if nodes.is_text(node.type):
            return int(pc.index_in(node.value.cast(pa.large_string()), self.texts).as_py())
        if pa.types.is_decimal(node.type):
            return _decimal_parts(node)[0]
        return int(nodes.int64s_of(pa.repeat(node.value, 1))[0])

    def _int(self, value: int) -> int:
        if not -(2**63) <= value < 2**63:
            raise ExpressionError(f"{value} does not fit into 64 bits", 1)
        self.const_int.append(value)
        return len(self.const_int) - 1

    def _float(self, value: float) -> int:
        self.const_float.append(value)
        return len(self.const_float) - 1

    def _emit_call(self, node: Call, symbol: int) -> None:
        if node.op == "CASE":
            self._emit_case(node, symbol)
            return
        scale = max(self._scale(arg) for arg in node.args) if node.op in _SAME_SCALE else None
        for at, arg in enumerate(node.args):
            self._emit(arg, symbol)
            self._rescale(arg, scale)
            if at and node.op in ("AND", "OR", "COALESCE"):
                self.code.append((_OPERATIONS[node.op][0], 0, 0))
        if node.op == "CAST":
            self._emit_cast(node)
        elif node.op not in ("AND", "OR", "COALESCE"):
            self._emit_operation(node)

    def _emit_operation(self, node: Call) -> None:
        if node.op in ("FLOOR", "CEIL") and pa.types.is_decimal(node.type):
            raise ExpressionError(f"{node.op} of decimals cannot combine rows of different symbols", node.place)
        self.code.append((_OPERATIONS[node.op][pa.types.is_floating(node.args[0].type)], 0, 0))

    def _emit_case(self, node: Call, symbol: int) -> None:
        """All branches are computed, the conditions choose: CASE c1 v1 c2 v2 d is select(c1, v1, select(c2, v2, d))."""
        scale = self._scale(node)
        for at, arg in enumerate(node.args):
            self._emit(arg, symbol)
            if at % 2 or at == len(node.args) - 1:
                self._rescale(arg, scale)
        self.code += [(code.SELECT, 0, 0)] * (len(node.args) // 2)

    def _rescale(self, node: Node, scale: int | None) -> None:
        if scale is not None and pa.types.is_decimal(node.type) and scale > self._scale(node):
            self.code.append((code.SCALE, self._int(10 ** (scale - self._scale(node))), 0))

    def _emit_cast(self, node: Call) -> None:
        """To doubles, to finer time units or between decimals; casts of one row alone are not here but in slots."""
        (source,) = node.args
        if pa.types.is_floating(node.type):
            if not pa.types.is_floating(source.type):
                self.code.append((code.TO_FLOAT, self._float(10.0 ** self._scale(source)), 0))
            return
        factor = _unit(node.type) // _unit(source.type)
        if pa.types.is_date(source.type) and pa.types.is_timestamp(node.type):
            factor = 86_400 * _PER_SECOND[node.type.unit]
        if factor != 1:
            self.code.append((code.SCALE, self._int(factor), 0))

    def _emit_aggregate(self, node: Aggregate) -> None:
        slot = node.value
        floating = slot is not None and pa.types.is_floating(slot.type)
        where = self.where[slot.index] if isinstance(slot, Slot) else -1
        kinds = {
            "COUNT": code.COUNT,
            "SUM": code.SUM_FLOAT if floating else code.SUM_INT,
            "MIN": code.MIN_FLOAT if floating else code.MIN_INT,
            "MAX": code.MAX_FLOAT if floating else code.MAX_INT,
        }
        if node.kind == "COUNT" and floating:
            where = -2 - where
        number = self._aggregate(kinds[node.kind], node.mask, where, 0)
        op = code.AGG_COUNT if node.kind == "COUNT" else (code.AGG_FLOAT if floating else code.AGG_INT)
        self.code.append((op, number, 0))

    def _aggregate(self, kind: int, mask: int, slot: int, offset: int) -> int:
        entry = (kind, nodes.signed(mask), slot, offset)
        if entry not in self.aggregates:
            self.aggregates.append(entry)
        return self.aggregates.index(entry)

    def _way(self, nav: Nav, symbol: int) -> int:
        """How to find the row. FIRST and the last row of some symbols are remembered on the way, not searched for."""
        mask = nodes.signed(nav.mask)
        back = nav.offset - (nav.mask >> symbol & 1)  # the candidate is the last of its own rows
        if nav.kind == "row":
            way = (code.CANDIDATE, 0, 0, 0)
        elif nav.kind == "first":
            way = (code.FIRST_SEEN, mask, 0, self._aggregate(code.FIRST_ROW, nav.mask, -1, nav.offset))
        elif back > 0 or nav.mask == nodes.ANY_SYMBOL:
            way = (code.WALK, mask, back, 0)
        else:
            way = (code.LAST_SEEN, mask, 0, self._aggregate(code.LAST_ROW, nav.mask, -1, 0))
        if way not in self.ways:
            self.ways.append(way)
        return self.ways.index(way)


def _depth(tree: Node) -> int:
    """How many values the code of `tree` can have on the stack."""
    if not isinstance(tree, Call):
        return 1
    return max(at + _depth(arg) for at, arg in enumerate(tree.args))


def _unit(type_: pa.DataType) -> int:
    timed = pa.types.is_timestamp(type_) or pa.types.is_duration(type_)
    return _PER_SECOND[type_.unit] if timed else 1


def _decimal_parts(node: Const) -> tuple[int, int]:
    """An integer and a scale: 1.50 is (15, 1)."""
    if not node.value.is_valid:
        return 0, 0
    sign, digits, exponent = node.value.as_py().normalize().as_tuple()
    value = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    return (value * 10**exponent, 0) if exponent > 0 else (value, -exponent)
