"""MEASURES: what a match says about its rows, for all matches of a shard at once.

Navigation becomes arrays of row numbers, by one pass over the bound rows; Arrow then takes the values and evaluates.
Nothing here runs once per match in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep import nodes
from spark_jobs.cep.arrays import Found, Int64s
from spark_jobs.cep.columnar import shifted_rows
from spark_jobs.cep.columns import decoded, one_chunk, writable
from spark_jobs.cep.compiled import allocating
from spark_jobs.cep.expressions import Scope, read
from spark_jobs.cep.nodes import Aggregate, At, Call, Classifier, MatchNumber, Nav, Node, Ref, sql
from spark_jobs.cep.terms import back_of
from spark_jobs.errors import ExpressionError

NO_ROW = -1
SMALLEST, LARGEST = -(2**63), 2**63 - 1
SUM_INT, SUM_FLOAT, MIN, MAX = range(4)


@dataclass(frozen=True)
class Measures:
    """The measures of an operator, checked and typed. Build with `parse`."""

    symbols: tuple[str, ...]
    columns: frozenset[str]  # input columns that any measure reads
    types: dict[str, pa.DataType]
    back: int  # the largest offset of PREV
    _trees: dict[str, Node] = field(repr=False)

    @staticmethod
    def parse(
        texts: Mapping[str, str],
        symbols: Sequence[str],
        subsets: Mapping[str, tuple[str, ...]],
        types: Mapping[str, pa.DataType],
        complete: bool,
    ) -> Measures:
        scope = Scope(types, tuple(symbols), subsets, None, complete)
        trees = {name: _storable(read(text, scope)) for name, text in texts.items()}
        return Measures(
            tuple(symbols),
            frozenset(column for tree in trees.values() for column in nodes.columns_of(tree)),
            {name: tree.type for name, tree in trees.items()},
            max([back_of(tree) for tree in trees.values()], default=0),
            trees,
        )

    def evaluate(self, events: pa.Table, offsets: Int64s | None, found: Found, all_rows: bool) -> dict[str, pa.Array]:
        """One value per match or, with `all_rows`, one per bound row in the order of `found.rows`.

        `offsets` are the key boundaries in `events`, for PREV and NEXT; None: all rows are of one key.
        """
        bound = _Bound(self.symbols, events, offsets, found, all_rows)
        return {name: bound.value(tree) for name, tree in self._trees.items()}


def _storable(tree: Node) -> Node:
    """Tables hold decimals of 38 digits. Results that may need more give up digits after the point (down to 6), as in Spark."""
    if not pa.types.is_decimal256(tree.type):
        return tree
    whole, scale = tree.type.precision - tree.type.scale, tree.type.scale
    scale = min(scale, max(38 - whole, 6))
    rounded = Call(tree.type, tree.place, "ROUND", (tree,), scale)
    return Call(pa.decimal128(38, scale), tree.place, "CAST", (rounded,))


class _Bound:
    """Trees over the matches of a shard, each row array and column being made once."""

    def __init__(
        self, symbols: tuple[str, ...], events: pa.Table, offsets: Int64s | None, found: Found, all_rows: bool
    ) -> None:
        self.symbols = symbols
        self.events = events
        self.keys = np.array([0, events.num_rows], np.int64) if offsets is None else writable(offsets)
        self.found = found._replace(offsets=writable(found.offsets), rows=writable(found.rows), symbols=writable(found.symbols))
        self.all_rows = all_rows
        self.length = len(found.rows) if all_rows else len(found.offsets) - 1
        self._rows: dict[Nav, tuple[Int64s, bool]] = {}
        self._bound_values: dict[str, Any] = {}

    def value(self, tree: Node) -> Any:
        try:
            value = nodes.compute(tree, self._leaf)
        except pa.ArrowException as error:
            raise ExpressionError(f"'{sql(tree)}' cannot be evaluated: {error}", tree.place) from error
        if isinstance(value, pa.Scalar):
            value = pa.repeat(value, self.length)
        return value if value.type == tree.type else value.cast(tree.type)

    def _leaf(self, leaf: Node) -> Any:
        if isinstance(leaf, At):
            return self._at(leaf)
        if isinstance(leaf, Aggregate):
            return self._aggregate(leaf)
        if isinstance(leaf, Classifier):
            return self._classifier()
        assert isinstance(leaf, MatchNumber)
        return pa.array(self.found.number[self._match_of_row()] if self.all_rows else self.found.number)

    def _at(self, leaf: At) -> Any:
        rows, some_missing = self._navigated(leaf.nav)
        indices = pa.array(rows, mask=rows < 0) if some_missing else pa.array(rows)
        value = nodes.compute(leaf.value, lambda ref: self._taken(ref, indices))
        if isinstance(value, pa.Scalar):
            value = pa.repeat(value, self.length)
        if some_missing and not isinstance(leaf.value, Ref):
            value = pc.if_else(indices.is_valid(), value, pa.scalar(None, value.type))
        return value

    def _taken(self, ref: Node, indices: Any) -> Any:
        assert isinstance(ref, Ref)
        return decoded(one_chunk(self.events[ref.column]).take(indices))

    def _navigated(self, nav: Nav) -> tuple[Int64s, bool]:
        """The row each value comes from, and whether some have none."""
        if nav not in self._rows:
            rows = shifted_rows(self._navigated(nav.base)[0], nav.shift, self.keys) if nav.shift else self._base(nav)
            self._rows[nav] = rows, bool(len(rows) and rows.min() < 0)
        return self._rows[nav]

    def _base(self, nav: Nav) -> Int64s:
        found = self.found
        if nav.kind == "row" and self.all_rows:
            return found.rows
        rows: Int64s = _locate(
            found.offsets,
            found.rows,
            found.symbols,
            nodes.signed(nav.mask),
            nav.kind == "first",
            nav.offset,
            self.all_rows and not nav.final,
            self.length,
            self.all_rows,
        )
        return rows

    def _classifier(self) -> Any:
        if self.all_rows:
            codes, nulls = self.found.symbols, None
        else:
            ends, starts = self.found.offsets[1:], self.found.offsets[:-1]
            nulls = ends == starts
            codes = np.zeros(self.length, np.int64)
            codes[~nulls] = self.found.symbols[ends[~nulls] - 1]
        return pa.array(self.symbols, pa.string()).take(pa.array(codes, mask=nulls))

    def _match_of_row(self) -> Int64s:
        return np.repeat(np.arange(len(self.found.offsets) - 1), np.diff(self.found.offsets))

    def _aggregate(self, leaf: Aggregate) -> Any:
        """Positions among the bound rows for MIN and MAX, sums and counts else."""
        values = None if leaf.value is None else self._of_bound_rows(leaf.value)
        if leaf.kind == "COUNT":
            valid = np.ones(len(self.found.rows), np.bool_) if values is None else np.asarray(pc.is_valid(values))
            return pa.array(self._reduce(leaf, np.zeros(len(valid), np.int64), valid, SUM_INT)[2])
        assert values is not None
        valid = np.asarray(pc.is_valid(values))
        if leaf.kind == "SUM":
            return self._sum(leaf, values, valid)
        _, positions, counts = self._reduce(leaf, _order_keys(values), valid, MIN if leaf.kind == "MIN" else MAX)
        return values.take(pa.array(positions, mask=counts == 0))

    def _sum(self, leaf: Aggregate, values: Any, valid: Any) -> Any:
        scale = 0
        if pa.types.is_decimal(values.type):
            numbers, scale = nodes.scaled_decimals(values, leaf)
        else:
            numbers = np.asarray(pc.fill_null(values, 0))
        sums, _, counts = self._reduce(leaf, numbers, valid, SUM_FLOAT if numbers.dtype == np.float64 else SUM_INT)
        if (counts < 0).any():
            raise ExpressionError(f"'{sql(leaf)}' leaves the range of 64-bit integers", leaf.place)
        if not pa.types.is_decimal(values.type):
            return pa.array(sums, mask=counts == 0)
        return nodes.decimals_of(sums, counts == 0, pa.decimal128(38, scale)).cast(leaf.type)

    def _of_bound_rows(self, value: Node) -> Any:
        """An aggregate's argument for every bound row."""
        key = f"{value.type} {sql(value)}"
        if key not in self._bound_values:
            indices = pa.array(self.found.rows)
            found = nodes.compute(value, lambda ref: self._taken(ref, indices))
            self._bound_values[key] = pa.repeat(found, len(indices)) if isinstance(found, pa.Scalar) else found
        return self._bound_values[key]

    def _reduce(self, leaf: Aggregate, values: Any, valid: Any, kind: int) -> tuple[Any, Int64s, Int64s]:
        found = self.found
        results: tuple[Any, Int64s, Int64s] = _reduced(
            found.offsets,
            found.symbols,
            writable(values),
            writable(valid),
            nodes.signed(leaf.mask),
            kind,
            self.all_rows and not leaf.final,
            self.length,
            self.all_rows,
        )
        return results


