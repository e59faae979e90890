"""Queries over Spark DataFrames: the rows of a key meet in one task, and the engine does the rest there.

Everything a user can get wrong is found on the driver, from the schema alone, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from spark_jobs.builder import Builder
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s, one_chunk
from spark_jobs.cep.matcher import TIMESTAMP, match_complete
from spark_jobs.cep.measures import Measures
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.output import all_rows, one_row
from spark_jobs.cep.query import KEY, SN, STREAM_TS, TIMED_OUT, Order, Query
from spark_jobs.cep.sql import split_match_recognize
from spark_jobs.errors import RepriseError

# A task holds its rows in memory: at 100 bytes each this is 5 GB, and as much again while it sorts them.
MAX_ROWS = 50_000_000
# Arrow addresses the bytes of one column of text with 32 bits.
_MAX_TEXT_BYTES = 2**31 - 1
# Rows handed to Spark at once: enough to make the fixed cost of a batch small.
_BATCH_ROWS = 65_536


def match(df: DataFrame, query: str | Query | Builder, *, max_rows: int = MAX_ROWS) -> DataFrame:
    """The matches in `df` of a query, given as SQL text or made by the builder. Lazy, as all of Spark.

    `SELECT .. FROM name MATCH_RECOGNIZE (..)`: the clause is applied to `df`, whatever the name, and Spark runs the SQL
    around it. The rows of `df` are shuffled by the PARTITION BY columns; without PARTITION BY, and with windows that count
    rows of the whole input (`ROWS n` without `PER KEY`), one task gets all rows. A task with more than `max_rows` rows fails
    and names its biggest key.

    Rows are sorted by ORDER BY, then by the columns the query names, then by all others, so the result does not depend on
    how Spark splits the input. The first ORDER BY column is the time if it is a time stamp or date, ascending; otherwise
    WITHIN and windows by time are refused. Rows without a time count as at the time before them, or the first one known.
    TIMESTAMP_NTZ columns and the literals of the clause are taken as UTC.

    ONE ROW PER MATCH gives the PARTITION BY columns and the measures; ALL ROWS PER MATCH the PARTITION BY and ORDER BY columns,
    the measures and all other columns. TIMED OUT adds a column `timed_out`. In measures, all integers are BIGINT and
    all floating-point numbers DOUBLE. Within a task, rows come by key and first row of their match.
    """
    if isinstance(query, str):
        outer, query = split_match_recognize(query)
        return df.sparkSession.sql(outer, matches=_matches(df, query, max_rows))
    if isinstance(query, Builder):
        query = query.query
    if not isinstance(query, Query):
        raise RepriseError(f"match() needs SQL text with MATCH_RECOGNIZE or a query made with pattern(), not {query!r}")
    return _matches(df, query, max_rows)


def _matches(df: DataFrame, query: Query, max_rows: int) -> DataFrame:
    plan = _plan(df.schema, query, max_rows)
    # By number, because mapInArrow cannot find a column whose name has a dot or a backtick.
    rows = df.select([_column(name).alias(str(number)) for number, name in enumerate(plan.columns)])
    if query.partition_by and not query.one_stream:
        rows = rows.repartition(*[_column(str(plan.columns.index(name))) for name in query.partition_by])
    else:
        rows = rows.repartition(1)
    return rows.mapInArrow(_task(plan), plan.schema)


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")


@dataclass(frozen=True)
class _Plan:
    """What a task needs to know."""

    query: Query
    operator: Operator
    columns: tuple[str, ...]  # of the input, in order of their weight for ties
    schema: T.StructType
    max_rows: int


def _plan(schema: T.StructType, query: Query, max_rows: int) -> _Plan:
    names = schema.names
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RepriseError(f"the DataFrame has two columns '{twice[0]}'; rename one of them before matching")
    types = {f.name: known for f in schema.fields if (known := _engine_type(f.dataType)) is not None}
    operator = query.operator(types, columns=[name for name in names if name not in types])
    named = {*query.partition_by, *(order.column for order in query.order_by), *operator.columns}
    used = [name for name in names if name in named]
    others = [name for name in names if name not in named] if query.all_rows else []
    measured = {name: _measure_type(query, schema, operator, name) for name in query.measures}
    if query.timed_out:
        measured[TIMED_OUT] = T.BooleanType()
    fields = [
        T.StructField(name, measured[name]) if name in measured else schema[name] for name in query.output([*used, *others])
    ]
    return _Plan(query, operator, (*used, *others), T.StructType(fields), max_rows)


def _engine_type(type_: T.DataType) -> pa.DataType | None:
    """The type as expressions see it; None for columns that are only handed on."""
    if isinstance(type_, T.IntegralType):
        return pa.int64()
    if isinstance(type_, T.FractionalType) and not isinstance(type_, T.DecimalType):
        return pa.float64()
    if isinstance(type_, T.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, (T.StringType, T.VarcharType, T.CharType)):
        return pa.string()
    fixed: dict[type[T.DataType], pa.DataType] = {
        T.BooleanType: pa.bool_(),
        T.DateType: pa.date32(),
        T.TimestampType: TIMESTAMP,
        T.TimestampNTZType: TIMESTAMP,
    }
    return fixed.get(type(type_))


def _measure_type(query: Query, schema: T.StructType, operator: Operator, name: str) -> T.DataType:
    type_ = operator.measured.types[name]
    if pa.types.is_null(type_):
        raise query.error(f"'{name}' is always NULL, so it has no type", f"measures.{name}")
    if pa.types.is_duration(type_):
        return T.DayTimeIntervalType()
    if pa.types.is_timestamp(type_):
        # A measure over time stamps without a zone has none either.
        alone = Measures.parse({name: query.measures[name]}, operator.pattern.symbols, operator.subsets, operator.types, True)
        times = [schema[column].dataType for column in alone.columns if pa.types.is_timestamp(operator.types[column])]
        if times and all(isinstance(time, T.TimestampNTZType) for time in times):
            return T.TimestampNTZType()
    return from_arrow_type(type_)


def _task(plan: _Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = _collected(plan, batches)
        if table is not None:
            yield from _output(plan, table).to_batches(max_chunksize=_BATCH_ROWS)

    return run


def _collected(plan: _Plan, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """All rows of the task; None if there are none."""
    parts: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        parts.append(batch)
        rows += batch.num_rows
        if rows > plan.max_rows:
            read = pa.Table.from_batches(parts).rename_columns(list(plan.columns))
            raise _too_much(plan, read, f"more than {plan.max_rows:,} rows")
    if not rows:
        return None
    table = pa.Table.from_batches(parts).rename_columns(list(plan.columns))
    for name in table.column_names:
        kind = table.schema.field(name).type
        if (pa.types.is_string(kind) or pa.types.is_binary(kind)) and table[name].nbytes > _MAX_TEXT_BYTES:
            raise _too_much(plan, table, f"more than 2 GB of text in column '{name}'")
    return table


def _too_much(plan: _Plan, table: pa.Table, what: str) -> RepriseError:
    if not plan.query.partition_by:
        return RepriseError(f"one task would hold {what}, because there is no PARTITION BY; give one, or raise max_rows")
    codes, texts = _keys(table, plan.query.partition_by)
    counts = np.bincount(codes)
    rows, key = int(counts.max()), texts[int(counts.argmax())].as_py()
    return RepriseError(
        f"one task would hold {what}; its biggest key, {key}, has {rows:,} of {table.num_rows:,} read. "
        "Use more shuffle partitions (spark.sql.shuffle.partitions), a finer PARTITION BY, or raise max_rows if memory allows."
    )


def _output(plan: _Plan, table: pa.Table) -> pa.Table:
    query, operator = plan.query, plan.operator
    key = _keys(table, query.partition_by) if query.partition_by else None
    order = _in_order(table, query.order_by, None if key is None else key[0])
    table = table.take(pa.array(order))
    columns: dict[str, Any] = {
        SN: pa.array(np.arange(1, table.num_rows + 1)),
        STREAM_TS: _stream_time(table, query, operator, None if key is None or query.one_stream else key[0][order]),
    }
    if key is not None:
        columns[KEY] = pa.DictionaryArray.from_arrays(pa.array(key[0][order].astype(np.int32)), key[1])
    for name in operator.columns:
        if name != KEY:
            columns[name] = _as_engine(table[name], operator.types[name])
    complete = match_complete(operator, pa.table(columns))
    rows, values = (
        all_rows(operator, complete, empty=query.empty, unmatched=query.unmatched)
        if query.all_rows
        else one_row(operator, complete)
    )
    given = table.take(pa.array(int64s(complete.events[SN])[rows] - 1))
    fields = to_arrow_schema(plan.schema, timezone="UTC")
    return pa.table({
        name: _as_spark(values[name], fields.field(name).type) if name in values else given[name] for name in plan.schema.names
    })


def _as_engine(column: Any, type_: pa.DataType) -> Any:
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)
    return column.cast(type_)


def _as_spark(values: Any, type_: pa.DataType) -> Any:
    if pa.types.is_timestamp(type_) and type_.tz is None:
        return values.cast(pa.int64()).cast(type_)
    return values.cast(type_)


def _keys(table: pa.Table, columns: Sequence[str]) -> tuple[Int64s, pa.Array]:
    """The key of each row as a number from 0, in order of the keys' values, NULL first; and the keys as text."""
    codes, _ = _coded(table[columns[0]])
    for name in columns[1:]:
        more, count = _coded(table[name])
        codes = np.unique(codes * count + more, return_inverse=True)[1]
    example = np.unique(codes, return_index=True)[1]
    parts = [pc.fill_null(table[name].take(pa.array(example)).cast(pa.string()), "NULL").combine_chunks() for name in columns]
    return codes, one_chunk(pc.binary_join_element_wise(*parts, ", ")) if len(parts) > 1 else one_chunk(parts[0])


