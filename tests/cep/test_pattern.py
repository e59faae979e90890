"""The PATTERN text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.errors import ExpressionError


def test_a_sequence_keeps_its_steps_and_may_repeat_a_symbol() -> None:
    pattern = parse_pattern("A -> B->A")
    assert pattern.steps == ("A", "B", "A")
    assert pattern.symbols == ("A", "B")


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("", "empty", 1),
        ("A ->", "ends in", 5),
        ("-> A", "missing before", 1),
        ("A B", "strict contiguity", 3),
        ("A ->> B", "skip-till-any-match", 3),
        ("A -> B+", "quantifiers", 7),
        ("A -> !N -> B", "negation", 6),
        ("(A | B)", "groups", 1),
        ("PERMUTE(A, B)", "PERMUTE", 1),
        ("A -> §", "does not belong", 6),
        (" -> ".join(["A"] * 63), "63 steps", 1),
    ],
)
def test_what_is_not_a_sequence_is_refused_by_name_and_place(text: str, message: str, column: int) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse_pattern(text)
    assert message in str(refused.value)
    assert refused.value.column == column


@given(st.text(alphabet="AB ->!|(){}+*?^$\n\t0é", max_size=30))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert parse_pattern(text).steps