def _order_keys(values: Any) -> Any:
    """Numbers in the order of `values`, 0 for NULL."""
    if nodes.is_text(values.type) or pa.types.is_decimal(values.type):
        return nodes.ranks_of([values])[0][0]
    if pa.types.is_floating(values.type):
        return np.asarray(pc.fill_null(values.cast(pa.float64()), 0.0))
    return nodes.int64s_of(values)


@allocating
def _locate(
    offsets: Any, rows: Any, symbols: Any, mask: int, first: bool, back: int, running: bool, length: int, all_rows: bool
) -> Any:
    """The `back`-th first or last bound row of the symbols in `mask`: per match, or per bound row (so far, if running)."""
    result = np.full(length, NO_ROW, np.int64)
    for match in range(offsets.shape[0] - 1):
        begin, end = offsets[match], offsets[match + 1]
        if running:
            _locate_running(rows, symbols, mask, first, back, begin, end, result)
            continue
        found, left = NO_ROW, back
        for i in range(end - begin):
            at = begin + i if first else end - 1 - i
            if (mask >> symbols[at]) & 1:
                if left == 0:
                    found = rows[at]
                    break
                left -= 1
        if all_rows:
            result[begin:end] = found
        else:
            result[match] = found
    return result


@allocating
def _locate_running(rows: Any, symbols: Any, mask: int, first: bool, back: int, begin: int, end: int, result: Any) -> None:
    """One pass: `sought` trails `back` matching rows behind."""
    seen, sought = 0, begin - 1
    for at in range(begin, end):
        if (mask >> symbols[at]) & 1:
            seen += 1
            if first and seen == back + 1:
                sought = at
            elif not first and seen > back:
                sought += 1
                while not (mask >> symbols[sought]) & 1:
                    sought += 1
        if seen > back:
            result[at] = rows[sought]


