"""The PATTERN text: a small grammar, read into a tree (docs/LANGUAGE.md, "Steps").

pattern     := ['^'] alternatives ['$']
alternatives:= sequence ('|' sequence)*
sequence    := item ([connector] item)*          connector: nothing (strict), '->' (next), '->>' (any)
item        := primary [quantifier ['?']] | '!' symbol
primary     := symbol | '(' [alternatives] ')' | PERMUTE '(' alternatives (',' alternatives)* ')' | '{-' alternatives '-}'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from spark_jobs.errors import ExpressionError

# The kernel keeps one bit per symbol in a 64-bit word.
MAX_SYMBOLS = 62
# Counted repetitions are unrolled; more than this is a generated pattern, and its tables would not fit a cache.
MAX_STEPS = 2000
# The parser recurses, so its depth has to stay bounded; nobody reads more than this.
MAX_DEPTH = 50
MAX_TEXT = 4000

_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<connector>->>|->)|(?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\})"
    r"|(?P<mark>\{-|-\}|[*+?()|,!^$])|(?P<other>\S))"
)


class Connector(IntEnum):
    """How a step may be reached from the row taken before it."""

    STRICT = 0
    NEXT = 1
    ANY = 2


@dataclass(frozen=True)
class Symbol:
    name: str


@dataclass(frozen=True)
class Item:
    """One element of a sequence: the connector written before it, and the symbols that may not stand in the gap."""

    node: Node
    connector: Connector | None = None
    negated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sequence:
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Alternatives:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Permute:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    node: Node
    low: int
    high: int | None
    greedy: bool


@dataclass(frozen=True)
class Excluded:
    node: Node


Node = Symbol | Sequence | Alternatives | Permute | Repeat | Excluded


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern. `symbols` are all of them, in order of appearance, negated ones included."""

    text: str
    root: Node
    symbols: tuple[str, ...]
    at_start: bool = False
    at_end: bool = False
    never_after: tuple[str, ...] = ()  # negated at the end

    @cached_property
    def steps(self) -> tuple[str, ...] | None:
        """The symbols of a plain sequence `A -> B -> C`, which has a matcher of its own; None for all else."""
        if self.at_start or self.at_end or self.never_after:
            return None
        items = self.root.items if isinstance(self.root, Sequence) else (Item(self.root),)
        plain = [item.node.name for item in items if isinstance(item.node, Symbol) and not item.negated]
        relaxed = all(item.connector is Connector.NEXT for item in items[1:])
        return tuple(plain) if relaxed and 0 < len(plain) == len(items) <= MAX_SYMBOLS else None

    @cached_property
    def bound(self) -> tuple[str, ...]:
        """The symbols that can be bound to rows: all but those only negated."""
        positive = {node.name for node in walk(self.root) if isinstance(node, Symbol)}
        return tuple(symbol for symbol in self.symbols if symbol in positive)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    match node:
        case Sequence(items):
            for item in items:
                yield from walk(item.node)
        case Alternatives(nodes) | Permute(nodes):
            for below in nodes:
                yield from walk(below)
        case Repeat(below, _, _, _) | Excluded(below):
            yield from walk(below)
        case _:
            pass


