"""DEFINE: each symbol's predicate, split into what one row decides and what the rows bound so far decide.

The first part is evaluated by Arrow for all rows at once (`Terms.row_mask`). Of the second, every largest part that
looks at one row only is evaluated by Arrow too, as a *slot*; what combines rows becomes byte code (`bytecode`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jobs.cep import nodes
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.assembler import Assembler, Slot
from spark_jobs.cep.bytecode import Programs
from spark_jobs.cep.columnar import RowValues
from spark_jobs.cep.columns import codes_of, one_chunk
from spark_jobs.cep.expressions import Expression, Scope, read_predicate
from spark_jobs.cep.nodes import Aggregate, At, Call, Const, Nav, Node, sql
from spark_jobs.errors import ExpressionError, suggest

# Byte code has no function for these; they can be applied to each row on its own.
_ONE_ROW_ONLY = {"LOWER", "UPPER", "LENGTH", "LIKE", "ROUND"}


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
        )

    def row_mask(self, events: pa.Table, offsets: Int64s | None) -> npt.NDArray[np.uint64]:
        """Bit k is set where the row alone may be symbol k. Rows are sorted by key; key k owns offsets[k] .. offsets[k + 1].

        Without PREV and NEXT `offsets` may be None; with them, None means that all rows are of one key.
        """
        rows = RowValues(events, offsets)
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
        masks = [table[codes_of(one_chunk(events[column]))] for column, table in tables.items()]
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
            return Assembler(self.symbols, {}, [], [], count).programs()
        table = RowValues(events, offsets)
        missing = RowValues(events.schema.empty_table(), None)
        slots = []
        for tree in self._slots:
            values = table.values(tree)
            values = values if rows is None else values.take(pa.array(rows))
            slots.append(pa.concat_arrays([values, missing.value_of_no_row(tree)]))
        return Assembler(self.symbols, self._crossing, self._slots, slots, count).programs()

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
            return Slot(node.type, node.place, self._slot(node), next(iter(contexts)) or Nav())
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
        key = f"{node.type} {sql(node)}"
        if key not in self._known:
            self._known[key] = len(self.slots)
            self.slots.append(node)
        return self._known[key]

    def _aggregate(self, node: Aggregate) -> Aggregate:
        value = None if node.value is None else self._slot(At(node.value.type, node.place, node.value, Nav()))
        slot = None if value is None else Slot(self.slots[value].type, node.place, value, Nav())
        return Aggregate(node.type, node.place, node.kind, slot, node.mask)


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
