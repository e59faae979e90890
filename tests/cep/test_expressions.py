"""Predicates and measures: what they mean, and what is refused, with its place."""

from __future__ import annotations

import time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.cep.expressions import parse_expression, parse_predicate
from spark_jobs.cep.terms import Terms
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
        ('type = "a"', "a text is written 'a'", 8),
        ("type = 3", "compares string with int64", 1),
        ("amount + type > 3", "needs numbers", 1),
        ("n + 1", "must be true or false", 1),
        ("type =", "an operand is missing", 6),
        ("foo(n) = 1", "FOO is not allowed", 1),
        ("__import__('os')", "__IMPORT__ is not allowed", 1),
        ("CAST(n AS STRING) = '1'", "CAST is not allowed", 6),
        ("n > 99999999999999999999", "does not fit into 64 bits", 5),
        ("(SELECT 1) = 1", "not allowed", None),
        ("ts > TIMESTAMP 'soon'", "is not a time stamp", 16),
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


TYPED = pa.table({
    "i": pa.array([7, None, -7], pa.int16()),
    "u": pa.array([1, 2, 3], pa.uint64()),
    "f": pa.array([2.5, -2.5, None], pa.float32()),
    "d": pa.array([Decimal("1.10"), Decimal("-2.25"), None], pa.decimal128(10, 2)),
    "wide": pa.array([Decimal("1.1"), Decimal(3), None], pa.decimal128(38, 18)),
    "s": pa.array(["Ab", "ä", None], pa.large_string()),
    "c": pa.array(["x", "y", None]).dictionary_encode(),
    "ts": pa.array([0, 60_000_000, None], pa.timestamp("us", "America/New_York")),
    "ns": pa.array([1, 60_000_000_000, None], pa.timestamp("ns")),
    "sec": pa.array([0, 60, None], pa.timestamp("s")),
    "day": pa.array([0, 1, None], pa.date32()),
    "span": pa.array([1, 2, None], pa.duration("ms")),
    "t": pa.array([1, 2, None], pa.time64("us")),
    "tags": pa.array([[1], [2], None]),
})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i % 3", [1, None, -1]),
        ("i % 0", [None, None, None]),
        ("f % 2", [0.5, -0.5, None]),
        ("d % 1", [Decimal("0.10"), Decimal("-0.25"), None]),
        ("-i", [-7, None, 7]),
        ("i + u * 2", [9, None, -1]),
        ("d + 1", [Decimal("2.10"), Decimal("-1.25"), None]),
        ("d * 0.1", [Decimal("0.110"), Decimal("-0.225"), None]),
        ("d = 1.1", [True, False, None]),
        ("d + i", [Decimal("8.10"), None, None]),
        ("wide * wide > 1.2 AND wide + wide < 3", [True, False, None]),
        ("d / 2", [0.55, -1.125, None]),
        ("d < 2.5e0", [True, True, None]),
        ("ROUND(f)", [3.0, -3.0, None]),
        ("ROUND(d, 1)", [Decimal("1.10"), Decimal("-2.30"), None]),
        ("ROUND(i, -1)", [10, None, -10]),
        ("FLOOR(f) + CEIL(f)", [5.0, -5.0, None]),
        ("LENGTH(s)", [2, 1, None]),
        ("LOWER(s)", ["ab", "ä", None]),
        ("s = 'Ab'", [True, False, None]),
        ("c < 'y'", [True, False, None]),
        ("CASE WHEN i > 0 THEN 'plus' WHEN i < 0 THEN 'minus' END", ["plus", None, "minus"]),
        ("CASE c WHEN 'x' THEN 1 ELSE 2.5 END", [1.0, 2.5, 2.5]),
        ("ts = ns", [False, True, None]),
        ("ts = sec", [True, True, None]),
        ("ns > TIMESTAMP '1970-01-01 00:00:00'", [True, True, None]),
        ("ts - sec = INTERVAL '0' SECONDS", [True, True, None]),
        ("ts + INTERVAL '1' MINUTE > TIMESTAMP '1970-01-01T01:00:59+01:00'", [True, True, None]),
        ("INTERVAL '90' SECOND = INTERVAL '1.5' MINUTES", True),
        ("span * 1000 > INTERVAL '1' SECOND", [False, True, None]),
        ("span BETWEEN -span AND INTERVAL 1 MILLISECOND", [True, False, None]),
        ("day = DATE '1970-01-02'", [False, True, None]),
        ("day > ts", [False, True, None]),
        ("day - DATE '1970-01-01' = INTERVAL '1' DAY", [False, True, None]),
        ("t = t", [True, True, None]),
        ("tags IS NULL", [False, False, True]),
        ("NULL = 1", None),
        ("NULL + 1 IS NULL", True),
        ("NULL AND FALSE", False),
        ("i IN (7, NULL)", [True, None, None]),
        ("COALESCE(NULL, i, 3)", [7, 3, -7]),
        ("i * 1.0 * 9223372036854775807 > 0", [True, None, False]),
    ],
)
def test_types_meet_as_in_sql(text: str, expected: object) -> None:
    expression = parse_expression(text, {field.name: field.type for field in TYPED.schema})
    value = expression.evaluate({name: TYPED[name] for name in TYPED.column_names})
    assert value.type == expression.type
    assert (value.as_py() if isinstance(value, pa.Scalar) else value.to_pylist()) == expected


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("i > s", "compares int16 with large_string", 1),
        ("1 = 1 AND NOT i", "is int16, but true or false is needed", 15),
        ("ts + ts > ts", "needs numbers", 1),
        ("span + 1 > span", "needs numbers", 1),
        ("i > INTERVAL '5' MONTH", "unit of fixed length", 14),
        ("span > INTERVAL 'x' DAY", "literal number", 17),
        ("day > DATE '2026-02-30'", "is not a date", 12),
        ("ns < TIMESTAMP '9999-12-31'", "does not fit into timestamp[ns", 16),
        ("LENGTH(i) = 1", "LENGTH needs text", 1),
        ("i > 0 AND LAST(i) > 0", "LAST needs a pattern", 11),
        ("ROUND(i, u) = 1", "literal number of digits", 10),
        ("CASE WHEN i > 1 THEN 1 ELSE 'x' END = 1", "mixes int64 with string", 22),
        ("tags > tags", "have an order", 1),
        ("i >\n u AND\n nope = 1", "unknown column 'nope'", 13),
        ("i >\n ) 1", "is not a valid expression", 6),
    ],
)
def test_types_that_do_not_meet_are_refused_with_their_place(text: str, message: str, column: int) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse_predicate(text, {field.name: field.type for field in TYPED.schema})
    assert message in str(refused.value)
    assert refused.value.column == column


