"""MATCH_RECOGNIZE in SQL: every clause is understood, and every mistake is named with its place in the whole text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_jobs.cep.operator import AfterMatch
from spark_jobs.cep.query import Order, Query
from spark_jobs.cep.sql import split_match_recognize
from spark_jobs.cep.windows import Window
from spark_jobs.errors import ExpressionError

TYPES = {"card": pa.string(), "ts": pa.timestamp("us", "UTC"), "amount": pa.float64(), "id": pa.int64(), "my col": pa.string()}

SQL = """SELECT card, loss -- {of interest}
FROM db.tx MATCH_RECOGNIZE (
  PARTITION BY card, "my col"
  ORDER BY ts, id DESC NULLS FIRST
  MEASURES COUNT(S.*) AS probes, FINAL LAST(L.amount, 0) AS loss
  ALL ROWS PER MATCH OMIT EMPTY MATCHES
  AFTER MATCH SKIP TO LAST L
  PATTERN (S{3,} -> /* then */ L) WITHIN INTERVAL '10' MINUTES WITHIN INTERVAL 1 MINUTE BETWEEN STEPS
  SUBSET U = (S, L)
  DEFINE S AS amount < 5, L AS amount > 100
) AS m WHERE probes > 3"""


def said(clause: str) -> Query:
    """What a clause adds to the smallest query there is."""
    return split_match_recognize(f"SELECT * FROM tx MATCH_RECOGNIZE (ORDER BY ts {clause} PATTERN (A B+))")[1]


def test_all_clauses_of_a_query() -> None:
    outer, query = split_match_recognize(SQL)
    assert outer == "SELECT card, loss -- {{of interest}}\nFROM {matches} AS m WHERE probes > 3"
    assert query.partition_by == ("card", "my col")
    assert query.order_by == (Order("ts"), Order("id", True, True))
    assert query.measures == {"probes": "COUNT(S.*)", "loss": "FINAL LAST(L.amount, 0)"}
    assert (query.all_rows, query.empty, query.unmatched) == (True, False, False)
    assert query.after_match == AfterMatch("to last", "L")
    assert query.pattern.symbols == ("S", "L")
    assert (query.within, query.within_steps) == (600_000_000, 60_000_000)
    assert query.subsets == {"U": ("S", "L")}
    assert query.define == {"S": "amount < 5", "L": "amount > 100"}
    query.operator(TYPES)


@pytest.mark.parametrize(
    ("clause", "skip"),
    [
        ("", AfterMatch()),
        ("AFTER MATCH SKIP PAST LAST ROW", AfterMatch()),
        ("AFTER MATCH SKIP TO NEXT ROW", AfterMatch("to next row")),
        ("AFTER MATCH SKIP TO FIRST B", AfterMatch("to first", "B")),
        ("AFTER MATCH SKIP TO LAST B", AfterMatch("to last", "B")),
        ("AFTER MATCH SKIP TO B", AfterMatch("to last", "B")),
        ("after match skip none", AfterMatch("none")),
    ],
)
def test_where_matching_goes_on(clause: str, skip: AfterMatch) -> None:
    assert said(clause).after_match == skip


@pytest.mark.parametrize(
    ("clause", "rows"),
    [
        ("ONE ROW PER MATCH", (False, True, False)),
        ("ALL ROWS PER MATCH", (True, True, False)),
        ("ALL ROWS PER MATCH SHOW EMPTY MATCHES", (True, True, False)),
        ("ALL ROWS PER MATCH OMIT EMPTY MATCHES", (True, False, False)),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS", (True, True, True)),
    ],
)
def test_rows_per_match(clause: str, rows: tuple[bool, bool, bool]) -> None:
    query = said(clause)
    assert (query.all_rows, query.empty, query.unmatched) == rows


@pytest.mark.parametrize(
    ("clause", "window"),
    [
        ("ROWS 1000", Window("count", 1000, 1000)),
        ("ROWS 1000 SLIDE 50", Window("count", 1000, 50)),
        ("ROWS 1000 SLIDE 50 PER KEY", Window("keyed", 1000, 50)),
        ("RANGE INTERVAL '1' HOUR", Window("time", 3_600_000_000, 3_600_000_000)),
        ("RANGE INTERVAL '1' HOUR SLIDE INTERVAL 5 MINUTES", Window("time", 3_600_000_000, 300_000_000)),
        ("OPEN WHEN amount > 5 FOR 10 ROWS", Window("opened", 10, 10, "amount > 5", by_rows=True)),
        (
            "OPEN WHEN CASE WHEN amount > 5 THEN TRUE END CLOSE WHEN (amount < 0) FOR INTERVAL '5 seconds'",
            Window("opened", 5_000_000, 5_000_000, "CASE WHEN amount > 5 THEN TRUE END", "(amount < 0)"),
        ),
    ],
)
def test_windows(clause: str, window: Window) -> None:
    query = said(f"WINDOW ({clause})")
    assert query.window == window
    query.operator(TYPES | {"x": pa.int64()}, columns=[]) if query.measures else None


def test_within_may_stand_inside_the_pattern() -> None:
    inside = "PATTERN (A B WITHIN INTERVAL '2' SECONDS WITHIN INTERVAL '1' SECOND BETWEEN STEPS)"
    _, query = split_match_recognize(f"SELECT * FROM tx MATCH_RECOGNIZE ({inside} ALL RUNS TIMED OUT)")
    assert (query.within, query.within_steps, query.pattern.text) == (2_000_000, 1_000_000, "A B")
    assert (query.all_runs, query.timed_out) == (True, True)


def test_columns_may_be_called_as_clauses_are() -> None:
    _, query = split_match_recognize(
        "SELECT * FROM tx MATCH_RECOGNIZE (MEASURES LAST(A.pattern) AS pattern, A.define AS define, within AS `one, two` "
        "PATTERN (A B) DEFINE A AS window > 5 AND define < subset, B AS `order` = 1)"
    )
    assert query.measures == {"pattern": "LAST(A.pattern)", "define": "A.define", "one, two": "within"}
    assert query.define == {"A": "window > 5 AND define < subset", "B": '"order" = 1'}


@pytest.mark.parametrize(
    ("sql", "outer"),
    [
        ("SELECT * FROM tx MATCH_RECOGNIZE (PATTERN (A))", "SELECT * FROM {matches} AS tx"),
        ("SELECT * FROM c.d.`t x` MATCH_RECOGNIZE (PATTERN (A)) LIMIT 3", "SELECT * FROM {matches} AS `t x` LIMIT 3"),
        ("SELECT * FROM a, tx MATCH_RECOGNIZE (PATTERN (A)) m, b", "SELECT * FROM a, {matches} AS m, b"),
        ("SELECT * FROM a JOIN tx match_recognize(PATTERN (A)) ON 1=1", "SELECT * FROM a JOIN {matches} AS tx ON 1=1"),
        (
            "SELECT 'MATCH_RECOGNIZE (\\'' /* MATCH_RECOGNIZE ( */ FROM tx MATCH_RECOGNIZE (PATTERN (A))",
            "SELECT 'MATCH_RECOGNIZE (\\'' /* MATCH_RECOGNIZE ( */ FROM {matches} AS tx",
        ),
        (
            "WITH m AS (SELECT * FROM tx MATCH_RECOGNIZE (PATTERN (A) DEFINE A AS x = ')') AS y) SELECT * FROM m",
            "WITH m AS (SELECT * FROM {matches} AS y) SELECT * FROM m",
        ),
    ],
)
def test_what_stands_around_the_clause_is_left_to_spark(sql: str, outer: str) -> None:
    assert split_match_recognize(sql)[0] == outer


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("MATCH_RECOGNIZE", "MATCH_RECOGNISE", "MATCH_RECOGNISE", "did you mean 'MATCH_RECOGNIZE'?"),
        ("db.tx MATCH", "(SELECT 1) MATCH", "MATCH", "the name of a table is needed"),
        ("db.tx MATCH", "tx AS t MATCH", "AS t", "an alias stands after it"),
        (") AS m", " AS m", "(\n  PARTITION BY", "')' is missing at the end"),
        ("AS m WHERE", "AS m, tx MATCH_RECOGNIZE (PATTERN (A)) WHERE", "MATCH_RECOGNIZE (PATTERN (A))", "one MATCH_RECOGNIZE"),
        ("PARTITION BY", "PARTITON BY", "PARTITON", "did you mean 'PARTITION'?"),
        ('"my col"', "card", "card\n", "'card' is given twice"),
        ("id DESC", "id DOWN", "DOWN", "unexpected 'DOWN'"),
        ("NULLS FIRST", "NULLS FRST", "FRST", "did you mean 'FIRST'?"),
        ("AS probes", "", ", FINAL", "a measure needs a name"),
        ("AS loss", "AS probes", "probes\n  ALL", "'probes' is given twice"),
        ("AS loss", "AS loss AFTR", "AFTR", "did you mean 'AFTER'?"),
        ("PER MATCH OMIT", "PER MTCH OMIT", "MTCH", "did you mean 'MATCH'?"),
        ("OMIT EMPTY", "OMITT EMPTY", "OMITT", "did you mean 'OMIT'?"),
        ("SKIP TO LAST L", "SKIP TO LAST", "PATTERN", "a symbol is missing"),
        ("SKIP TO LAST L", "SKIP PAST LST ROW", "LST", "did you mean 'LAST'?"),
        ("SKIP TO LAST L", "SKIP TO LAST L AFTER MATCH SKIP NONE", "AFTER MATCH SKIP NONE", "given twice"),
        ("S{3,} ->", "S{3,} - >", "- >", "write '->'"),
        ("PATTERN (", "PATERN (", "PATERN", "did you mean 'PATTERN'?"),
        ("'10' MINUTES", "'ten' MINUTES", "'ten'", "not a positive whole number"),
        ("'10' MINUTES", "'10' MINUTS", "'10'", "did you mean 'MINUTE'?"),
        ("'10' MINUTES", "'10' MONTHS", "'10'", "no fixed length"),
        ("BETWEEN STEPS", "BETWEEN STOPS", "STOPS", "did you mean 'STEPS'?"),
        ("BETWEEN STEPS", "", "WITHIN INTERVAL 1", "WITHIN is given twice"),
        ("U = (S, L)", "U = S, L", "S, L\n", "'(' is needed here"),
        ("L AS amount > 100", "L amount > 100", "amount > 100", "AS is missing after 'L'"),
        ("L AS amount > 100", "S AS amount > 100", "S AS amount > 100", "'S' is given twice"),
        ("L AS amount > 100", "L AS", "\n) AS m", "a predicate is missing"),
    ],
)
def test_a_mistake_of_the_text_has_its_place(old: str, new: str, at: str, message: str) -> None:
    assert SQL.count(old) == 1
    text = SQL.replace(old, new)
    with pytest.raises(ExpressionError) as refused:
        split_match_recognize(text)
    assert message in str(refused.value)
    assert refused.value.column is not None
    found = text[refused.value.column - 1 :]
    assert found.startswith(at) or found.lstrip().startswith(at.lstrip()), found[:40]


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("PARTITION BY card", "PARTITION BY crd", "crd", "unknown column 'crd'; did you mean 'card'?"),
        ("ORDER BY ts", "ORDER BY tss", "tss", "did you mean 'ts'?"),
        ("ORDER BY ts,", "ORDER BY amount,", "WITHIN INTERVAL '10'", "needs a time stamp or date, ascending"),
        ("ORDER BY ts,", "ORDER BY ts DESC,", "WITHIN INTERVAL '10'", "'ts' is timestamp[us, tz=UTC] DESC"),
        ("S AS amount", "S AS amont", "amont", "did you mean 'amount'?"),
        ("L AS amount > 100", "L AS amount > 'x'", "amount > 'x'", "compares double with string"),
        ("L AS amount > 100", "K AS amount > 100", "K AS", "symbol 'K' is not in the pattern"),
        ("COUNT(S.*)", "COUNT(T.*)", "", "unknown symbol 'T'"),
        ("LAST(L.amount, 0)", "LAST(L.amont, 0)", "amont, 0", "did you mean 'amount'?"),
        ("AS loss", "AS card", "card\n  ALL", "two columns 'card'"),
        ("SUBSET U = (S, L)", "SUBSET U = (S, K)", "", "names 'K'"),
        ("SKIP TO LAST L", "SKIP TO LAST K", "K", "names 'K'"),
    ],
)
def test_a_mistake_of_names_and_types_has_its_place(old: str, new: str, at: str, message: str) -> None:
    assert SQL.count(old) == 1
    text = SQL.replace(old, new)
    _, query = split_match_recognize(text)
    with pytest.raises(ExpressionError) as refused:
        query.operator(TYPES)
    assert message in str(refused.value)
    assert refused.value.column is not None
    assert text[refused.value.column - 1 :].startswith(at)


def test_a_place_is_given_as_line_and_character() -> None:
    with pytest.raises(ExpressionError, match=r"\(line 3, character 16\)"):
        split_match_recognize(SQL.replace("PARTITION BY card", "PARTITION BY 5"))


def test_the_output_needs_a_column() -> None:
    with pytest.raises(ExpressionError, match="no columns"):
        said("").operator(TYPES)
