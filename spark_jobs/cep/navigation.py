"""Navigation functions (FIRST, LAST, PREV, COUNT, ..) in the text of an expression, hidden from sqlglot and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from spark_jobs.errors import ExpressionError

# sqlglot takes some twenty frames of Python's stack per bracket. This leaves room in the default stack wherever it is
# called, so what is accepted does not depend on the caller.
MAX_BRACKETS = 30


class Word(NamedTuple):
    """A navigation function as the user wrote it, at a place of the text."""

    name: str
    final: bool | None  # FINAL or RUNNING before it, None without either


NAVIGATION = {"FIRST", "LAST", "PREV", "NEXT", "CLASSIFIER", "MATCH_NUMBER"}

AGGREGATES = {"COUNT", "SUM", "MIN", "MAX", "AVG"}


def without_navigation(text: str) -> tuple[str, dict[int, Word]]:
    """The text with navigation functions renamed to words unknown to sqlglot, and what stood at which place.

    sqlglot knows FIRST, LAST, COUNT and the like in its own ways (one dialect drops LAST's offset). The new words
    have the same length, so places in messages stay true; they mean something at the recorded places only.
    """
    tokens = Tokenizer().tokenize(text)
    _check_depth(tokens)
    letters, calls = list(text), {}
    for at, token in enumerate(tokens):
        if not _opens_call(tokens, at, NAVIGATION | AGGREGATES):
            continue
        before = tokens[at - 1] if at else None
        final = None
        if before is not None and _is_word(before, {"RUNNING", "FINAL"}):
            final = before.text.upper() == "FINAL"
            letters[before.start : before.end + 1] = " " * (before.end + 1 - before.start)
        calls[token.start] = Word(token.text.upper(), final)
        letters[token.start : token.end + 1] = "_" + "z" * (token.end - token.start)
    return "".join(letters), calls


def _opens_call(tokens: Sequence[Token], at: int, names: set[str]) -> bool:
    follows = at + 1 < len(tokens) and tokens[at + 1].token_type == TokenType.L_PAREN
    qualified = at > 0 and tokens[at - 1].token_type == TokenType.DOT
    return follows and not qualified and _is_word(tokens[at], names)


def _is_word(token: Token, names: set[str]) -> bool:
    quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    return not quoted and token.text.upper() in names and len(token.text) == token.end + 1 - token.start


def _check_depth(tokens: Sequence[Token]) -> None:
    """sqlglot's parser recurses too; what is too deep is refused before it starts."""
    depth = prefixes = 0
    for token in tokens:
        word = token.text.upper()
        depth += (word in {"(", "[", "{", "CASE"}) - (word in {")", "]", "}", "END"})
        prefixes = prefixes + 1 if word in {"NOT", "-", "+", "~", "INTERVAL"} else 0
        if depth + prefixes > MAX_BRACKETS:
            raise ExpressionError(f"the expression is nested too deeply; {MAX_BRACKETS} levels are possible", token.start + 1)
