"""DEFINE: each symbol's predicate, split into what one row decides and what the rows bound so far decide.

The first part is evaluated by Arrow for all rows at once (`Terms.row_mask`). Of the second, every largest part that
looks at one row only is evaluated by Arrow too, as a *slot*; what combines rows becomes byte code (`bytecode`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep import bytecode as code
from spark_jobs.cep import nodes
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.bytecode import Programs as Programs
from spark_jobs.cep.bytecode import extend as extend
from spark_jobs.cep.bytecode import fits as fits
from spark_jobs.cep.compiled import allocating
from spark_jobs.cep.expressions import Expression, Scope, read_predicate
from spark_jobs.cep.nodes import Aggregate, At, Call, Const, Nav, Node, Ref, sql
from spark_jobs.errors import ExpressionError, suggest

# Byte code has no function for these; they can be applied to each row on its own.
_ONE_ROW_ONLY = {"LOWER", "UPPER", "LENGTH", "LIKE", "ROUND"}


@dataclass(frozen=True)
class _Slot(Node):
    """The value of `Terms._slots[index]` at the row that `nav` says."""

    index: int
    nav: Nav


@dataclass(frozen=True)
class Terms:
    """The predicates of an operator, checked and split. Build with `parse`."""

    symbols: tuple[str, ...]
    columns: frozenset[str]  # input columns that any predicate reads
    back: int  # the largest offset of PREV
    row_only: dict[str, Expression]  # what the candidate row alone decides; its text explains it
    rest: dict[str, str]  # the text of what needs bound rows, for symbols that have such a part
    _conjuncts: dict[str, list[Node]] = field(repr=False)
    _crossing: dict[str, Node] = field(repr=False)  # with slots instead of whatever looks at one row
    _slots: list[Node] = field(repr=False)
    _sums: list[Aggregate] = field(repr=False)

    @property
    def crossing(self) -> frozenset[str]:
        """Symbols whose predicate also looks at bound rows."""
        return frozenset(self._crossing)

    @staticmethod
    def parse(
        define: Mapping[str, str],
        symbols: Sequence[str],
        subsets: Mapping[str, tuple[str, ...]],
        types: Mapping[str, pa.DataType],
        complete: bool,
    ) -> Terms:
        for symbol in define:
            if symbol not in symbols:
                raise ExpressionError(f"DEFINE of unknown symbol '{symbol}'{suggest(symbol, list(symbols))}", 1)
        splitter = _Splitter()
        trees = {}
        for symbol in symbols:
            scope = Scope(types, tuple(symbols), subsets, symbol, complete)
            trees[symbol] = read_predicate(define.get(symbol, "TRUE"), scope)
            splitter.split(symbol, trees[symbol])
        columns = frozenset(name for tree in trees.values() for name in nodes.columns_of(tree))
        back = max([back_of(tree) for tree in trees.values()], default=0)
        return Terms(
            tuple(symbols),
            columns,
            back,
            {symbol: _together(parts) for symbol, parts in splitter.conjuncts.items()},
            splitter.texts,
            splitter.conjuncts,
            splitter.crossing,
            splitter.slots,
            splitter.aggregates,
        )

    def row_mask(self, events: pa.Table, offsets: Int64s | None) -> npt.NDArray[np.uint64]:
        """Bit k is set where the row alone may be symbol k. Rows are sorted by key; key k owns offsets[k] .. offsets[k + 1].

        Without PREV and NEXT `offsets` may be None; with them, None means that all rows are of one key.
        """
        rows = _Rows(events, offsets)
        every = np.uint64((1 << len(self.symbols)) - 1)
        # On coded text a predicate is answered once per distinct value. What all symbols ask of one column is put into one
        # table, so that the column is walked once and not once per symbol.
        tables: dict[str, npt.NDArray[np.uint64]] = {}
        others: list[tuple[np.uint64, Node]] = []
        for bit, symbol in enumerate(self.symbols):
            without = every & ~np.uint64(1 << bit)
            for conjunct in self._conjuncts[symbol]:  # one by one: unknown counts as false, so AND may be taken apart
                column = rows.coded_column(conjunct)
                if column is None:
                    others.append((without, conjunct))
                    continue
                fit = rows.fit_by_code(conjunct, column)
                table = tables.setdefault(column, np.full(fit.size, every))
                table[~fit] &= without
        masks = [table[codes_of(nodes.one_chunk(events[column]))] for column, table in tables.items()]
        mask = masks.pop() if masks else np.full(events.num_rows, every)
        for other in masks:
            mask &= other
        for without, conjunct in others:
            mask &= np.where(rows.fit(conjunct), every, without)
        return mask

    def bind(self, events: pa.Table, offsets: Int64s | None, rows: Int64s | None = None) -> Programs:
        """Byte code and slots for the cross-event parts; `rows`: the kernel will number these rows of `events` 0, 1, .."""
        count = events.num_rows if rows is None else len(rows)
        if not self._crossing:
            return _Binder(self, [], count).programs()
        table = _Rows(events, offsets)
        missing = _Rows(events.schema.empty_table(), None)
        slots = []
        for tree in self._slots:
            values = table.values(tree)
            values = values if rows is None else values.take(pa.array(rows))
            slots.append(pa.concat_arrays([values, missing.value_of_no_row(tree)]))
        return _Binder(self, slots, count).programs()

    def check(self, programs: Programs) -> None:
        """Raise if a predicate's integers overflowed while the kernel ran: its matches cannot be trusted then."""
        failed = int(programs.failed[0])
        if failed:
            symbol = self.symbols[failed - 1]
            raise ExpressionError(
                f"DEFINE {symbol}: '{self.rest[symbol]}' left the range of 64-bit integers. No match of this batch was used. "
                "Multiply by 1.0 to calculate with doubles",
                1,
            )


