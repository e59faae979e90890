"""The parsers under fire: whatever the text, they answer, in bounded time, and a refusal names its place."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.cep.measures import Measures
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.sql import split_match_recognize
from spark_jobs.cep.sql_text import to_sql
from spark_jobs.cep.terms import Terms
from spark_jobs.errors import ExpressionError, PipelineError
from spark_jobs.pipeline_file import parse_pipeline
from tests.test_pipeline import WHOLE_LANGUAGE
from tests.test_sql import SQL, TYPES

# The longest a text may hold up a service; on a busy machine, so far above what it takes.
SLOW = timedelta(seconds=5)
FUZZ = settings(max_examples=300, deadline=SLOW, suppress_health_check=[HealthCheck.too_slow])

PATTERN = "^(S{3,}? -> !N -> L | PERMUTE(A, {- B* -})) ->> C $"
EXPRESSION = "CASE WHEN S.amount > LAST(amount, 1) + 2.5e3 THEN LOWER(card) LIKE 'x%' ELSE ts > TIMESTAMP '2026-01-01' END"
ODD = [
    "\x00", "\u202e", "é", "名", "\U0001f600", "\ud800", "\\", "`", "\n", "\t", "\u2028",
    "'", '"', ";", "--", "/*", "*/", "{%", "{{", "$$",
]  # fmt: skip
NUMBERS = ["0", "1", "-1", "9" * 30, "1e999", "0x1F", "1_000", "1.5.5", "٣", "9" * 5000]
WORDS = {
    "pattern": [
        "A",
        "B",
        "PERMUTE",
        "(",
        ")",
        "|",
        "->",
        "->>",
        "!",
        "*",
        "+",
        "?",
        "{",
        "}",
        ",",
        "{-",
        "-}",
        "^",
        "$",
        "{2,}",
    ],
    "expression": re.findall(
        r"\S+",
        """amount card ts S.amount L.* AND OR NOT ( ) , = < + - * / % IN LIKE IS NULL CASE WHEN THEN END BETWEEN LAST( FIRST(
        PREV( NEXT( COUNT( SUM( RUNNING FINAL CLASSIFIER() MATCH_NUMBER() TIMESTAMP INTERVAL '5' DAY CAST( AS SELECT
        :: [ ] . 'x' TRUE""",
    ),
    "sql": re.findall(
        r"\S+",
        """SELECT * FROM tx MATCH_RECOGNIZE ( ) PARTITION ORDER BY card ts MEASURES ONE ALL ROW ROWS PER MATCH AFTER SKIP TO
        NEXT LAST FIRST PAST NONE RUNS TIMED OUT WINDOW RANGE SLIDE KEY OPEN CLOSE WHEN FOR PATTERN WITHIN INTERVAL '10' MINUTES
        BETWEEN STEPS SUBSET = DEFINE A AS amount > 1 , -> SHOW EMPTY MATCHES WITH UNMATCHED DESC NULLS""",
    ),
}
YAML_WORDS = [": ", "\n  ", "- ", "{", "}", "[", "]", "&x", "*x", "!!", "|", ">", "null", "~", "yes", "2026-01-01", "#"]


def soup(kind: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(WORDS[kind] + ODD + NUMBERS), max_size=40).map(" ".join)


@st.composite
def mutated(draw: st.DrawFn, valid: str, words: list[str]) -> str:
    """A valid text with pieces taken out, doubled, swapped or put in."""
    text = valid
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        middle = draw(st.sampled_from(["", text[start:end] * 2, text[start:end][::-1], *words, *ODD, *NUMBERS]))
        text = text[:start] + middle + text[end:]
    return text


def texts(kind: str, valid: str) -> st.SearchStrategy[str]:
    return soup(kind) | mutated(valid, WORDS[kind]) | st.text(max_size=100)


def answered(read: Any, text: str) -> None:
    """Reading `text` succeeds, or is refused with a place in it."""
    refusal: ExpressionError | None = None
    try:
        read(text)
    except ExpressionError as error:
        refusal = error
    if refusal is not None:
        assert str(refusal)
        assert refusal.column is not None
        assert 1 <= refusal.column <= len(text) + 1, (refusal.column, str(refusal))


def read_pattern(text: str) -> None:
    Operator(name="fuzz", pattern=parse_pattern(text), define={}, types={}, complete=True).check()


def read_expression(text: str) -> None:
    Terms.parse({"S": text}, ("S", "L"), {"U": ("S", "L")}, TYPES, True)


def read_measure(text: str) -> None:
    Measures.parse({"m": text}, ("S", "L"), {"U": ("S", "L")}, TYPES, True)


def read_sql(text: str) -> None:
    _, query = split_match_recognize(text)
    query.operator(TYPES)
    assert split_match_recognize(to_sql(query, "tx"))[1] == query


@FUZZ
@given(texts("pattern", PATTERN))
def test_patterns(text: str) -> None:
    answered(read_pattern, text)


@FUZZ
@given(texts("expression", EXPRESSION))
def test_expressions(text: str) -> None:
    answered(read_expression, text)
    answered(read_measure, text)


@FUZZ
@given(texts("sql", SQL) | soup("sql").map(lambda clauses: f"SELECT * FROM tx MATCH_RECOGNIZE ({clauses})"))
def test_sql(text: str) -> None:
    answered(read_sql, text)


@FUZZ
@given(st.text(max_size=200) | mutated(WHOLE_LANGUAGE, YAML_WORDS))
def test_pipelines(text: str) -> None:
    message = "mine.yaml:1: fine"
    try:
        parse_pipeline(text, "mine.yaml")
    except PipelineError as error:
        message = str(error)
    assert all(re.match(r"mine\.yaml:\d+: ", line) for line in message.splitlines()), message


DEEP = 20_000


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_pattern, "(" * DEEP + "A" + ")" * DEEP),
        (read_pattern, "(" * 1990 + "A" + ")" * 1990),
        (read_pattern, "PERMUTE(A, B, C, D, E, F, G, H, I, J, K, L)"),
        (read_pattern, "(" * 6 + "A" + "{2000})" * 6),
        (read_pattern, "(A* " * 40 + ")*" * 40),
        (read_pattern, "(A?)" * 900),
        (read_pattern, f"A{{{'9' * 3000}}}"),
        (read_expression, "(" * DEEP + "1" + ")" * DEEP),
        (read_expression, "NOT " * 900 + "TRUE"),
        (read_expression, "-" * 3900 + "1"),
        (read_expression, "amount + " * 400 + "1 > 0"),
        (read_expression, " OR ".join(["amount = 1"] * 280)),
        (read_expression, "CASE WHEN " * 300),
        (read_expression, f"amount > {'9' * 3900}"),
        (read_expression, "amount > 1e999999999"),
        (read_sql, "SELECT * FROM tx MATCH_RECOGNIZE " + "(" * DEEP),
        (read_sql, "SELECT * FROM tx MATCH_RECOGNIZE (MEASURES " + "(" * DEEP + ")" * DEEP + " AS x PATTERN (A))"),
        (read_sql, "SELECT * FROM tx MATCH_RECOGNIZE (MEASURES " + "1 AS x, " * DEEP + "PATTERN (A))"),
        (read_sql, "SELECT * FROM tx MATCH_RECOGNIZE (WINDOW (OPEN WHEN " + "()" * DEEP + " FOR 5 ROWS) PATTERN (A))"),
        (read_sql, "SELECT * FROM tx MATCH_RECOGNIZE (" + "PATTERN (A) " * 5000 + ")"),
        (read_sql, "SELECT * FROM " + "a." * DEEP + "tx MATCH_RECOGNIZE (PATTERN (A))"),
        (read_sql, "SELECT " + "'" * DEEP),
        (read_sql, "SELECT " + "/*" * DEEP + " FROM tx MATCH_RECOGNIZE (PATTERN (A))"),
        (read_sql, f"SELECT * FROM tx MATCH_RECOGNIZE (WINDOW (ROWS {'9' * 50_000}) PATTERN (A))"),
        (read_sql, "x" * 300_000),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else value.__name__,
)
@pytest.mark.timeout(20)
def test_texts_made_to_exhaust_a_parser(read: Any, text: str) -> None:
    answered(read, text)


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "a: " * 3000, "{" * 5000, "&a [*a, *a]", "name: " + "x" * 100_000,
     "operators: {" + "a: {pattern: A}, " * 2000 + "}",
     "a: &a [x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c]"],
    ids=lambda value: value[:20],
)  # fmt: skip
@pytest.mark.timeout(20)
def test_yaml_made_to_exhaust_a_parser(text: str) -> None:
    with pytest.raises(PipelineError, match=r"^mine\.yaml:\d+: "):
        parse_pipeline(text, "mine.yaml")


def test_a_valid_text_of_each_kind_is_read() -> None:
    """Mutations of texts that were wrong already would test nothing."""
    read_pattern(PATTERN)
    read_expression(EXPRESSION)
    read_measure(EXPRESSION)
    read_sql(SQL)
    parse_pipeline(WHOLE_LANGUAGE, "mine.yaml")
    assert TYPES["ts"] == pa.timestamp("us", "UTC")
