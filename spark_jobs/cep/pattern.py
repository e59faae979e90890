"""The PATTERN text: which symbols have to follow each other (PATTERNS.md).

This version reads sequences under skip-till-next-match, `A -> B -> C`. Everything else of the language is
recognised and refused by name, so that nobody gets a match that means something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_jobs.errors import ExpressionError

# The kernel keeps a symbol mask per event, one bit per step, in a signed 64-bit word.
MAX_STEPS = 62

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<connector>->>|->)|(?P<other>\S))")
_LATER = {
    "->>": "skip-till-any-match (->>)",
    "!": "negation (!)",
    "*": "quantifiers",
    "+": "quantifiers",
    "?": "quantifiers",
    "{": "quantifiers and exclusion",
    "(": "groups",
    "|": "alternation",
    "^": "anchors",
    "$": "anchors",
}


@dataclass(frozen=True)
class Pattern:
    """A sequence of steps; each names the symbol it binds. A symbol may stand more than once."""

    text: str
    steps: tuple[str, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.steps))


def parse_pattern(text: str) -> Pattern:
    """Read `A -> B -> C`; errors name the column in the text."""
    steps: list[str] = []
    expecting_symbol = True
    position = 0
    while position < len(text.rstrip()):
        token = _TOKEN.match(text, position)
        if token is None:  # only white space can fail to match, and rstrip() took that
            break
        kind = token.lastgroup or "other"
        word = token.group(kind)
        column = token.start(kind) + 1
        position = token.end()
        if kind == "word" and word.upper() == "PERMUTE":
            raise ExpressionError("PERMUTE is not supported yet; this version reads sequences 'A -> B -> C'", column)
        if kind == "other" or word == "->>":
            raise ExpressionError(_refusal(word), column)
        if expecting_symbol and kind == "connector":
            raise ExpressionError(f"a symbol is missing before '{word}'", column)
        if not expecting_symbol and kind == "word":
            raise ExpressionError(
                f"'{steps[-1]} {word}' asks for strict contiguity, which is not supported yet; "
                f"write '{steps[-1]} -> {word}' for skip-till-next-match",
                column,
            )
        if kind == "word":
            steps.append(word)
        expecting_symbol = kind == "connector"
    if expecting_symbol:
        raise ExpressionError("the pattern is empty" if not steps else "the pattern ends in '->'", len(text) + 1)
    if len(steps) > MAX_STEPS:
        raise ExpressionError(f"the pattern has {len(steps)} steps; {MAX_STEPS} are possible", 1)
    return Pattern(text=text, steps=tuple(steps))


def _refusal(word: str) -> str:
    if word in _LATER:
        return f"{_LATER[word]} not supported yet; this version reads sequences 'A -> B -> C'"
    return f"'{word}' does not belong in a pattern; write a sequence such as 'A -> B -> C'"