def _together(parts: list[Node]) -> Expression:
    tree: Node = Const(pa.bool_(), 1, pa.scalar(True))
    if parts:
        tree = Call(pa.bool_(), 1, "AND", tuple(parts)) if len(parts) > 1 else parts[0]
    return Expression(sql(tree), pa.bool_(), nodes.columns_of(tree), tree)


def back_of(tree: Node) -> int:
    """The largest offset of PREV."""
    return max([-leaf.nav.shift for leaf in nodes.leaves(tree) if isinstance(leaf, At)], default=0)


class _Splitter:
    """Sorts conjuncts into those of one row and those of several, and gives the latter their slots."""

    def __init__(self) -> None:
        self.conjuncts: dict[str, list[Node]] = {}
        self.crossing: dict[str, Node] = {}
        self.texts: dict[str, str] = {}
        self.slots: list[Node] = []
        self.aggregates: list[Aggregate] = []
        self._known: dict[str, int] = {}

    def split(self, symbol: str, tree: Node) -> None:
        parts = list(tree.args) if isinstance(tree, Call) and tree.op == "AND" else [tree]
        parts = [part for part in parts if part != Const(pa.bool_(), 1, pa.scalar(True))]
        self.conjuncts[symbol] = [part for part in parts if _of_one_row(part)]
        crossing = [part for part in parts if not _of_one_row(part)]
        if crossing:
            rest = crossing[0] if len(crossing) == 1 else Call(pa.bool_(), crossing[0].place, "AND", tuple(crossing))
            self.texts[symbol] = sql(rest)
            self.crossing[symbol] = self._lifted(rest)

    def _lifted(self, node: Node) -> Node:
        """`node` with a slot in place of every largest part that looks at one row."""
        leaves = [leaf for leaf in nodes.leaves(node) if not isinstance(leaf, Const)]
        if not leaves:
            return Const(node.type, node.place, nodes.compute(node, _no_leaf))
        contexts = {leaf.nav.base if isinstance(leaf, At) else None for leaf in leaves}
        if None not in contexts and len(contexts) == 1:
            return _Slot(node.type, node.place, self._slot(node), next(iter(contexts)) or Nav())
        if isinstance(node, Aggregate):
            return self._aggregate(node)
        assert isinstance(node, Call)
        if node.op in _ONE_ROW_ONLY:
            raise ExpressionError(f"{node.op} cannot combine rows of different symbols; apply it to each of them", node.place)
        if node.op in ("=", "<>") and not nodes.is_word_sized(node.args[0].type):
            raise ExpressionError(f"{node.args[0].type} cannot be compared over several rows", node.place)
        return Call(node.type, node.place, node.op, tuple(self._lifted(arg) for arg in node.args), node.option)

    def _slot(self, node: Node) -> int:
        """Slots are shared: A.v and LAST(B.v, 1) read the same column at different rows."""
        node = _at_candidate(node)
        return self._number(f"{node.type} {sql(node)}", node)

    def _number(self, key: str, node: Node) -> int:
        if key not in self._known:
            self._known[key] = len(self.slots)
            self.slots.append(node)
        return self._known[key]

    def _aggregate(self, node: Aggregate) -> Aggregate:
        value = None if node.value is None else self._slot(At(node.value.type, node.place, node.value, Nav()))
        slot = None if value is None else _Slot(self.slots[value].type, node.place, value, Nav())
        lifted = Aggregate(node.type, node.place, node.kind, slot, node.mask)
        if lifted not in self.aggregates:
            self.aggregates.append(lifted)
        return lifted


