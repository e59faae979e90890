"""Queries over Spark DataFrames: what comes out, of which types, and that no split of the input shows in it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from reprise import match, pattern
from spark_jobs.cep.sql import split_match_recognize
from spark_jobs.dataframe import _output, _plan
from spark_jobs.errors import ExpressionError, RepriseError
from spark_jobs.runner import SparkRunner

T0 = dt.datetime(2026, 1, 1)
COLUMNS = "card string, ts timestamp, amount double, n smallint, tags array<string>"


@pytest.fixture(scope="module")
def session(spark: SparkRunner) -> SparkSession:
    session = SparkSession(spark.context())
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@pytest.fixture(scope="module")
def tx(session: SparkSession) -> DataFrame:
    """Two cards: small amounts, then a large one; the third card is NULL. Minutes are the row numbers."""
    amounts = {"c1": [1, 2, 300, 4, 5, 500], "c2": [7, 1, 1, 100], None: [1, 900]}
    rows = [
        (card, T0 + dt.timedelta(minutes=minute), float(amount), minute, [str(card)])
        for card, values in amounts.items()
        for minute, amount in enumerate(values)
    ]
    return session.createDataFrame(rows[::-1], COLUMNS)


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in df.collect()), key=lambda row: tuple((value is not None, str(value)) for value in row))


FRAUD = (
    pattern("S+ L")
    .by("card")
    .order_by("ts")
    .define(S="amount < 5", L="amount > 99")
    .measures(probes="COUNT(S.*)", loss="L.amount", opened="FIRST(S.ts)", no="MATCH_NUMBER()")
)


def test_one_row_per_match(tx: DataFrame) -> None:
    found = FRAUD.match(tx)
    assert found.columns == ["card", "probes", "loss", "opened", "no"]
    assert rows(found) == [
        (None, 1, 900.0, T0, 1),
        ("c1", 2, 300.0, T0, 1),
        ("c2", 2, 100.0, T0 + dt.timedelta(minutes=1), 1),
    ]


def test_sql_gives_what_the_builder_gives_and_spark_does_the_rest(tx: DataFrame) -> None:
    assert rows(match(tx, FRAUD.sql("tx"))) == rows(FRAUD.match(tx))
    clause = FRAUD.sql("tx").removeprefix("SELECT * FROM tx")
    summed = match(tx, f"SELECT SUM(m.probes) AS p, '{{}}' AS braces FROM tx{clause} AS m WHERE card IS NOT NULL")
    assert rows(summed) == [(4, "{}")]


def test_all_rows_per_match(tx: DataFrame) -> None:
    query = (
        pattern("S* {- L -}").by("card").order_by("ts").define(S="amount < 3", L="amount > 99").measures(
            symbol="CLASSIFIER()", so_far="COUNT(S.*)", total="FINAL COUNT(S.*)"
        ).all_rows()
    )  # fmt: skip
    found = query.match(tx.where("card = 'c1'"))
    assert found.columns == ["card", "ts", "symbol", "so_far", "total", "amount", "n", "tags"]
    assert [(r.symbol, r.so_far, r.total, r.n, r.tags) for r in found.collect()] == [
        ("S", 1, 2, 0, ["c1"]),
        ("S", 2, 2, 1, ["c1"]),
    ]


def test_empty_matches_and_unmatched_rows(tx: DataFrame) -> None:
    query = (
        pattern("S*").by("card").order_by("ts").define(S="amount < 3")
        .measures(no="MATCH_NUMBER()", count="COUNT(*)", symbol="CLASSIFIER()")
    )  # fmt: skip
    one = tx.where("card = 'c1'")
    empty = [(0, 1, 2, "S"), (2, 2, 0, None), (3, 3, 0, None), (4, 4, 0, None), (5, 5, 0, None)]
    shown = [(r.n, r.no, r["count"], r.symbol) for r in query.all_rows().match(one).collect()]
    assert shown == [(0, 1, 1, "S"), (1, 1, 2, "S"), *empty[1:]]
    assert [(r.no, r["count"], r.symbol) for r in query.match(one).collect()] == [row[1:] for row in empty]
    assert [r.n for r in query.all_rows(empty=False).match(one).collect()] == [0, 1]
    other = pattern("S L").by("card").order_by("ts").define(S="amount < 3", L="amount > 99").measures(no="MATCH_NUMBER()")
    assert [(r.n, r.no) for r in other.all_rows(unmatched=True).match(one).collect()] == [
        (0, None), (1, 1), (2, 1), (3, None), (4, None), (5, None)
    ]  # fmt: skip


def test_timed_out_partial_matches_are_marked(tx: DataFrame) -> None:
    query = (
        pattern("S -> L").by("card").order_by("ts").define(S="amount < 5", L="amount > 99").within("2 min").timed_out()
        .measures(begin="FIRST(n)")
    )  # fmt: skip
    assert rows(query.match(tx.where("card = 'c1'"))) == [("c1", 0, True), ("c1", 1, False), ("c1", 3, True)]


def test_types(session: SparkSession) -> None:
    columns = (
        "k decimal(5,1), day date, ntz timestamp_ntz, b byte, f float, d decimal(10,2), ok boolean, s string, bin binary, "
        "st struct<a: int>, m map<string, int>"
    )
    day = dt.date(2026, 1, 2)
    values = (Decimal("1.5"), day, T0, 7, 0.5, Decimal("2.25"), True, "x", b"y", (1,), {"a": 1})
    df = session.createDataFrame([values, values], columns)
    query = (
        pattern("A B").by("k").order_by("day")
        .define(B="f = PREV(f) AND d > 2 AND ok AND s LIKE 'x' AND day > DATE '2026-01-01'")
        .measures(ntz="A.ntz", b="MAX(b)", f="SUM(f)", d="B.d", ok="A.ok", s="A.s", lasted="B.ntz - A.ntz", e="COUNT(*)")
    )  # fmt: skip
    found = query.match(df)
    assert dict(found.dtypes) == {
        "k": "decimal(5,1)", "ntz": "timestamp_ntz", "b": "bigint", "f": "double", "d": "decimal(10,2)", "ok": "boolean",
        "s": "string", "lasted": "interval day to second", "e": "bigint",
    }  # fmt: skip
    assert rows(found) == [(Decimal("1.5"), T0, 7, 1.0, Decimal("2.25"), True, "x", dt.timedelta(0), 2)]
    passed = pattern("A B").by("k").order_by("day").measures(no="MATCH_NUMBER()").all_rows().match(df)
    assert {name: type_ for name, type_ in passed.dtypes if name != "no"} == dict(df.dtypes)
    assert [(row.bin, row.st.a, row.m) for row in passed.collect()] == [(b"y", 1, {"a": 1})] * 2


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("v", [None, 1.0, 2.0, float("nan")]),
        ("v NULLS LAST", [1.0, 2.0, float("nan"), None]),
        ("v DESC", [float("nan"), 2.0, 1.0, None]),
        ("v DESC NULLS FIRST", [None, float("nan"), 2.0, 1.0]),
    ],
)
def test_rows_are_ordered_as_spark_orders_them(session: SparkSession, order: str, expected: list[Any]) -> None:
    df = session.createDataFrame([(2.0,), (float("nan"),), (None,), (1.0,)], "v double")
    found = pattern("A").order_by(order).measures(no="MATCH_NUMBER()").all_rows().match(df)
    values = [row.v for row in found.collect()]
    assert [str(value) for value in values] == [str(value) for value in expected]
    assert [str(row.v) for row in df.selectExpr("*").sort(*[_spark_order(order)]).collect()] == [str(v) for v in expected]


def _spark_order(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr("v") if text == "v" else {
        "v NULLS LAST": F.col("v").asc_nulls_last(),
        "v DESC": F.col("v").desc(),
        "v DESC NULLS FIRST": F.col("v").desc_nulls_first(),
    }[text]  # fmt: skip


def test_no_split_or_order_of_the_input_shows_in_the_result(session: SparkSession) -> None:
    """Many ties: 300 rows in 20 minutes; what ORDER BY leaves open, the other columns decide."""
    data = [
        (f"c{i % 7}", T0 + dt.timedelta(minutes=i * 7 % 20), float(i * 31 % 11), i % 5, [str(i * 13 % 3)]) for i in range(300)
    ]
    query = (
        pattern("A+? -> B").by("card", "n").order_by("ts").define(A="amount < 5", B="amount > PREV(amount)").within("7 min")
        .measures(first="FIRST(amount)", count="COUNT(*)", sum="SUM(amount)")
    )  # fmt: skip
    expected = rows(query.match(session.createDataFrame(data, COLUMNS).coalesce(1)))
    all_rows = rows(query.all_rows().match(session.createDataFrame(data, COLUMNS).coalesce(1)))
    assert len(all_rows) > len(expected) > 20
    for parts, order in ((1, -1), (5, 1), (3, 7)):
        shuffled = data[::-1] if order < 0 else sorted(data, key=lambda row: hash((row[2], order)))
        df = session.createDataFrame(shuffled, COLUMNS).repartition(parts)
        assert rows(query.match(df)) == expected
        assert rows(query.all_rows().match(df)) == all_rows
    counted = query.window(count=50, slide=20)
    whole = rows(counted.match(session.createDataFrame(data, COLUMNS)))
    assert rows(counted.match(session.createDataFrame(data[::-1], COLUMNS).repartition(4))) == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 5) | st.none(), st.integers(0, 3)), max_size=12))
def test_with_unmatched_rows_every_row_comes_out_once(data: list[tuple[Any, ...]]) -> None:
    """PAST LAST ROW: no two matches share a row. Without Spark: the task's own function."""
    table = pa.table({
        "k": pa.array([row[0] for row in data], pa.string()),
        "ts": pa.array([row[1] for row in data], pa.timestamp("us")),
        "v": pa.array([row[2] for row in data], pa.int16()),
    })
    schema = T.StructType().add("k", T.StringType()).add("ts", T.TimestampNTZType()).add("v", T.ShortType())
    query = pattern("A+ B? | C B").by("k").order_by("ts").define(A="v = 1", B="v > PREV(v)", C="v = 0")
    query = query.measures(no="MATCH_NUMBER()")
    found = _output(_plan(schema, query.all_rows(unmatched=True).query, 99), table).to_pylist()
    given_rows = [(row["k"], row["ts"], row["v"]) for row in table.to_pylist()]
    assert sorted(((row["k"], row["ts"], row["v"]) for row in found), key=str) == sorted(given_rows, key=str)
    matches = _output(_plan(schema, query.query, 99), table).to_pylist()
    assert {(row["k"], row["no"]) for row in found if row["no"]} == {(row["k"], row["no"]) for row in matches}
    assert len(matches) == len({(row["k"], row["no"]) for row in matches})


