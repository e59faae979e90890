"""The PATTERN text, and the automaton it becomes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.cep.automaton import NO_ACCEPT, compile_pattern
from spark_jobs.cep.pattern import MAX_DEPTH, parse_pattern
from spark_jobs.errors import ExpressionError


def test_a_sequence_keeps_its_steps_and_may_repeat_a_symbol() -> None:
    pattern = parse_pattern("A -> B->A")
    assert pattern.steps == ("A", "B", "A")
    assert pattern.symbols == ("A", "B")


OTHERS = ["A B", "A ->> B", "A -> B+", "A -> !N -> B", "(A | B)", "^ A -> B", "A -> B $", "A -> B -> !N"]


@pytest.mark.parametrize("text", OTHERS)
def test_only_plain_sequences_have_steps(text: str) -> None:
    assert parse_pattern(text).steps is None


def test_negated_symbols_are_symbols_that_nothing_binds() -> None:
    pattern = parse_pattern("A -> !N -> B -> !M")
    assert pattern.symbols == ("A", "N", "B", "M")
    assert pattern.bound == ("A", "B")
    assert pattern.never_after == ("M",)


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("", "empty", 1),
        ("A ->", "ends in", 5),
        ("-> A", "missing before", 1),
        ("A -> §", "does not belong", 6),
        ("A & B", "'A -> B'", 3),
        ("(A", "')' is missing for the '(' at character 1", 3),
        ("A {- B", "'-}' is missing", 7),
        ("A)", "does not belong here", 2),
        ("A -> !", "symbol is missing after '!'", 7),
        ("!N -> A", "needs a step before it", 1),
        ("A !N B", "write '-> !N ->'", 3),
        ("A -> !N B", "'->' is missing after '!N'", 9),
        ("(A -> !N) B", "at the end of the whole pattern only", 1),
        ("A -> !N $", "not in both", 10),
        ("A{3,2}", "fits no number", 2),
        ("A{,}", "has no number", 2),
        ("A+*", "follows a quantifier", 3),
        ("A{9999}", "more than 2,000 times", 2),
        ("A ^ B", "beginning of the whole pattern", 3),
        ("A $ B", "does not belong here", 5),
        ("(" * 60 + "A" + ")" * 60, f"nested more than {MAX_DEPTH} deep", 51),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, message: str, column: int) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse_pattern(text)
    assert message in str(refused.value)
    assert refused.value.column == column


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("((A{100}){100}){100}", "more than 2,000 steps"),
        ("PERMUTE(A, B, C, D, E, F)", "5 are possible"),
        ("A" + " B?" * 63, "can be told apart"),
    ],
)
def test_what_would_not_fit_the_kernel_is_refused(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        compile_pattern(parse_pattern(text))


def options(text: str) -> list[list[str]]:
    """Per state its options in order, as `symbol/connector/negations`."""
    automaton = compile_pattern(parse_pattern(text))
    found = []
    for state in automaton.states:
        words = []
        for option in state.options:
            symbol = str(automaton.states[option.state].symbol)
            words.append("/".join([symbol, option.connector.name.lower(), *sorted(option.negated)]))
        if state.accept != NO_ACCEPT:
            words.insert(state.accept, "accept")
        found.append(words)
    return found


def test_a_repetition_repeats_the_connector_before_it() -> None:
    assert options("A -> B+ -> C") == [["A/strict"], ["B/next"], ["B/next", "C/next"], ["accept"]]
    assert options("A -> (B B*)") == [["A/strict"], ["B/next"], ["B/strict", "accept"], ["B/strict", "accept"]]


def test_reluctant_repetitions_prefer_to_go_on() -> None:
    assert options("A B*? C")[1] == ["C/strict", "B/strict"]
    assert options("A B*?")[1] == ["accept", "B/strict"]


def test_a_left_out_step_leaves_its_negation_behind() -> None:
    assert options("A -> !N -> B? -> C")[1] == ["B/next/N", "C/next/N"]


def test_a_turn_that_takes_nothing_is_no_turn() -> None:
    assert options("(A??)*") == [["A/strict", "accept"], ["A/strict", "accept"]]


@given(st.text(alphabet="AB ->!|(){}+*?^$\n\t0é", max_size=30))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert compile_pattern(parse_pattern(text)).states