def parse_pattern(text: str) -> Pattern:
    """Read a pattern; errors name the character in the text."""
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the pattern has {len(text):,} characters; {MAX_TEXT:,} are possible", MAX_TEXT + 1)
    return _Parser(text).pattern()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.place = 0
        self.depth = 0
        self.symbols: dict[str, None] = {}

    def pattern(self) -> Pattern:
        at_start = self._skip("^")
        if self.token.kind == "end" or (at_start and self.token.text == "$"):
            raise self._error("the pattern is empty")
        root = self._alternatives()
        never_after: tuple[str, ...] = ()
        if isinstance(root, Sequence) and root.items and isinstance(root.items[-1].node, Sequence):
            last = root.items[-1]
            if last.node == _NOTHING and last.negated:
                never_after = last.negated
                root = Sequence(root.items[:-1])
        at_end = self._skip("$")
        if self.token.kind != "end":
            raise self._error(f"'{self.token.text}' does not belong here{_hint(self.token.text)}")
        if never_after and at_end:
            raise self._error("a pattern ends in '$' or in a negation, not in both")
        pattern = Pattern(self.text, root, tuple(self.symbols), at_start, at_end, never_after)
        for node in walk(root):
            if isinstance(node, Sequence) and any(item.node == _NOTHING and item.negated for item in node.items):
                raise ExpressionError("a negation without a step after it is possible at the end of the whole pattern only", 1)
        if len(pattern.symbols) > MAX_SYMBOLS:
            raise ExpressionError(f"the pattern has {len(pattern.symbols)} symbols; {MAX_SYMBOLS} are possible", 1)
        return pattern

    @property
    def token(self) -> _Token:
        return self.tokens[self.place]

    def _alternatives(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(f"groups are nested more than {MAX_DEPTH} deep")
        options = [self._sequence()]
        while self._skip("|"):
            options.append(self._sequence())
        self.depth -= 1
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _sequence(self) -> Node:
        items: list[Item] = []
        while True:
            connector, negated = self._gap(first=not items)
            if connector is not None or negated:
                if self._ends():
                    if not negated:
                        raise self._error(f"the pattern ends in '{self.tokens[self.place - 1].text}'")
                    items.append(Item(_NOTHING, connector, negated))
                    break
            elif items and self._ends():
                break
            items.append(Item(self._item(), connector if items else None, negated))
        if len(items) == 1 and not items[0].negated:
            return items[0].node
        return Sequence(tuple(items))

    def _gap(self, *, first: bool) -> tuple[Connector | None, tuple[str, ...]]:
        """The connector, or connectors with negations between them, before an item."""
        connector = self._connector()
        if first and connector is not None:
            raise self._error(f"a symbol is missing before '{self.tokens[self.place - 1].text}'", back=1)
        negated: list[str] = []
        relaxed = connector
        while self.token.text == "!":
            if first:
                raise self._error("a negation needs a step before it: write 'A -> !N -> B'")
            if connector is None:
                raise self._error("in a strict sequence nothing can stand in the gap; write '-> !N ->' for a negation")
            self.place += 1
            negated.append(self._symbol("after '!'"))
            if self.token.text in ("*", "+", "?") or self.token.kind == "count":
                raise self._error(f"a negation has no quantifier: no {negated[-1]} at all may stand in the gap")
            connector = self._connector()
            if connector is None and not self._ends():
                raise self._error(f"'->' is missing after '!{negated[-1]}'")
            relaxed = max(relaxed or connector, connector) if connector else relaxed
        if first:
            return None, ()
        return (relaxed if negated else (connector if connector is not None else None)), tuple(negated)

    def _connector(self) -> Connector | None:
        if self.token.kind != "connector":
            return None
        self.place += 1
        return Connector.ANY if self.tokens[self.place - 1].text == "->>" else Connector.NEXT

    def _item(self) -> Node:
        node = self._primary()
        bounds = self._quantifier()
        if bounds is None:
            return node
        greedy = not self._skip("?")
        if self.token.text in ("*", "+", "?") or self.token.kind == "count":
            raise self._error(f"'{self.token.text}' follows a quantifier; put what it repeats into a group")
        return Repeat(node, *bounds, greedy)

    def _primary(self) -> Node:
        token = self.token
        if token.kind == "word":
            if token.text.upper() == "PERMUTE" and self.tokens[self.place + 1].text == "(":
                self.place += 2
                return self._permute()
            return Symbol(self._symbol(""))
        if token.text == "(":
            self.place += 1
            if self._skip(")"):
                return _NOTHING
            node = self._alternatives()
            self._expect(")", token)
            return node
        if token.text == "{-":
            self.place += 1
            node = self._alternatives()
            self._expect("-}", token)
            return Excluded(node)
        raise self._error(
            "a symbol is missing" if token.kind == "end" else f"'{token.text}' where a symbol is needed{_hint(token.text)}"
        )

    def _permute(self) -> Node:
        opening = self.tokens[self.place - 1]
        items = [self._alternatives()]
        while self._skip(","):
            items.append(self._alternatives())
        self._expect(")", opening)
        return Permute(tuple(items))

    def _quantifier(self) -> tuple[int, int | None] | None:
        token = self.token
        if token.text in ("*", "+", "?"):
            self.place += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token.text]
        if token.kind != "count":
            return None
        self.place += 1
        low, comma, high = token.text.strip("{}").partition(",")
        if not low.strip() and not high.strip():
            raise self._error(f"'{token.text}' has no number", back=1)
        least = int(low) if low.strip() else 0
        most = least if not comma else (int(high) if high.strip() else None)
        if most is not None and most < least:
            raise self._error(f"'{token.text}' fits no number of rows", back=1)
        if max(least, most or 0) > MAX_STEPS:
            raise self._error(f"'{token.text}' repeats more than {MAX_STEPS:,} times", back=1)
        return least, most

    def _symbol(self, where: str) -> str:
        if self.token.kind != "word":
            raise self._error(f"a symbol is missing {where}".rstrip())
        self.place += 1
        name = self.tokens[self.place - 1].text
        self.symbols[name] = None
        return name

    def _ends(self) -> bool:
        return self.token.kind == "end" or self.token.text in (")", "|", ",", "-}", "$")

    def _skip(self, text: str) -> bool:
        if self.token.text != text or self.token.kind == "end":
            return False
        self.place += 1
        return True

    def _expect(self, text: str, opening: _Token) -> None:
        if not self._skip(text):
            raise self._error(f"'{text}' is missing for the '{opening.text}' at character {opening.column}")

    def _error(self, message: str, back: int = 0) -> ExpressionError:
        return ExpressionError(message, self.tokens[self.place - back].column)


_NOTHING = Sequence(())


def _tokens(text: str) -> list[_Token]:
    found = []
    position = 0
    while position < len(text.rstrip()):
        token = _TOKEN.match(text, position)
        if token is None:  # only white space can fail to match, and rstrip() took that
            break
        kind = token.lastgroup or "other"
        if kind == "other":
            raise ExpressionError(
                f"'{token.group(kind)}' does not belong in a pattern{_hint(token.group(kind))}", token.start(kind) + 1
            )
        found.append(_Token(kind, token.group(kind), token.start(kind) + 1))
        position = token.end()
    return [*found, _Token("end", "", len(text) + 1)]


def _hint(text: str) -> str:
    hints = {
        "&": "; steps follow each other as 'A B', 'A -> B' or 'A ->> B'",
        "-": "; write '->' for 'later', or 'A B' for 'directly after'",
        ">": "; write '->' for 'later', or 'A B' for 'directly after'",
        "{": "; a count is '{3}', '{3,}' or '{3,5}', an exclusion '{- A -}'",
        "^": "; '^' stands at the beginning of the whole pattern",
        "$": "; '$' stands at the end of the whole pattern",
    }
    return hints.get(text, "")
