"""Expression trees over the rows of a table, by Arrow: the row at hand is each row in turn, PREV and NEXT look beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep import nodes
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import decoded, one_chunk, writable
from spark_jobs.cep.compiled import allocating
from spark_jobs.cep.nodes import At, Node, Ref, sql
from spark_jobs.errors import ExpressionError


class RowValues:
    """Trees over the rows of a table, the row at hand being each row in turn; columns are decoded once."""

    def __init__(self, events: pa.Table, offsets: Int64s | None) -> None:
        self.events = events
        self.offsets = np.array([0, events.num_rows], np.int64) if offsets is None else writable(offsets)
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
        dictionary = one_chunk(self.events[column]).dictionary
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
                self._decoded[leaf.column] = decoded(self.events[leaf.column])
            return self._decoded[leaf.column]
        assert isinstance(leaf, At)
        value = nodes.compute(leaf.value, self._leaf)
        if leaf.nav.shift == 0 or isinstance(value, pa.Scalar):
            return value
        rows = shifted_rows(np.arange(self.events.num_rows), leaf.nav.shift, self.offsets)
        return value.take(pa.array(rows, mask=rows < 0))


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
