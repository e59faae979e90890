"""A query: everything a MATCH_RECOGNIZE clause or the builder says, before the types of the input are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from spark_jobs.cep.expressions import parse_predicate
from spark_jobs.cep.measures import Measures
from spark_jobs.cep.operator import AfterMatch, Operator
from spark_jobs.cep.pattern import Pattern
from spark_jobs.cep.terms import Terms
from spark_jobs.cep.windows import Window
from spark_jobs.errors import ExpressionError, suggest

# Columns that the runner of a query adds: the key as one number, the position, the time.
KEY, SN, STREAM_TS = "__key", "__sn", "__stream_ts"
TIMED_OUT = "timed_out"
# How the messages of Operator.check() begin that are not about the pattern's text, and what they are about.
_CHECKED = {"SUBSET": "subset", "AFTER MATCH": "after_match", "timed-out": "timed_out"}


@dataclass(frozen=True)
class Order:
    """A column of ORDER BY. Unless said otherwise NULLs stand first if ascending and last if descending, as in Spark."""

    column: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True)
class Query:
    """What to look for and what to give out. `places` tells where each text stands in `source`, the whole SQL text."""

    pattern: Pattern
    define: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    order_by: tuple[Order, ...] = ()
    measures: Mapping[str, str] = field(default_factory=dict)
    all_rows: bool = False
    empty: bool = True  # ALL ROWS: a row for each empty match
    unmatched: bool = False  # ALL ROWS: a row for each row that no match contains
    after_match: AfterMatch = field(default_factory=AfterMatch)
    all_runs: bool = False
    timed_out: bool = False
    window: Window = field(default_factory=Window)
    within: int = 0
    within_steps: int = 0
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)

    def operator(self, types: Mapping[str, pa.DataType], name: str = "query", columns: Sequence[str] = ()) -> Operator:
        """The operator over an input with these columns; what does not fit together is refused with its place.

        `types` are the columns that expressions may name, `columns` all others, which are handed on as they are.
        """
        self._check_columns(types, columns)
        self._check_time(types)
        operator = Operator(
            name=name,
            pattern=self.pattern,
            define=self.define,
            types=types,
            partition_by=KEY if self.partition_by else None,
            window=self.window,
            within=self.within,
            within_steps=self.within_steps,
            after_match=self.after_match,
            all_runs=self.all_runs,
            timed_out=self.timed_out,
            subsets=self.subsets,
            measures=self.measures,
            complete=True,
            sn=SN,
            stream_ts=STREAM_TS,
        )
        self._check_texts(types)
        try:
            operator.check()
        except ExpressionError as error:
            where = next((place for words, place in _CHECKED.items() if str(error).startswith(words)), "pattern")
            raise self.error(str(error), where, error.column or 1, self.pattern.text if where == "pattern" else "") from None
        taken = [column for column in (SN, STREAM_TS, KEY) if column in operator.columns and column in types]
        if taken:
            raise ExpressionError(
                f"column '{taken[0]}' has the name of a column that matching adds itself; rename it before naming it here", 1
            )
        self._check_output(types, columns)
        return operator

    def output(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The names of the output columns, for an input with these columns."""
        extra = (TIMED_OUT,) if self.timed_out else ()
        if not self.all_rows:
            return (*self.partition_by, *self.measures, *extra)
        order = dict.fromkeys((*self.partition_by, *(order.column for order in self.order_by)))
        return (*order, *self.measures, *extra, *(column for column in columns if column not in order))

    @property
    def one_stream(self) -> bool:
        """Does a row's position in the whole input count, so that keys cannot be matched apart from each other?"""
        return self.window.kind == "count"

    @contextmanager
    def _placed(self, where: str, text: str) -> Iterator[None]:
        """Errors inside name a place in `text`; outside, in the whole SQL text."""
        try:
            yield
        except ExpressionError as error:
            raise self.error(str(error), where, error.column or 1, text) from None

    def error(self, message: str, where: str, column: int = 1, text: str = "") -> ExpressionError:
        """An error at a character of the text called `where`."""
        if where in self.places:
            return placed_error(message, self.source, self.places[where] + column)
        clause = where.replace(".", " ")
        return ExpressionError(f"{clause}: {message}" + (f" (at character {column} of '{text}')" if text else ""), column)

    def _check_columns(self, types: Mapping[str, pa.DataType], others: Sequence[str]) -> None:
        for clause, names in (("partition_by", self.partition_by), ("order_by", [o.column for o in self.order_by])):
            for name in names:
                if name in others and name not in types:
                    verb = "partition" if clause == "partition_by" else "order"
                    raise self.error(f"column '{name}' is of a type to {verb} nothing by", f"{clause}.{name}")
                if name not in types:
                    raise self.error(f"unknown column '{name}'{suggest(name, list(types))}", f"{clause}.{name}")
        for symbol in self.define:
            if symbol not in self.pattern.symbols:
                known = suggest(symbol, list(self.pattern.symbols))
                raise self.error(f"symbol '{symbol}' is not in the pattern '{self.pattern.text}'{known}", f"symbol.{symbol}")

    def _check_time(self, types: Mapping[str, pa.DataType]) -> None:
        by_time = self.window.kind == "time" or (self.window.kind == "opened" and not self.window.by_rows)
        limits = {"within": self.within, "within_steps": self.within_steps, "window": by_time}
        clause = next((clause for clause, given in limits.items() if given), None)
        if clause is None or self.has_time(types):
            return
        first = self.order_by[0] if self.order_by else None
        found = f"'{first.column}' is {types[first.column]}{' DESC' if first.descending else ''}" if first else "there is none"
        raise self.error(f"a time limit needs a time stamp or date, ascending, as first column of ORDER BY; {found}", clause)

    def has_time(self, types: Mapping[str, pa.DataType]) -> bool:
        """Is the first column of ORDER BY the time?"""
        if not self.order_by or self.order_by[0].descending:
            return False
        type_ = types[self.order_by[0].column]
        return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))

    def _check_texts(self, types: Mapping[str, pa.DataType]) -> None:
        """One text at a time, so that an error can be placed."""
        symbols, subsets = self.pattern.symbols, self.subsets
        for symbol, text in self.define.items():
            with self._placed(f"define.{symbol}", text):
                Terms.parse({symbol: text}, symbols, subsets, types, True)
        for name, text in self.measures.items():
            with self._placed(f"measures.{name}", text):
                Measures.parse({name: text}, symbols, subsets, types, True)
        for where, predicate in (("open_when", self.window.open_when), ("close_when", self.window.close_when)):
            if predicate is not None:
                with self._placed(where, predicate):
                    parse_predicate(predicate, types)

    def _check_output(self, types: Mapping[str, pa.DataType], others: Sequence[str]) -> None:
        names = self.output([*types, *others])
        if not names:
            raise self.error("the output has no columns; give MEASURES, PARTITION BY or ALL ROWS PER MATCH", "pattern")
        lower = [name.lower() for name in names]
        for name in names:
            if lower.count(name.lower()) > 1:
                where = f"measure.{name}" if name in self.measures else "pattern"
                raise self.error(f"the output would have two columns '{name}'; choose another name for the measure", where)


def placed_error(message: str, source: str, column: int) -> ExpressionError:
    """An error at a character of the whole SQL text, counted from 1."""
    column = max(1, min(column, len(source) + 1))
    line = source.count("\n", 0, column - 1) + 1
    within = column - 1 - (source.rfind("\n", 0, column - 1) + 1) + 1
    return ExpressionError(f"{message} (line {line}, character {within})", column)
