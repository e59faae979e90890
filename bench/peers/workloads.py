"""The workloads, each said once: from this come our pipeline, Flink's pattern and query, and the hand-written operator.

All of them look at one event per millisecond of ten types, a to j, equally often. Matches consume their events (AFTER MATCH
SKIP PAST LAST ROW), and every match is decided by its last event, so that what is found in the first events of a log is what
is found in all of it, up to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.engine import TYPES, Shape
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline

OPERATOR = "peer"
LETTERS = "abcdefghijklmnopqrstuvwxyz"[:TYPES]
SOURCE = """
name: peers
source:
  columns: {ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}
  attributes: {v: double}
  buckets: 8
"""
UNITS = ((1, "SECOND"), (60, "MINUTE"), (3600, "HOUR"))
# By name, with the number of events left to who makes them.
LOGS = {
    "10,000 keys": Shape(0, 10_000),
    "1,000,000 keys": Shape(0, 1_000_000),
    "one key with half of the events": Shape(0, 10_000, hot=0.5),
}


@dataclass(frozen=True)
class Step:
    """A symbol, the types that fit it, and those that may not stand in the gap before it."""

    symbol: str
    types: str
    nots: str = ""


@dataclass(frozen=True)
class Windows:
    """By count, over all events of the log."""

    size: int
    slide: int


def _steps(*types: str) -> tuple[Step, ...]:
    return tuple(Step(symbol, fits) for symbol, fits in zip("ABCDE", types, strict=False))


@dataclass(frozen=True)
class Workload:
    """A pattern over one of the logs. `rising` is A R+ T instead of the steps one after the other."""

    name: str
    steps: tuple[Step, ...]
    within: int  # seconds
    log: str = "10,000 keys"
    keyed: bool = True
    windows: Windows | None = None
    rising: bool = False

    @property
    def symbols(self) -> str:
        return "".join(step.symbol for step in self.steps)

    def pipeline(self) -> Pipeline:
        return parse_pipeline(self.text(), f"{self.name}.yaml")

    def text(self) -> str:
        """As a user of Reprise writes it."""
        lines = [
            f"    pattern: {self.pattern()}",
            "    define:",
            *(f'      {symbol}: "{predicate}"' for symbol, predicate in self.define().items()),
            f"    within: {self.within} s",
            "    partition_by: key" if self.keyed else "",
            f"    window: {{count: {self.windows.size}, slide: {self.windows.slide}}}" if self.windows else "",
        ]
        return f"{SOURCE}operators:\n  {OPERATOR}:\n" + "\n".join(line for line in lines if line) + "\n"

    def pattern(self) -> str:
        if self.rising:
            return "A R+ T"
        elements = [f"!N{step.symbol} -> {step.symbol}" if step.nots else step.symbol for step in self.steps]
        return " -> ".join(elements)

    def define(self) -> dict[str, str]:
        if self.rising:
            return {"A": "type = 'a'", "R": "v > COALESCE(LAST(R.v, 1), A.v)", "T": "v < A.v"}
        steps = {step.symbol: _one_of("type", step.types) for step in self.steps}
        return steps | {f"N{step.symbol}": _one_of("type", step.nots) for step in self.steps if step.nots}

    def row_predicates(self) -> list[str]:
        """The types that are asked for: what a scan can evaluate, row by row."""
        return [types for step in self.steps for types in (step.types, step.nots) if types]

    def columns(self) -> list[str]:
        """What has to be read of the log."""
        return ["sn", "stream_ts", "type", *(["key"] if self.keyed else []), *(["v"] if self.rising else [])]

    # Flink's SQL has neither relaxed steps nor negation: the rows in between are symbols of their own.

    def sql(self) -> str:
        """As a user of Flink writes it: strict steps, with every row that may be passed over spelled out."""
        partition = "PARTITION BY w " if self.windows else "PARTITION BY `key` " if self.keyed else ""
        lists = [
            f"LISTAGG(CAST({symbol}.sn AS VARCHAR)) AS s{i}" if symbol == "R" else f"{symbol}.sn AS s{i}"
            for i, symbol in enumerate(self.symbols)
        ]
        measures = ", ".join([*lists, f"{self.symbols[0]}.w AS y"])
        pattern, define = self._strict()
        defined = ", ".join(f"{symbol} AS {predicate}" for symbol, predicate in define.items())
        clause = (
            f"{partition}ORDER BY rowtime MEASURES {measures} ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW "
            f"PATTERN ({pattern}) WITHIN INTERVAL {self._interval()} DEFINE {defined}"
        )
        return f"SELECT * FROM log MATCH_RECOGNIZE ({clause})"  # noqa: S608 nobody's input is in it

    def _interval(self) -> str:
        """In a unit of which there are fewer than 100: Flink refuses three digits."""
        seconds, unit = next((seconds, unit) for seconds, unit in UNITS if self.within < 100 * seconds)
        return f"'{self.within // seconds}' {unit}"

    def _strict(self) -> tuple[str, dict[str, str]]:
        if self.rising:
            rises = "R.v > A.v AND (LAST(R.v, 1) IS NULL OR R.v > LAST(R.v, 1))"
            return "A R+ T", {"A": "A.type = 'a'", "R": rises, "T": "T.v < A.v"}
        words, define = [self.steps[0].symbol], {}
        for step in self.steps:
            define[step.symbol] = _one_of(f"{step.symbol}.type", step.types)
        for step in self.steps[1:]:
            gap = f"G{step.symbol}"
            words += [f"{gap}*", step.symbol]
            passed = "".join(letter for letter in LETTERS if letter not in step.types + step.nots)
            define[gap] = _one_of(f"{gap}.type", passed)
        return " ".join(words), define


def _one_of(column: str, types: str) -> str:
    if len(types) == 1:
        return f"{column} = '{types}'"
    return f"{column} IN ({', '.join(repr(letter) for letter in types)})"


ABCDE = _steps("a", "b", "c", "d", "e")
WORKLOADS: Sequence[Workload] = (
    Workload("abcde, keyed", ABCDE, within=600),
    Workload("abcde, unkeyed", ABCDE, within=1, keyed=False),
    Workload("overlapping windows", ABCDE, within=1, keyed=False, windows=Windows(1_000, 50)),
    Workload("Kleene run", (Step("A", "a"), Step("R", ""), Step("T", "")), within=600, rising=True),
    Workload("negation", (Step("A", "a"), Step("B", "b"), Step("D", "d", nots="c")), within=600),
    Workload("high match rate", _steps("abcde", "fghij"), within=600),
    Workload("1,000,000 keys", _steps("abc", "def", "ghi"), within=36_000, log="1,000,000 keys"),
    Workload("skewed key", ABCDE, within=600, log="one key with half of the events"),
)
BY_NAME = {workload.name: workload for workload in WORKLOADS}