def _coded(column: Any) -> tuple[Int64s, int]:
    column = one_chunk(column)
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 is 0.0, as it is to Spark's shuffle
    coded = column.dictionary_encode(null_encoding="encode")
    values = pa.table({"v": coded.dictionary})
    order = np.asarray(pc.sort_indices(values, sort_keys=[("v", "ascending", "at_start")]))
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    return rank[np.asarray(coded.indices)], order.size


def _in_order(table: pa.Table, order_by: Sequence[Order], codes: Int64s | None) -> Int64s:
    """Row numbers in a total order: ORDER BY, then the key, then, where that leaves ties, all columns."""
    columns: list[Any] = []
    keys: list[tuple[str, str, str]] = []

    def add(column: Any, descending: bool = False, nulls_first: bool = True) -> None:
        keys.append((str(len(columns)), "descending" if descending else "ascending", "at_start" if nulls_first else "at_end"))
        columns.append(column)

    for order in order_by:
        column = one_chunk(table[order.column])
        if pa.types.is_floating(column.type):  # NaN is larger than every number, as in Spark
            nan = pc.is_nan(column)
            add(nan, order.descending, order.nulls_first)
            column = pc.if_else(pc.fill_null(nan, False), pa.scalar(0.0, column.type), column)
        add(column, order.descending, order.nulls_first)
    if codes is not None:
        add(pa.array(codes))
    found = _sort(columns, keys)
    if columns and not _has_ties(columns, found):
        return found
    named = {order.column for order in order_by}
    for name in table.column_names:
        if name not in named:
            add(_sortable(one_chunk(table[name])))
    return _sort(columns, keys) if columns else np.arange(table.num_rows)


