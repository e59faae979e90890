"""MEASURES: what a match says about its rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.cep.arrays import Found
from spark_jobs.cep.measures import Measures
from spark_jobs.errors import ExpressionError

SYMBOLS = ("A", "B", "C")
SUBSETS = {"U": ("A", "B")}
EVENTS = pa.table({
    "v": pa.array([10, 20, None, 40, 50], pa.int32()),
    "f": [1.5, 2.5, None, float("nan"), 1e19],
    "name": pa.array(["b", "ä", None, "B", "c"]).dictionary_encode(),
    "ok": [True, False, None, True, False],
    "price": pa.array([Decimal("1.10"), Decimal("2.20"), None, Decimal("3.30"), Decimal("4.40")], pa.decimal128(38, 18)),
    "ts": pa.array([0, 60_000_000, None, 180_000_000, 240_000_000], pa.timestamp("us", "UTC")),
    "day": pa.array([3, 2, 1, None, 0], pa.date32()),
    "tags": pa.array([["x"], [], None, ["y"], ["z"]]),
})
TYPES = {field.name: field.type for field in EVENTS.schema}


def found(*matches: str) -> Found:
    """Matches over the same rows: letter i is the symbol of row i, '-' a row passed over."""
    bound = [[(row, SYMBOLS.index(letter)) for row, letter in enumerate(match) if letter != "-"] for match in matches]
    flat = [pair for match in bound for pair in match]
    count = len(matches)
    zeros = np.zeros(count, np.int64)
    return Found(
        offsets=np.cumsum([0, *map(len, bound)]).astype(np.int64),
        rows=np.array([row for row, _ in flat], np.int64),
        symbols=np.array([symbol for _, symbol in flat], np.int64),
        window=zeros,
        first=zeros,
        at_ts=zeros,
        at_sn=zeros,
        timed_out=np.zeros(count, np.bool_),
        number=np.arange(1, count + 1),
        excluded=np.zeros(len(flat), np.bool_),
    )


def measured(text: str, matches: Found, all_rows: bool = False, offsets: Any = None) -> list[Any]:
    measures = Measures.parse({"m": text}, SYMBOLS, SUBSETS, TYPES, complete=True)
    value = measures.evaluate(EVENTS, offsets, matches, all_rows)["m"]
    assert value.type == measures.types["m"]
    return value.to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Three matches: A A B over rows 0, 1, 3; B over row 2; and an empty one.
        ("A.v", [20, None, None]),
        ("v", [40, None, None]),
        ("U.v", [40, None, None]),
        ("FIRST(A.v)", [10, None, None]),
        ("FIRST(v, 2)", [40, None, None]),
        ("LAST(A.v, 1) + 1", [11, None, None]),
        ("LAST(v, 3)", [None, None, None]),
        ("A.name", ["ä", None, None]),
        ("LOWER(B.name)", ["b", None, None]),
        ("COALESCE(A.v, -1)", [20, -1, -1]),
        ("LAST(COALESCE(B.v, -1))", [40, -1, None]),
        ("COUNT(*)", [3, 1, 0]),
        ("COUNT(A.*)", [2, 0, 0]),
        ("COUNT(v)", [3, 0, 0]),
        ("SUM(v)", [70, None, None]),
        ("SUM(A.v * 2)", [60, None, None]),
        ("AVG(U.v)", [70 / 3, None, None]),
        ("SUM(price)", [Decimal("6.6"), None, None]),
        ("B.price - FIRST(A.price)", [Decimal("2.2"), None, None]),
        ("MIN(name)", ["B", None, None]),
        ("MAX(name)", ["ä", None, None]),
        ("MAX(price)", [Decimal("3.3"), None, None]),
        ("MIN(f)", [1.5, None, None]),
        ("MIN(ok)", [False, None, None]),
        ("MAX(A.day) = DATE '1970-01-04'", [True, None, None]),
        ("ts - FIRST(ts) = INTERVAL '3' MINUTE", [True, None, None]),
        ("CLASSIFIER()", ["B", "B", None]),
        ("MATCH_NUMBER()", [1, 2, 3]),
        ("PREV(v)", [None, 20, None]),
        ("NEXT(A.v, 2)", [40, None, None]),
        ("PREV(FIRST(A.v, 1))", [10, None, None]),
        ("A.tags", [[], None, None]),
        ("FINAL SUM(v) - RUNNING SUM(v)", [0, None, None]),
        ("1", [1, 1, 1]),
        ("NULL", [None, None, None]),
        ("CASE WHEN COUNT(A.*) > 1 THEN 'many' ELSE 'few' END", ["many", "few", "few"]),
    ],
)
def test_one_row_per_match_looks_at_the_whole_match(text: str, expected: list[Any]) -> None:
    assert measured(text, found("AA-B", "--B", "")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A over row 0, B over row 1, A over row 3; then C over row 4.
        ("v", [10, 20, 40, 50]),
        ("A.v", [10, 10, 40, None]),
        ("FINAL LAST(A.v)", [40, 40, 40, None]),
        ("LAST(A.v, 1)", [None, None, 10, None]),
        ("LAST(v, 1)", [None, 10, 20, None]),
        ("FIRST(v, 1)", [None, 20, 20, None]),
        ("FINAL FIRST(v, 1)", [20, 20, 20, None]),
        ("SUM(v)", [10, 30, 70, 50]),
        ("FINAL SUM(v)", [70, 70, 70, 50]),
        ("RUNNING COUNT(*)", [1, 2, 3, 1]),
        ("COUNT(B.*)", [0, 1, 1, 0]),
        ("MIN(name)", ["b", "b", "B", "c"]),
        ("AVG(v)", [10.0, 15.0, 70 / 3, 50.0]),
        ("CLASSIFIER()", ["A", "B", "A", "C"]),
        ("MATCH_NUMBER()", [1, 1, 1, 2]),
        ("PREV(v)", [None, 10, None, 40]),
        ("100 * v / FINAL SUM(v)", [1000 / 70, 2000 / 70, 4000 / 70, 100.0]),
    ],
)
def test_all_rows_per_match_run_along(text: str, expected: list[Any]) -> None:
    assert measured(text, found("AB-A", "----C"), all_rows=True) == expected


def test_prev_and_next_stay_in_their_key() -> None:
    keys = np.array([0, 3, 5], np.int64)
    assert measured("PREV(v)", found("---A", "----A", "-A"), offsets=keys) == [None, 40, 10]
    assert measured("NEXT(v)", found("---A", "----A", "--A"), offsets=keys) == [50, None, None]


def test_types_are_known_without_any_match() -> None:
    texts = ("A.v", "SUM(v)", "SUM(f)", "SUM(price)", "AVG(v)", "price * price", "A.name", "ts - A.ts", "CLASSIFIER()", "NULL",
             "MIN(tags IS NULL)", "A.tags", "PREV(day)", "COUNT(*)", "MATCH_NUMBER()", "ROUND(price, 1)", "-v")  # fmt: skip
    measures = Measures.parse({text: text for text in texts}, SYMBOLS, SUBSETS, TYPES, complete=True)
    for matches in (found(), found("AA-B", "")):
        for all_rows in (False, True):
            values = measures.evaluate(EVENTS, None, matches, all_rows)
            assert {name: value.type for name, value in values.items()} == measures.types
    assert measures.types["A.name"] == pa.string()
    assert measures.types["A.v"] == pa.int32()
    assert measures.back == 1


def test_a_product_of_wide_decimals_keeps_six_digits_as_spark_does() -> None:
    assert measured("price * price", found("A")) == [Decimal("1.210000")]


def test_a_sum_of_doubles_may_exceed_64_bits_and_a_sum_of_integers_may_not() -> None:
    assert measured("SUM(f)", found("AA--A")) == [1e19 + 4.0]
    with pytest.raises(ExpressionError, match="64-bit"):
        measured("SUM(v * 100000000000000000)", found("AA-AA"))


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("D.v", "unknown symbol 'D'", 1),
        ("A.v + A.w", "unknown column 'w'", 9),
        ("NEXT(v)", "complete input", 1),
        ("MATCH_NUMBER()", "complete input", 1),
        ("FINAL PREV(v)", "not before PREV", 7),
        ("SUM(LAST(v))", "LAST is not possible inside SUM", 5),
        ("MIN(tags)", "have an order", 1),
        ("CLASSIFIER(A)", "no argument", 1),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(text: str, message: str, column: int) -> None:
    with pytest.raises(ExpressionError) as refused:
        Measures.parse({"m": text}, SYMBOLS, SUBSETS, TYPES, complete=False)
    assert message in str(refused.value)
    assert refused.value.column == column


# The same law for any navigation: it agrees with a few lines of Python.


def expected_value(kind: str, final: bool, label: str, k: int, match: str, at: int) -> Any:
    """The value at the bound row `at` of one match."""
    column = EVENTS["v"].to_pylist()
    seen = match if final else match[: at + 1]
    members = {"": "ABC", "U": "AB"}.get(label, label)
    rows = [row for row, letter in enumerate(seen) if letter in members]
    if kind in ("FIRST", "LAST"):
        index = k if kind == "FIRST" else len(rows) - 1 - k
        return column[rows[index]] if 0 <= index < len(rows) else None
    values = [column[row] for row in rows if column[row] is not None]
    if kind == "COUNT":
        return len(values)
    return {"SUM": sum, "MIN": min, "MAX": max}[kind](values) if values else None


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["FIRST", "LAST", "SUM", "MIN", "MAX", "COUNT"]),
    st.booleans(),
    st.sampled_from(["", "A", "B", "U"]),
    st.integers(0, 3),
    st.lists(st.text(alphabet="ABC-", max_size=5), max_size=4),
    st.booleans(),
)
def test_navigation_agrees_with_python(kind: str, final: bool, label: str, k: int, matches: list[str], all_rows: bool) -> None:
    offset = f", {k}" if kind in ("FIRST", "LAST") else ""
    text = f"{'FINAL' if final else 'RUNNING'} {kind}({label + '.' if label else ''}v{offset})"
    if all_rows:
        expected = [
            expected_value(kind, final, label, k, match, at)
            for match in matches
            for at in range(len(match))
            if match[at] != "-"
        ]
    else:
        expected = [expected_value(kind, True, label, k, match, 0) for match in matches]
    assert measured(text, found(*matches), all_rows) == expected
