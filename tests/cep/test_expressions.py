"""Predicates and measures: what they mean, and what is refused, with its place."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.cep.expressions import parse_expression, parse_predicate
from spark_jobs.errors import ExpressionError

TYPES = {
    "type": pa.string(),
    "amount": pa.float64(),
    "n": pa.int64(),
    "ok": pa.bool_(),
    "ts": pa.timestamp("us", "UTC"),
}
ROWS = {
    "type": pa.array(["a", "b", None]),
    "amount": pa.array([1.0, None, 3.0]),
    "n": pa.array([1, 0, 5]),
    "ok": pa.array([True, False, None]),
    "ts": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type = 'a'", [True, False, None]),
        ("type = 'a' AND amount < 5", [True, False, None]),
        ("type = 'a' OR ok", [True, False, None]),
        ("NOT ok", [False, True, None]),
        ("amount / n > 0.5", [True, None, True]),  # 0.6 and, for the division by zero, NULL
        ("n IN (1, 5)", [True, False, True]),
        ("n NOT IN (1)", [False, True, True]),
        ("n BETWEEN 1 AND 3", [True, False, False]),
        ("type IS NOT NULL", [True, True, False]),
        ("type LIKE 'a%'", [True, False, None]),
        ("COALESCE(amount, 9) > 2", [False, True, True]),
        ("-n < -1", [False, False, True]),
        ("ABS(0 - n) = 5", [False, False, True]),
        ("UPPER(type) = 'A'", [True, False, None]),
        ("ts > TIMESTAMP '1970-01-01 00:00:00'", [False, True, True]),
        ("n * 2 - 1 = 9", [False, False, True]),
    ],
)
def test_a_predicate_follows_sql(text: str, expected: list[bool | None]) -> None:
    assert parse_predicate(text, TYPES).evaluate(ROWS).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("typ = 'a'", "unknown column 'typ'; did you mean 'type'?", 1),
        ("n = 1 AND typ = 'a'", "unknown column 'typ'", 11),
        ("type = 3", "compares string with int64", 1),
        ("amount + type > 3", "needs numbers", 1),
        ("n + 1", "must be true or false", 1),
        ("type =", "an operand is missing", 6),
        ("foo(n) = 1", "FOO is not allowed", 1),
        ("__import__('os')", "__IMPORT__ is not allowed", 1),
        ("CAST(n AS STRING) = '1'", "CAST is not allowed", 6),
        ("n > 99999999999999999999", "does not fit into 64 bits", 5),
        ("(SELECT 1) = 1", "not allowed", None),
        ("ts > TIMESTAMP 'soon'", "is not a time stamp", 1),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_place(text: str, message: str, column: int | None) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse_predicate(text, TYPES)
    assert message in str(refused.value)
    if column is not None:
        assert refused.value.column == column


def test_columns_are_known_before_any_data_is_read() -> None:
    assert parse_expression("amount * 2 + n", TYPES).columns == {"amount", "n"}


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="abn ()=<>+-*/'\"%,.;0123456789_type AND OR NOT IN IS NULL LIKE BETWEEN", max_size=40))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        parse_predicate(text, TYPES).evaluate(ROWS)


def test_deep_nesting_is_refused_not_a_crash() -> None:
    with pytest.raises(ExpressionError):
        parse_predicate("(" * 1900 + "ok" + ")" * 1900, TYPES)
