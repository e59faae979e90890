"""An operator as configuration: what to look for, with every text parsed and typed before any data is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from spark_jobs.cep.expressions import Expression, parse_expression, parse_predicate
from spark_jobs.cep.pattern import Pattern
from spark_jobs.cep.windows import Window


@dataclass(frozen=True)
class Operator:
    """What to look for. `types` are the columns of the operator's input that expressions may name."""

    name: str
    pattern: Pattern
    define: Mapping[str, str]
    types: Mapping[str, pa.DataType]
    partition_by: str | None = None
    window: Window = field(default_factory=Window)
    within: int = 0
    to_next_row: bool = False
    measures: Mapping[str, str] | None = None

    @cached_property
    def predicates(self) -> dict[str, Expression]:
        """One predicate per symbol; a symbol without one fits every event, as in SQL."""
        return {symbol: parse_predicate(self.define.get(symbol, "TRUE"), self.types) for symbol in self.pattern.symbols}

    @cached_property
    def measure_expressions(self) -> dict[str, Expression]:
        """Measures name the columns of bound events as `SYMBOL.column`."""
        bound = {f"{s}.{c}": t for s in self.pattern.symbols for c, t in self.types.items()}
        return {name: parse_expression(text, bound) for name, text in (self.measures or {}).items()}

    @cached_property
    def columns(self) -> list[str]:
        """The input columns that have to be read, besides SN and stream time."""
        names = {c for predicate in self.predicates.values() for c in predicate.columns}
        names |= {c.split(".", 1)[1] for measure in self.measure_expressions.values() for c in measure.columns}
        if self.partition_by:
            names.add(self.partition_by)
        return sorted(names)
