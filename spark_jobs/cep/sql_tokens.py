"""The tokens of MATCH_RECOGNIZE, and a reader of them whose errors name a character of the whole text.

`"x"` and `` `x` `` are names, `'x'` is text with `''` for a quote, comments are white space. sqlglot's tokenizers know one
of the two quotings each and read template marks (`{%`, `{{`) that a PATTERN may contain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_jobs.cep.query import Order, placed_error
from spark_jobs.cep.words import LARGEST_COUNT, interval
from spark_jobs.errors import ExpressionError, suggest

T = TypeVar("T")

TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)|(?P<word>[^\W\d]\w*)|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"""
    r"""|(?P<string>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)|(?P<mark>->>|->|<>|!=|<=|>=|\|\||.)""",
    re.DOTALL,
)


def fragment(text: str) -> str:
    """The text of an expression as the clause would give it; refused if it would not stay one piece there."""
    tokens = tokens_of(text, 0, len(text))
    if not tokens:
        raise ExpressionError("the text is empty", 1)
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.kind == "mark" and token.text in "'\"`":
            raise ExpressionError(f"the {token.text} is not closed", token.start + 1)
        if depth < 0 or (depth == 0 and token.text == ","):
            raise ExpressionError(f"'{token.text}' does not belong here", token.start + 1)
    if depth:
        raise ExpressionError("')' is missing", len(text) + 1)
    return Reader(text, tokens, len(text)).text(0, len(tokens), "an expression")[0]


def order_of(text: str) -> Order:
    """`amount DESC NULLS LAST` as the builder takes it."""
    reader = Reader(text, tokens_of(text, 0, len(text)), len(text))
    order = reader.order()
    if reader.place < len(reader.tokens):
        raise reader.unexpected(["ASC", "DESC", "NULLS"])
    return order


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """A bare word in capitals; nothing for a quoted name, which is never a keyword."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str | None:
        return unquoted(self.text) if self.kind in ("word", "quoted") else None


def tokens_of(text: str, start: int, end: int) -> list[Token]:
    found = TOKEN.finditer(text, start, end)
    return [Token(token.lastgroup or "mark", token.group(), token.start()) for token in found if token.lastgroup != "space"]


def unquoted(text: str) -> str:
    if text[:1] in ('"', "`"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


class Reader:
    """Reads tokens one after the other; errors name a character of the whole text."""

    def __init__(self, sql: str, tokens: Sequence[Token], end: int) -> None:
        self.sql, self.tokens, self.end = sql, tokens, end
        self.place = 0

    @property
    def at(self) -> int:
        return self.tokens[self.place].start if self.place < len(self.tokens) else self.end

    def error(self, message: str, at: int | None = None) -> ExpressionError:
        return placed_error(message, self.sql, (self.at if at is None else at) + 1)

    def peek(self, ahead: int = 0) -> Token:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else Token("end", "", self.end)

    def next(self) -> Token:
        token = self.peek()
        self.place += 1
        return token

    def skip(self, *words: str) -> bool:
        if all((self.peek(i).word or self.peek(i).text) == word for i, word in enumerate(words)):
            self.place += len(words)
            return True
        return False

    def expect(self, *words: str, known: Sequence[str] = ()) -> None:
        for word in words:
            if not self.skip(word):
                raise self.unexpected(known or [word])

    def unexpected(self, known: Sequence[str]) -> ExpressionError:
        token = self.peek()
        choices = " or ".join(f"'{word}'" for word in known)
        if token.kind == "end":
            return self.error(f"{choices} is missing")
        close = suggest(token.word, list(known)) if token.word else ""
        hint = close if close.startswith("; did") else f"; {choices} is needed here"
        return self.error(f"unexpected '{token.text}'{hint}")

    def name(self, what: str) -> str:
        name = self.peek().name
        if name is None:
            token = self.peek()
            raise self.error(f"{what} is missing" if token.kind == "end" else f"'{token.text}' where {what} is needed")
        self.place += 1
        return name

    def list_of(self, read: Callable[[], T]) -> list[T]:
        values = [read()]
        while self.skip(","):
            values.append(read())
        return values

    def order(self) -> Order:
        column = self.name("a column")
        descending = self.skip("DESC")
        if not descending:
            self.skip("ASC")
        nulls_first = not descending
        if self.skip("NULLS"):
            nulls_first = self.skip("FIRST")
            if not nulls_first:
                self.expect("LAST", known=["FIRST", "LAST"])
        return Order(column, descending, nulls_first)

    def interval(self) -> int:
        self.expect("INTERVAL")
        token = self.next()
        if token.kind not in ("string", "number"):
            raise self.error("INTERVAL needs a number, as in INTERVAL '10' MINUTES", token.start)
        number = token.text.strip("'").strip()
        unit = number.partition(" ")[2].strip() if token.kind == "string" else ""
        if not unit:
            unit_token = self.next()
            if unit_token.kind != "word":
                raise self.error("INTERVAL needs a unit, as in INTERVAL '10' MINUTES", unit_token.start)
            unit = unit_token.text
        if self.peek().word == "TO":
            raise self.error("write the interval in one unit")
        try:
            return interval(number.partition(" ")[0], unit)
        except ValueError as error:
            raise self.error(str(error), token.start) from None

    def count(self) -> int:
        token = self.next()
        if not (token.kind == "number" and token.text.isdecimal()):
            raise self.error("a number of rows is needed here", token.start)
        if len(token.text) > 20 or not 1 <= int(token.text) <= LARGEST_COUNT:
            raise self.error(f"'{token.text[:30]}' is not a possible number of rows", token.start)
        return int(token.text)

    def text(self, start: int, end: int, what: str) -> tuple[str, int]:
        """The text of the tokens [start, end) with comments blanked, and where it begins."""
        tokens = self.tokens[start:end]
        if not tokens:
            raise self.error(f"{what} is missing", self.tokens[start].start if start < len(self.tokens) else self.end)
        pieces, at = [], tokens[0].start
        for token in tokens:
            gap = self.sql[at : token.start]
            pieces.append(gap if gap.isspace() else " " * len(gap))
            # Expressions know double quotes only; a name without either quote in it keeps its length.
            quoted = token.kind == "quoted" and token.text[0] == "`"
            pieces.append(_double_quoted(token.text) if quoted else token.text)
            at = token.end
        return "".join(pieces), tokens[0].start


def _double_quoted(text: str) -> str:
    return '"' + unquoted(text).replace('"', '""') + '"'