def test_long_lists_of_alternatives_are_possible() -> None:
    text = " OR ".join(f"n = {i}" for i in range(300))
    assert parse_predicate(text, TYPES).evaluate(ROWS).to_pylist() == [True, True, True]


def evaluated_or_refused(text: str) -> None:
    """The law: a value, or a refusal with a place in the text."""
    refusal = None
    try:
        Terms.parse({"A": text}, ("A", "B"), {"U": ("A", "B")}, TYPES, complete=True)
        parse_expression(text, TYPES).evaluate(ROWS)
    except ExpressionError as error:
        refusal = error
    if refusal is not None:
        assert 1 <= (refusal.column or 0) <= len(text) + 1, (text, refusal)


WORDS = (
    "type amount n ok ts A B U . , ( ) = <> < >= + - * / % AND OR NOT IN IS NULL LIKE BETWEEN CASE WHEN THEN ELSE END "
    "COALESCE( ABS( LOWER( LENGTH( ROUND( FLOOR( CEIL( FIRST( LAST( PREV( NEXT( COUNT( SUM( MIN( MAX( AVG( CLASSIFIER() "
    "MATCH_NUMBER() RUNNING FINAL 'a' 'ä😀' \"n\" 1 1.5 1e3 .5 99999999999999999999 TRUE INTERVAL '5' MINUTE TIMESTAMP "
    "DATE '2026-01-31' :: [ ] { } ; -- /* */ \\ $ @ : ? AS CAST( SELECT FROM DISTINCT OVER A.n B.amount U.type A.* * EXISTS("
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS.split()), max_size=14).map(" ".join))
def test_no_soup_of_words_crashes_the_parser(text: str) -> None:
    evaluated_or_refused(text)


VALID = (
    "CASE WHEN A . n > LAST( B . n , 1 ) THEN 'a' ELSE type END LIKE 'a%' OR n BETWEEN FIRST( n ) AND SUM( U . n ) * 2 - 1",
    "COALESCE( PREV( LAST( A . ts , 1 ) , 2 ) , ts ) + INTERVAL '5' MINUTE > TIMESTAMP '2026-01-31' AND NOT ok IS NULL",
    "COUNT( A . * ) % 2 = 0 AND AVG( amount ) / 2 IN ( 1 , MAX( B . amount ) ) AND ROUND( amount , 2 ) <> -1.5",
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VALID), st.lists(st.tuples(st.integers(0, 60), st.sampled_from(WORDS.split())), min_size=1, max_size=2))
def test_no_damage_to_a_valid_expression_crashes_the_parser(text: str, damage: list[tuple[int, str]]) -> None:
    words = text.split()
    for at, word in damage:
        words[at % len(words)] = word
    evaluated_or_refused(" ".join(words))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_no_text_crashes_the_parser(text: str) -> None:
    evaluated_or_refused(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abn ()=<>+-*/'\"%,.;0123456789_type AND OR NOT IN IS NULL LIKE BETWEEN", max_size=40))
def test_no_text_of_sql_letters_crashes_the_parser(text: str) -> None:
    evaluated_or_refused(text)


@pytest.mark.parametrize(
    "opening",
    [
        "(",
        "NOT ",
        "- ",
        "-",
        "CASE ",
        "CASE WHEN ",
        "LAST(",
        "ABS(",
        "[",
        "{",
        "INTERVAL ",
        "n IN (",
        "n. ",
        "COALESCE(n, ",
        "n + ",
    ],
)
@pytest.mark.parametrize("closing", ["", "n", "n" + ")" * 1500])
def test_deep_nesting_is_refused_in_no_time(opening: str, closing: str) -> None:
    began = time.monotonic()
    with pytest.raises(ExpressionError) as refused:
        parse_predicate(opening * (2400 // len(opening)) + closing, TYPES)
    assert refused.value.column is not None
    assert time.monotonic() - began < 2  # an exponential parser would take years, a slow machine does not


def test_what_is_nested_as_deeply_as_allowed_is_evaluated() -> None:
    assert parse_predicate("(" * 30 + "ok" + ")" * 30, TYPES).evaluate(ROWS).to_pylist() == [True, False, None]
    assert parse_expression("n" + " + n" * 48, TYPES).evaluate(ROWS).to_pylist() == [49, 0, 245]
