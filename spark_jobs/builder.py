"""The builder: a query said in Python, step by step. Every step returns a new builder and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.query import Query
from spark_jobs.cep.sql_text import to_sql
from spark_jobs.cep.sql_tokens import fragment, order_of
from spark_jobs.cep.words import WindowWords, duration, skip_policy, window_of
from spark_jobs.errors import ExpressionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pattern(text: str) -> Builder:
    """Begin with what to look for: `pattern("S{3,} -> L")`. docs/LANGUAGE.md defines the text."""
    stripped = _text("pattern", text).strip()
    try:
        return Builder(Query(parse_pattern(stripped)))
    except ExpressionError as error:
        raise _in("pattern", error, stripped) from None


@dataclass(frozen=True)
class Builder:
    """A query under construction; `query` is what has been said so far."""

    query: Query

    def by(self, *columns: str) -> Builder:
        """PARTITION BY: rows with equal values in these columns are matched on their own."""
        return self._with(partition_by=_distinct("by", [_text("by", column) for column in columns]))

    def order_by(self, *columns: str) -> Builder:
        """ORDER BY: names of columns, each with DESC, NULLS FIRST or NULLS LAST after it if wanted."""
        orders = tuple(_read("order_by", order_of, column) for column in columns)
        _distinct("order_by", [order.column for order in orders])
        return self._with(order_by=orders)

    def define(self, **predicates: str) -> Builder:
        """DEFINE: a predicate per symbol; said again for a symbol, the later one counts. Without one it fits every row."""
        return self._with(define={**self.query.define, **_fragments("define", predicates)})

    def measures(self, **expressions: str) -> Builder:
        """MEASURES: an output column per expression."""
        return self._with(measures={**self.query.measures, **_fragments("measures", expressions)})

    def subset(self, **members: Sequence[str]) -> Builder:
        """SUBSET: a name for several symbols, `subset(U=("S", "L"))`."""
        for name, symbols in members.items():
            if not isinstance(symbols, (list, tuple)) or not symbols:
                raise ExpressionError(f"subset {name}: give the symbols as a list, such as ('A', 'B')", 1)
        return self._with(subsets={**self.query.subsets, **{name: tuple(symbols) for name, symbols in members.items()}})

    def within(self, limit: str) -> Builder:
        """WITHIN: all rows of a match lie in less than this time, `within("10 min")`."""
        return self._with(within=_read("within", duration, limit))

    def within_steps(self, limit: str) -> Builder:
        """WITHIN .. BETWEEN STEPS: the same between each row and the one before it."""
        return self._with(within_steps=_read("within_steps", duration, limit))

    def after_match(self, policy: str) -> Builder:
        """AFTER MATCH SKIP: 'past last row' (the default), 'to next row', 'to first A', 'to last A' or 'none'."""
        return self._with(after_match=_read("after_match", skip_policy, policy))

    def all_runs(self) -> Builder:
        """Every way to bind rows is a match, not only the preferred one of each start."""
        return self._with(all_runs=True)

    def timed_out(self) -> Builder:
        """Give out partial matches that WITHIN ended, too; a column `timed_out` tells them apart."""
        return self._with(timed_out=True)

    def window(self, **words: Unpack[WindowWords]) -> Builder:
        """Cut the rows: `count=1000, slide=50, per_key=True`, or `time="1 h", slide="5 min"`, or
        `open_when="..", close_when=".."` with `rows=10` or `time="5 min"`.
        """
        for name in ("open_when", "close_when"):
            if (text := words.get(name)) is not None:
                words[name] = _read(f"window {name}", fragment, text)
        try:
            return self._with(window=window_of(**words))
        except (ValueError, TypeError) as error:
            raise ExpressionError(f"window: {error}", 1) from None

    def one_row(self) -> Builder:
        """ONE ROW PER MATCH, the default."""
        return self._with(all_rows=False, empty=True, unmatched=False)

    def all_rows(self, *, unmatched: bool = False, empty: bool = True) -> Builder:
        """ALL ROWS PER MATCH: a row per matched row; with rows of no match, or without a row per empty match, if wanted."""
        if unmatched and not empty:
            raise ExpressionError("all_rows: unmatched rows include those of empty matches; leave out empty=False", 1)
        return self._with(all_rows=True, empty=empty, unmatched=unmatched)

    def match(self, df: DataFrame) -> DataFrame:
        """Run the query over a Spark DataFrame; nothing is computed before the result is read."""
        from spark_jobs.dataframe import match  # Spark is needed here only

        return match(df, self.query)

    def sql(self, table: str) -> str:
        """The query as SQL text over `table`."""
        if not _text("sql", table).strip():
            raise ExpressionError("sql: the name of a table is needed", 1)
        return to_sql(self.query, table)

    def _with(self, **changes: Any) -> Builder:
        return Builder(replace(self.query, **changes))


def _text(clause: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ExpressionError(f"{clause}: a text is needed, such as a column's name or a predicate, not {value!r}", 1)
    return value


def _read(clause: str, read: Callable[[str], Any], text: Any) -> Any:
    _text(clause, text)
    try:
        return read(text)
    except ValueError as error:
        raise ExpressionError(f"{clause}: {error}", 1) from None
    except ExpressionError as error:
        raise _in(clause, error, text) from None


def _fragments(clause: str, texts: Mapping[str, str]) -> dict[str, str]:
    return {name: _read(f"{clause} {name}", fragment, text) for name, text in texts.items()}


def _distinct(clause: str, columns: Sequence[str]) -> tuple[str, ...]:
    twice = [column for column in columns if list(columns).count(column) > 1]
    if twice or not columns:
        raise ExpressionError(f"{clause}: '{twice[0]}' is given twice" if twice else f"{clause}: no column is given", 1)
    return tuple(columns)


def _in(clause: str, error: ExpressionError, text: str) -> ExpressionError:
    return ExpressionError(f"{clause}: {error} (at character {error.column} of '{text}')", error.column)
