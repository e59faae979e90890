"""The oracle's own SQL expressions: text to closure, evaluated one row at a time with Python's None as NULL.

It shares nothing with the engine's compiler and knows only what docs/LANGUAGE.md lists under DEFINE and MEASURES.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol


class Row(Protocol):
    """What an event is to an expression: something with an SN, and columns as attributes."""

    sn: int


Bound = tuple[str, Any]  # a symbol and the event bound to it


@dataclass(frozen=True)
class Scope:
    """What an expression sees: the rows bound so far, those of the whole match, the row at hand, all rows of the key."""

    running: Sequence[Bound]
    final: Sequence[Bound]
    at: Bound | None
    key_rows: Sequence[Any]
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    match_number: int | None = None

    def rows(self, symbol: str | None, final: bool) -> list[Any]:
        members = None if symbol is None else set(self.subsets.get(symbol, [symbol]))
        return [e for s, e in (self.final if final else self.running) if members is None or s in members]


Value = Callable[[Scope], Any]
Place = Callable[[Scope], Any]  # finds an event, or None

TOKEN = re.compile(r"\s*(\d+\.\d+|\d+|'(?:[^']|'')*'|[A-Za-z_]\w*|<>|!=|<=|>=|[-+*/%(),.=<>])")
AGGREGATES = {"COUNT", "SUM", "MIN", "MAX", "AVG"}
OVER_VALUES: dict[str, Callable[[list[Any]], Any]] = {"SUM": sum, "MIN": min, "MAX": max}


@cache
def expression(text: str) -> Value:
    parser = _Parser(TOKEN.findall(text))
    if "".join(parser.tokens) != re.sub(r"\s", "", text) and "'" not in text:
        raise ValueError(f"cannot read all of {text!r}")
    value = parser.disjunction()
    if parser.peek() is not None:
        raise ValueError(f"{text!r}: {parser.peek()!r} is left over")
    return value


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> str | None:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else None

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def word(self, *words: str) -> bool:
        """Steps over these key words if they come next."""
        if all((self.peek(i) or "").upper() == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.word(token):
            raise ValueError(f"{token} expected at {self.tokens[self.at :]}")

    def disjunction(self) -> Value:
        left = self.conjunction()
        while self.word("OR"):
            left = _or(left, self.conjunction())
        return left

    def conjunction(self) -> Value:
        left = self.negation()
        while self.word("AND"):
            left = _and(left, self.negation())
        return left

    def negation(self) -> Value:
        if self.word("NOT"):
            return _not(self.negation())
        return self.comparison()

    def comparison(self) -> Value:
        left = self.sum()
        if self.peek() in COMPARE:
            return _strict(COMPARE[self.take()], left, self.sum())
        if self.word("IS", "NOT", "NULL"):
            return lambda s: left(s) is not None
        if self.word("IS", "NULL"):
            return lambda s: left(s) is None
        denied = self.word("NOT")
        if self.word("BETWEEN"):
            low = self.sum()
            self.expect("AND")
            value = _and(_strict(COMPARE[">="], left, low), _strict(COMPARE["<="], left, self.sum()))
        elif self.word("IN"):
            self.expect("(")
            value = _strict(COMPARE["="], left, self.sum())
            while self.word(","):
                value = _or(value, _strict(COMPARE["="], left, self.sum()))
            self.expect(")")
        elif self.word("LIKE"):
            value = _strict(_like, left, self.sum())
        else:
            return left
        return _not(value) if denied else value

    def sum(self) -> Value:
        left = self.product()
        while self.peek() in ("+", "-"):
            left = _strict(ARITHMETIC[self.take()], left, self.product())
        return left

    def product(self) -> Value:
        left = self.unary()
        while self.peek() in ("*", "/", "%"):
            left = _strict(ARITHMETIC[self.take()], left, self.unary())
        return left

    def unary(self) -> Value:
        if self.word("-"):
            value = self.unary()
            return _strict(lambda v: -v, value)
        return self.primary()

    def primary(self) -> Value:
        token = self.peek() or ""
        upper = token.upper()
        if self.word("("):
            inner = self.disjunction()
            self.expect(")")
            return inner
        if token[:1].isdigit():
            number = float(self.take()) if "." in token else int(self.take())
            return lambda s: number
        if token.startswith("'"):
            string = self.take()[1:-1].replace("''", "'")
            return lambda s: string
        if upper in ("TRUE", "FALSE", "NULL"):
            constant = {"TRUE": True, "FALSE": False, "NULL": None}[self.take().upper()]
            return lambda s: constant
        if upper == "CASE":
            return self.case()
        final = self.word("FINAL")
        if not final:
            self.word("RUNNING")
        if self.peek(1) == "(":
            return self.function(final)
        place, column = self.place(final)
        return _column(place, column)

    def case(self) -> Value:
        self.expect("CASE")
        subject = None if (self.peek() or "").upper() == "WHEN" else self.disjunction()
        branches = []
        while self.word("WHEN"):
            condition = self.disjunction()
            if subject is not None:
                condition = _strict(COMPARE["="], subject, condition)
            self.expect("THEN")
            branches.append((condition, self.disjunction()))
        otherwise = self.disjunction() if self.word("ELSE") else (lambda s: None)
        self.expect("END")

        def value(s: Scope) -> Any:
            for condition, result in branches:
                if condition(s) is True:
                    return result(s)
            return otherwise(s)

        return value

    def function(self, final: bool) -> Value:
        name = (self.peek() or "").upper()
        if name in ("FIRST", "LAST", "PREV", "NEXT"):
            place, column = self.place(final)
            return _column(place, column)
        self.at += 2
        if name in ("CLASSIFIER", "MATCH_NUMBER"):
            self.expect(")")
            if name == "CLASSIFIER":
                return lambda s: s.at and s.at[0]
            return lambda s: s.match_number
        if name in AGGREGATES:
            return self.aggregate(name, final)
        arguments = [self.disjunction()]
        while self.word(","):
            arguments.append(self.disjunction())
        self.expect(")")
        if name == "COALESCE":
            return lambda s: next((v for v in (a(s) for a in arguments) if v is not None), None)
        return _strict(SCALAR[name], *arguments)

    def aggregate(self, name: str, final: bool) -> Value:
        symbol, column = None, self.take()
        if self.word("."):
            symbol, column = column, self.take()
        self.expect(")")
        if column == "*":
            return lambda s: len(s.rows(symbol, final))

        def value(s: Scope) -> Any:
            values = [v for v in (getattr(e, column) for e in s.rows(symbol, final)) if v is not None]
            if name == "COUNT":
                return len(values)
            if not values:
                return None
            return sum(values) / len(values) if name == "AVG" else OVER_VALUES[name](values)

        return value

    def place(self, final: bool) -> tuple[Place, str]:
        """`v`, `A.v`, or FIRST, LAST, PREV, NEXT around one: which event to look at, and its column."""
        name = self.take()
        if self.peek() != "(":
            if not self.word("."):
                return (lambda s: s.at and s.at[1]), name
            return _counted("LAST", name, 0, final), self.take()
        self.take()
        navigation = name.upper()
        symbol, inner = None, None
        if navigation in ("PREV", "NEXT"):
            inner, column = self.place(final)
        else:
            column = self.take()
            if self.word("."):
                symbol, column = column, self.take()
        offset = int(self.take()) if self.word(",") else (1 if inner else 0)
        self.expect(")")
        if inner:
            return _moved(inner, -offset if navigation == "PREV" else offset), column
        return _counted(navigation, symbol, offset, final), column


def _counted(navigation: str, symbol: str | None, offset: int, final: bool) -> Place:
    def place(s: Scope) -> Any:
        rows = s.rows(symbol, final)
        if offset >= len(rows):
            return None
        return rows[offset] if navigation == "FIRST" else rows[-1 - offset]

    return place


def _moved(inner: Place, by: int) -> Place:
    def place(s: Scope) -> Any:
        event = inner(s)
        if event is None:
            return None
        target = [e.sn for e in s.key_rows].index(event.sn) + by
        return s.key_rows[target] if 0 <= target < len(s.key_rows) else None

    return place


def _column(place: Place, column: str) -> Value:
    def value(s: Scope) -> Any:
        event = place(s)
        return None if event is None else getattr(event, column)

    return value


def _strict(function: Callable[..., Any], *arguments: Value) -> Value:
    """NULL if any argument is."""

    def value(s: Scope) -> Any:
        values = [a(s) for a in arguments]
        return None if any(v is None for v in values) else function(*values)

    return value


def _and(left: Value, right: Value) -> Value:
    def value(s: Scope) -> Any:
        both = (left(s), right(s))
        return False if False in both else None if None in both else True

    return value


def _or(left: Value, right: Value) -> Value:
    def value(s: Scope) -> Any:
        both = (left(s), right(s))
        return True if True in both else None if None in both else False

    return value


def _not(inner: Value) -> Value:
    return _strict(lambda v: not v, inner)


def _like(text: str, pattern: str) -> bool:
    regex = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
    return re.fullmatch(regex, text, re.DOTALL) is not None


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: None if b == 0 else a / b,
    "%": lambda a, b: None if b == 0 else math.fmod(a, b),
}
SCALAR: dict[str, Callable[..., Any]] = {
    "ABS": abs,
    "LOWER": str.lower,
    "UPPER": str.upper,
    "LENGTH": len,
    "ROUND": lambda v, n=0: math.floor(abs(v) * 10**n + 0.5) / 10**n * (1 if v >= 0 else -1),
    "FLOOR": math.floor,
    "CEIL": math.ceil,
}