@allocating
def _reduced(
    offsets: Any, symbols: Any, values: Any, valid: Any, mask: int, kind: int, running: bool, length: int, all_rows: bool
) -> Any:
    """Sums, positions of minima or maxima, and counts, per match or per bound row; a negative count marks an overflow."""
    zero = np.zeros(1, values.dtype)[0]
    sums = np.zeros(length, values.dtype)
    positions = np.zeros(length, np.int64)
    counts = np.zeros(length, np.int64)
    for match in range(offsets.shape[0] - 1):
        begin, end = offsets[match], offsets[match + 1]
        total, best, count = zero, 0, 0
        for at in range(begin, end):
            if count >= 0 and valid[at] and (mask >> symbols[at]) & 1:
                value = values[at]
                if kind == SUM_INT and _wraps(total, value):
                    count = -2
                elif kind <= SUM_FLOAT:
                    total += value
                elif count == 0 or (kind == MIN and _less(value, values[best])) or (kind == MAX and _less(values[best], value)):
                    best = at
                count += 1
            if running:
                sums[at], positions[at], counts[at] = total, best, count
        if not running:
            first, last = (begin, end) if all_rows else (match, match + 1)
            sums[first:last] = total
            positions[first:last] = best
            counts[first:last] = count
    return sums, positions, counts


@allocating
def _less(left: Any, right: Any) -> Any:
    """NaN is larger than every number, so that MIN and MAX do not depend on the order of rows."""
    return left < right or (right != right and left == left)


@allocating
def _wraps(total: Any, value: Any) -> Any:
    """Would the sum leave 64 bits?"""
    return (value > 0 and total > LARGEST - value) or (value < 0 and total < SMALLEST - value)
