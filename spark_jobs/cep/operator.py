"""An operator as configuration: what to look for, with every text parsed and typed before any data is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import pyarrow as pa

from spark_jobs.cep.automaton import Automaton, compile_pattern
from spark_jobs.cep.expressions import Expression, parse_predicate
from spark_jobs.cep.measures import Measures
from spark_jobs.cep.pattern import Connector, Pattern
from spark_jobs.cep.terms import Terms
from spark_jobs.cep.windows import Window
from spark_jobs.errors import ExpressionError, suggest

SkipKind = Literal["past last row", "to next row", "to first", "to last", "none"]
SKIPS: tuple[SkipKind, ...] = get_args(SkipKind)


@dataclass(frozen=True)
class AfterMatch:
    """AFTER MATCH SKIP: where matching goes on; `symbol` (or subset) for `to first` and `to last`."""

    kind: SkipKind = "past last row"
    symbol: str | None = None

    @property
    def consumes(self) -> bool:
        """Does a match keep later starts from being tried?"""
        return self.kind not in ("to next row", "none")


@dataclass(frozen=True)
class Limits:
    """What one shard may use. A pattern that needs more fails with the key and the rule, it does not swap."""

    runs: int = 100_000  # at the same time, in one key and window
    length: int = 1_000_000  # rows of one match
    nodes: int = 50_000_000  # bound rows of all runs of one key and window: about 3 GB


@dataclass(frozen=True)
class Operator:
    """What to look for. `types` are the columns of the operator's input that expressions may name."""

    name: str
    pattern: Pattern
    define: Mapping[str, str]
    types: Mapping[str, pa.DataType]
    partition_by: str | None = None
    window: Window = field(default_factory=Window)
    within: int = 0  # microseconds of stream time between first and last row; 0: no limit
    within_steps: int = 0  # .. between each row and the one before it
    after_match: AfterMatch = AfterMatch()
    all_runs: bool = False
    timed_out: bool = False
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    measures: Mapping[str, str] | None = None
    complete: bool = False  # the input is known to its end (a DataFrame), so NEXT, MATCH_NUMBER and empty matches make sense
    limits: Limits = Limits()
    sn: str = "sn"  # the input's columns of SN and stream time
    stream_ts: str = "stream_ts"

    @cached_property
    def automaton(self) -> Automaton:
        return compile_pattern(self.pattern)

    @cached_property
    def terms(self) -> Terms:
        """One predicate per symbol; a symbol without one fits every event, as in SQL."""
        return Terms.parse(self.define, self.pattern.symbols, self.subsets, self.types, self.complete)

    @cached_property
    def measured(self) -> Measures:
        return Measures.parse(self.measures or {}, self.pattern.symbols, self.subsets, self.types, self.complete)

    @cached_property
    def open_when(self) -> Expression | None:
        return parse_predicate(self.window.open_when, self.types) if self.window.open_when else None

    @cached_property
    def close_when(self) -> Expression | None:
        return parse_predicate(self.window.close_when, self.types) if self.window.close_when else None

    @cached_property
    def columns(self) -> list[str]:
        """The input columns that have to be read, besides SN and stream time."""
        names = set(self.terms.columns) | set(self.measured.columns)
        for predicate in (self.open_when, self.close_when):
            names |= predicate.columns if predicate else set()
        if self.partition_by:
            names.add(self.partition_by)
        return sorted(names)

    @cached_property
    def plain(self) -> bool:
        """A plain sequence, which the completion arrays of kernel.py match without keeping runs."""
        return (
            self.pattern.steps is not None
            and self.after_match.kind in ("past last row", "to next row")
            and self.window.kind in ("none", "count", "time")
            and not (self.all_runs or self.timed_out or self.within_steps or self.terms.crossing or self.back)
        )

    @property
    def back(self) -> int:
        """How many rows before a row PREV looks at."""
        return max(self.terms.back, self.measured.back)

    @cached_property
    def every_row(self) -> bool:
        """Can a row that fits no symbol matter?"""
        counts_rows = self.window.kind == "keyed" or (self.window.kind == "opened" and self.window.by_rows)
        return counts_rows or self.pattern.at_start or self.automaton.strict or self.automaton.nullable

    def check(self) -> None:
        """Refuse what parses but cannot mean anything here, or would not end."""
        pattern, bounded = self.pattern, bool(self.within or self.window.kind != "none")
        self._check_names()
        if self.automaton.nullable and not self.complete:
            raise ExpressionError(f"'{pattern.text}' also fits no event at all; a step that must be there is missing", 1)
        if pattern.never_after and not (self.within or self.within_steps):
            raise ExpressionError(
                f"a negation at the end ('-> !{pattern.never_after[0]}') needs WITHIN: without it no match could come out",
                len(pattern.text),
            )
        if pattern.at_end and not (self.complete or self.window.kind != "none"):
            raise ExpressionError("'$' needs a window here: a log has no last event", len(pattern.text))
        if self.timed_out and not (self.within or self.within_steps):
            raise ExpressionError("timed-out matches need WITHIN", 1)
        if self._explodes and not bounded:
            raise ExpressionError(
                "a repetition under '->>' keeps a run for every subset of the rows; give WITHIN or a window to bound it", 1
            )
        _ = self.terms, self.measured, self.open_when, self.close_when

    @property
    def _explodes(self) -> bool:
        """Some occurrence can be taken again and again by skip-till-any-match."""
        states = self.automaton.states
        return any(o.connector is Connector.ANY and o.state <= s for s, state in enumerate(states) for o in state.options)

    @property
    def endless(self) -> list[str]:
        """Symbols a complete match may wait for without an end."""
        if self.within or self.within_steps or self.window.kind != "none" or self.complete or self.all_runs:
            return []
        return self.automaton.endless

    def _check_names(self) -> None:
        known = [*self.pattern.bound, *self.subsets]
        for subset, members in self.subsets.items():
            if subset in self.pattern.symbols:
                raise ExpressionError(f"SUBSET {subset} has the name of a symbol", 1)
            for member in members:
                if member not in self.pattern.bound:
                    raise ExpressionError(
                        f"SUBSET {subset} names '{member}', which no step binds{suggest(member, list(self.pattern.bound))}", 1
                    )
        target = self.after_match.symbol
        if target is not None and target not in known:
            raise ExpressionError(f"AFTER MATCH SKIP names '{target}', which no step binds{suggest(target, known)}", 1)
