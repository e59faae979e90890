"""The builder: each step gives a new query, and its SQL means the same query."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise import Builder, pattern
from spark_jobs.cep.operator import AfterMatch
from spark_jobs.cep.query import Order
from spark_jobs.cep.sql import split_match_recognize
from spark_jobs.cep.windows import Window
from spark_jobs.errors import ExpressionError

FRAUD = (
    pattern("S{3,} -> L")
    .by("card")
    .order_by("ts", "id desc nulls first")
    .define(S="amount < 5", L="amount > 100")
    .within("10 min")
    .within_steps("1 min")
    .after_match("to first L")
    .subset(U=("S", "L"))
    .measures(probes="COUNT(S.*)", loss="L.amount")
    .window(count=1000, slide=50, per_key=True)
)


def test_the_builder_says_what_sql_says() -> None:
    _, query = split_match_recognize("""SELECT * FROM tx MATCH_RECOGNIZE (
        PARTITION BY card ORDER BY ts, id DESC NULLS FIRST
        MEASURES COUNT(S.*) AS probes, L.amount AS loss
        AFTER MATCH SKIP TO FIRST L
        WINDOW (ROWS 1000 SLIDE 50 PER KEY)
        PATTERN (S{3,} -> L) WITHIN INTERVAL '10' MINUTES WITHIN INTERVAL '60' SECONDS BETWEEN STEPS
        SUBSET U = (S, L)
        DEFINE S AS amount < 5, L AS amount > 100)""")
    assert FRAUD.query == query


def test_a_step_changes_nothing() -> None:
    plain = pattern("A B")
    plain.by("k").order_by("ts").define(A="x > 1").measures(n="COUNT(*)").within("1 s").all_runs().all_rows()
    assert plain == pattern("A B")


def test_comments_do_not_swallow_what_is_printed_after_them() -> None:
    query = pattern("A B").define(A="x > 1 -- so", B="/* and */ `x` > 2")
    assert split_match_recognize(query.sql("tx"))[1] == query.query


def test_steps_add_up_or_replace() -> None:
    query = pattern("A B").define(A="x > 1").define(B="x > 2", A="x > 3").order_by("ts").order_by("id").query
    assert query.define == {"A": "x > 3", "B": "x > 2"}
    assert query.order_by == (Order("id"),)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"count": 9}, Window("count", 9, 9)),
        ({"time": "1 h", "slide": "5 min"}, Window("time", 3_600_000_000, 300_000_000)),
        ({"open_when": "x > 1", "rows": 10}, Window("opened", 10, 10, "x > 1", by_rows=True)),
        (
            {"open_when": "x > 1", "close_when": "x < 0", "time": "5 min"},
            Window("opened", 300_000_000, 300_000_000, "x > 1", "x < 0"),
        ),
    ],
)
def test_windows(window: dict[str, Any], expected: Window) -> None:
    assert pattern("A").window(**window).query.window == expected


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda p: pattern("A -> "), "pattern: the pattern ends in '->'"),
        (lambda p: p.by(), "no column is given"),
        (lambda p: p.by("a", "a"), "'a' is given twice"),
        (lambda p: p.order_by("ts down"), "order_by: unexpected 'down'"),
        (lambda p: p.define(A="x > 1, B"), "define A: ',' does not belong here"),
        (lambda p: p.measures(n="COUNT("), "measures n: '\\)' is missing"),
        (lambda p: p.measures(n=" "), "measures n: the text is empty"),
        (lambda p: p.measures(n="'abc"), "measures n: the ' is not closed"),
        (lambda p: p.subset(U="AB"), "give the symbols as a list"),
        (lambda p: p.within("5"), "within: in '5' a unit is missing"),
        (lambda p: p.after_match("to nxt row"), "after_match: .*did you mean 'to next row'"),
        (lambda p: p.window(), "either {count"),
        (lambda p: p.window(count=0), "positive number"),
        (lambda p: p.window(open_when="x > 1"), "needs either rows"),
        (lambda p: p.window(open_when="x > 1", rows=3, slide=1), "does not slide"),
        (lambda p: p.window(time="1 s", per_key=True), "only a count window"),
        (lambda p: p.all_rows(unmatched=True, empty=False), "leave out empty=False"),
    ],
)
def test_a_mistake_names_its_step(mistake: Any, message: str) -> None:
    with pytest.raises(ExpressionError, match=message) as refused:
        mistake(pattern("A B"))
    assert refused.value.column is not None


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6)
DURATIONS = st.integers(1, 10**9).map(lambda n: f"{n} us") | st.sampled_from(["1 h", "3 d", "90 s", "1500 ms"])
TEXTS = st.sampled_from([
    "x > 1", "CASE WHEN x > 1 THEN TRUE END", "'it''s -- \"not\" /* a comment' = y", "COUNT(A.*)", "FINAL LAST(B.x, 1) - 2",
    '"odd name" IS NULL', "A.define > 2", "(x IN (1, 2))", "x - -1 > 0", "x\n>\n1",
])  # fmt: skip
PATTERNS = st.sampled_from(["A B", "^A+? -> !B -> C $", "PERMUTE(A, B) {- C* -}", "(A | B){2,3} ->> C", "A -> B -> !C"])
SYMBOLS = st.sampled_from(["A", "B", "C"])
SKIPS = st.sampled_from(["past last row", "to next row", "to first A", "to last U", "none"])
COUNTS = st.integers(1, 99)
STEPS = st.one_of(
    st.builds(lambda names: lambda b: b.by(*names), st.lists(NAMES, min_size=1, max_size=3, unique=True)),
    st.builds(
        lambda names, how: lambda b: b.order_by(*['"' + name.replace('"', '""') + '"' + how for name in names]),
        st.lists(NAMES, min_size=1, max_size=3, unique=True),
        st.sampled_from(["", " desc", " ASC NULLS LAST", " DESC NULLS FIRST"]),
    ),
    st.builds(lambda texts: lambda b: b.define(**texts), st.dictionaries(SYMBOLS, TEXTS)),
    st.builds(lambda texts: lambda b: b.measures(**texts), st.dictionaries(NAMES, TEXTS)),
    st.builds(lambda of: lambda b: b.subset(U=of), st.lists(SYMBOLS, min_size=1)),
    st.builds(lambda text: lambda b: b.within(text), DURATIONS),
    st.builds(lambda text: lambda b: b.within_steps(text), DURATIONS),
    st.builds(lambda p: lambda b: b.after_match(p), SKIPS),
    st.just(lambda b: b.all_runs()),
    st.just(lambda b: b.timed_out()),
    st.builds(lambda n, m, k: lambda b: b.window(count=n, slide=m, per_key=k), COUNTS, COUNTS, st.booleans()),
    st.builds(lambda i, j: lambda b: b.window(time=i, slide=j), DURATIONS, DURATIONS),
    st.builds(lambda p, q, n: lambda b: b.window(open_when=p, close_when=q, rows=n), TEXTS, st.none() | TEXTS, COUNTS),
    st.builds(lambda p, i: lambda b: b.window(open_when=p, time=i), TEXTS, DURATIONS),
    st.sampled_from([{}, {"unmatched": True}, {"empty": False}]).map(lambda how: lambda b: b.all_rows(**how)),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(PATTERNS, st.lists(STEPS, max_size=8))
def test_the_sql_of_a_builder_reads_as_the_same_query(text: str, steps: list[Any]) -> None:
    builder: Builder = pattern(text)
    for step in steps:
        builder = step(builder)
    outer, query = split_match_recognize(builder.sql("tx"))
    assert query == builder.query
    assert outer == "SELECT * FROM {matches} AS tx"


def test_the_default_needs_no_words() -> None:
    assert pattern("A").sql("tx") == "SELECT * FROM tx MATCH_RECOGNIZE (\n  PATTERN (A)\n)"
    assert pattern("A").query.after_match == AfterMatch()