def _of_one_row(node: Node) -> bool:
    leaves = [leaf for leaf in nodes.leaves(node) if not isinstance(leaf, Const)]
    return all(isinstance(leaf, At) and leaf.nav.kind == "row" for leaf in leaves)


def _at_candidate(node: Node) -> Node:
    if isinstance(node, At):
        return At(node.type, node.place, node.value, Nav(shift=node.nav.shift))
    if isinstance(node, Call):
        return Call(node.type, node.place, node.op, tuple(_at_candidate(arg) for arg in node.args), node.option)
    return node


def _no_leaf(leaf: Node) -> Any:
    raise AssertionError(f"{leaf} has no value here")


class _Rows:
    """Trees over the rows of a table, the row at hand being each row in turn; columns are decoded once."""

    def __init__(self, events: pa.Table, offsets: Int64s | None) -> None:
        self.events = events
        self.offsets = np.array([0, events.num_rows], np.int64) if offsets is None else nodes.writable(offsets)
        self._decoded: dict[str, Any] = {}

    def fit(self, predicate: Node) -> Any:
        """The predicate as booleans, NULL counting as false."""
        return _booleans(_checked(predicate, self._leaf), self.events.num_rows)

    def coded_column(self, predicate: Node) -> str | None:
        """The column of coded text that alone decides the predicate, if there is one."""
        names = sorted(nodes.columns_of(predicate))
        shifted = any(isinstance(leaf, At) and leaf.nav.shift for leaf in nodes.leaves(predicate))
        one = len(names) == 1 and not shifted and pa.types.is_dictionary(self.events.schema.field(names[0]).type)
        return names[0] if one else None

    def fit_by_code(self, predicate: Node, column: str) -> Any:
        """The predicate as booleans per code; one more entry than there are codes answers for NULL."""
        dictionary = nodes.one_chunk(self.events[column]).dictionary
        values = pa.concat_arrays([dictionary, pa.nulls(1, dictionary.type)])
        return _booleans(_checked(predicate, _over({column: values})), len(values))

    def values(self, tree: Node) -> Any:
        """One value per row."""
        value = _checked(tree, self._leaf)
        return pa.repeat(value, self.events.num_rows) if isinstance(value, pa.Scalar) else value

    def value_of_no_row(self, tree: Node) -> Any:
        """The value where the row does not exist: every column is NULL then, but COALESCE may know better."""
        nulls = _checked(tree, lambda leaf: pa.nulls(1, leaf.type))
        return pa.repeat(nulls, 1) if isinstance(nulls, pa.Scalar) else nulls

    def _leaf(self, leaf: Node) -> Any:
        if isinstance(leaf, Ref):
            if leaf.column not in self._decoded:
                self._decoded[leaf.column] = nodes.decoded(self.events[leaf.column])
            return self._decoded[leaf.column]
        assert isinstance(leaf, At)
        value = nodes.compute(leaf.value, self._leaf)
        if leaf.nav.shift == 0 or isinstance(value, pa.Scalar):
            return value
        rows = shifted_rows(np.arange(self.events.num_rows), leaf.nav.shift, self.offsets)
        return value.take(pa.array(rows, mask=rows < 0))