def _sort(columns: list[Any], keys: list[tuple[str, str, str]]) -> Int64s:
    if not columns:
        return np.empty(0, np.int64)
    table = pa.table({str(number): column for number, column in enumerate(columns)})
    return np.asarray(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)


def _has_ties(columns: list[Any], order: Int64s) -> bool:
    same = np.ones(max(order.size - 1, 0), np.bool_)
    for column in columns:
        ahead, behind = column.take(pa.array(order[:-1])), column.take(pa.array(order[1:]))
        both_null = pc.and_(pc.is_null(ahead), pc.is_null(behind))
        same &= np.asarray(pc.or_(pc.fill_null(pc.equal(ahead, behind), False), both_null))
    return bool(same.any())


def _sortable(column: Any) -> Any:
    """The column, or its text where Arrow has no order for the type."""
    kind = column.type
    plain = (
        pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )  # fmt: skip
    if plain and not pa.types.is_interval(kind):
        return column
    return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())


def _stream_time(table: pa.Table, query: Query, operator: Operator, codes: Int64s | None) -> Any:
    """The largest time so far, of the key or, if they are one stream, of all rows; without an order by time, one for all."""
    if not query.has_time(operator.types):
        return pa.array(np.zeros(table.num_rows, np.int64)).cast(TIMESTAMP)
    column = one_chunk(table[query.order_by[0].column])
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    missing = np.asarray(pc.is_null(micros))
    times = np.asarray(pc.fill_null(micros, 0)).copy()
    if missing.any():
        # Rows come in the order of their times, so those without one stand at one end of their key.
        keys = np.zeros(times.size, np.int64) if codes is None else codes
        ends = np.zeros(int(keys.max()) + 1, np.int64)
        known = np.flatnonzero(~missing)
        known = known[::-1] if query.order_by[0].nulls_first else known
        ends[keys[known]] = times[known]  # the last one written counts
        times[missing] = ends[keys[missing]]
    return pa.array(np.maximum.accumulate(times) if codes is None else times).cast(TIMESTAMP)