def test_mistakes_are_found_before_anything_runs(tx: DataFrame) -> None:
    text = "SELECT * FROM tx MATCH_RECOGNIZE (PARTITION BY card ORDER BY ts MEASURES A.amont AS x PATTERN (A B))"
    with pytest.raises(ExpressionError, match=r"unknown column 'amont'; did you mean 'amount'\? \(line 1") as refused:
        match(tx, text)
    assert text[(refused.value.column or 0) - 1 :].startswith("amont")
    with pytest.raises(ExpressionError, match=r"define S: unknown column 'amont'.*at character 1 of 'amont > 5'"):
        FRAUD.define(S="amont > 5").match(tx)
    with pytest.raises(ExpressionError, match="to partition nothing by"):
        FRAUD.by("tags").match(tx)
    with pytest.raises(ExpressionError, match="needs a time stamp or date"):
        FRAUD.order_by("n").within("1 min").match(tx)
    with pytest.raises(ExpressionError, match="always NULL"):
        FRAUD.measures(none="NULL").match(tx)
    with pytest.raises(RepriseError, match="two columns 'card'"):
        FRAUD.match(tx.select("*", "card"))


def test_a_task_with_too_many_rows_names_its_biggest_key(tx: DataFrame) -> None:
    query = split_match_recognize(FRAUD.sql("tx"))[1]
    with pytest.raises(Exception, match="its biggest key, c1, has 6 of") as failed:
        match(tx.where("card = 'c1'"), query, max_rows=5).collect()
    assert "more than 5 rows" in str(failed.value)