def codes_of(coded: pa.DictionaryArray) -> Any:
    """The code of each row; NULL has the one after the last."""
    if coded.null_count == 0:
        return np.asarray(coded.indices)
    return np.asarray(pc.fill_null(coded.indices.cast(pa.int64()), len(coded.dictionary)))


def _over(columns: Mapping[str, Any]) -> Callable[[Node], Any]:
    def leaf(node: Node) -> Any:
        if isinstance(node, Ref):
            return columns[node.column]
        assert isinstance(node, At)
        return nodes.compute(node.value, leaf)

    return leaf


def _checked(tree: Node, leaf: Callable[[Node], Any]) -> Any:
    try:
        return nodes.compute(tree, leaf)
    except pa.ArrowException as error:
        raise ExpressionError(f"'{sql(tree)}' cannot be evaluated: {error}", tree.place) from error


def _booleans(value: Any, length: int) -> Any:
    if isinstance(value, pa.Scalar):
        return np.full(length, bool(value.as_py()))
    return np.asarray(pc.fill_null(value, False))


@allocating
def shifted_rows(rows: Any, shift: int, offsets: Any) -> Any:
    """The rows `shift` further in the same key, -1 where the key has none (or `rows` has none already)."""
    result = np.full(rows.shape[0], -1, np.int64)
    key = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0:
            continue
        if not offsets[key] <= row < offsets[key + 1]:
            key = np.searchsorted(offsets, row, side="right") - 1
        if offsets[key] <= row + shift < offsets[key + 1]:
            result[i] = row + shift
    return result


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


class _Binder:
    """Writes byte code for the slots of one shard. Scales of decimals and codes of texts depend on the values."""

    def __init__(self, terms: Terms, slots: list[Any], rows: int) -> None:
        self.terms = terms
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
        for bit, symbol in enumerate(self.terms.symbols):
            begin.append(len(self.code))
            tree = self.terms._crossing.get(symbol)
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

    def _place(self, slots: list[Any]) -> None:
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
                values, scale = nodes.scaled_decimals(slot, self.terms._slots[at])
            elif pa.types.is_floating(slot.type):
                values = np.asarray(pc.fill_null(slot.cast(pa.float64()), 0.0))
            else:
                values = nodes.int64s_of(slot)
            group = self.floats if values.dtype == np.float64 else self.ints
            self.where.append(len(group))
            self.scales.append(scale)
            group.append((values, state))

    def _literals(self) -> list[str | None]:
        found = [leaf for tree in self.terms._crossing.values() for leaf in nodes.leaves(tree) if isinstance(leaf, Const)]
        return [leaf.value.as_py() for leaf in found if nodes.is_text(leaf.type)]

    def _scale(self, node: Node) -> int:
        """Digits after the point of a decimal in byte code; they follow the values, not the declared type."""
        if not pa.types.is_decimal(node.type):
            return 0
        if isinstance(node, Const):
            return _decimal_parts(node)[1]
        if isinstance(node, _Slot):
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
        elif isinstance(node, _Slot):
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
        where = self.where[slot.index] if isinstance(slot, _Slot) else -1
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