def test_no_rows_give_no_matches(tx: DataFrame) -> None:
    assert rows(FRAUD.match(tx.where("card = 'none'"))) == []


def test_time_passes_in_each_key_alone_so_partitions_do_not_show(session: SparkSession) -> None:
    """Deadlines and rows without a time depend on the rows of their key, not on those that share a task with it."""
    data = [(k, None if i == 0 else T0 + dt.timedelta(hours=k, minutes=i), i) for k in range(6) for i in range(4)]
    df = session.createDataFrame(data, "k int, ts timestamp, v int")
    query = pattern("A -> B -> C").by("k").order_by("ts NULLS FIRST").within("10 min").timed_out()
    query = query.define(A="v < 2", B="v = 2", C="v > 8").measures(first="FIRST(v)", last="LAST(v)")
    found = []
    for partitions in (1, 2, 7):
        session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        found.append(rows(query.match(df)))
    session.conf.set("spark.sql.shuffle.partitions", "3")
    assert found[0] == found[1] == found[2]


def test_any_column_name_can_be_used(session: SparkSession) -> None:
    df = session.createDataFrame([(1, 5, 7), (2, 6, 8)], ["sn", "stream_ts", "a.b"])
    found = match(df, 'SELECT * FROM x MATCH_RECOGNIZE (ORDER BY sn MEASURES "a.b" AS z, LAST(stream_ts) AS s PATTERN (A+))')
    assert rows(found) == [(8, 6)]


def test_a_builder_is_a_query_and_nothing_else_is(tx: DataFrame) -> None:
    assert rows(match(tx, FRAUD)) == rows(FRAUD.match(tx))
    with pytest.raises(RepriseError, match="needs SQL text"):
        match(tx, None)  # type: ignore[arg-type]  # what the message is for


def test_a_table_made_by_with_is_refused(tx: DataFrame) -> None:
    with pytest.raises(ExpressionError, match="is made by WITH"):
        match(tx, "WITH x AS (SELECT 1) SELECT * FROM x MATCH_RECOGNIZE (ORDER BY ts PATTERN (A+))")
