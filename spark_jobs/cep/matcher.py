"""The matcher: what an operator does to the events of one shard.

Single-event predicates are evaluated columnar into a symbol mask, events without a symbol are dropped, and one
kernel call does the rest. Nothing here runs once per event or key in Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import NOT_HELD, Int64s
from spark_jobs.cep.expressions import Expression
from spark_jobs.cep.kernel import Stream, match, sort_by_key
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.pattern import parse_pattern

TIMESTAMP = pa.timestamp("us", "UTC")


class ShardMatches(NamedTuple):
    """What one shard found and what it still needs."""

    matches: pa.Table  # y, key, ts, sns and the measures; not yet numbered
    held_sn: Int64s
    held_until: Int64s  # stream time from which the event is no longer needed
    watermark: int  # largest stream time seen, or the smallest integer if nothing was


def match_shard(operator: Operator, events: pa.Table, *, first_window: int, after_sn: int, end_sn: int) -> ShardMatches:
    """Match the residual and the new events of one shard; only matches that end after `after_sn` are reported.

    `events` holds `sn`, `stream_ts` and `operator.columns`; the events of a key are in SN order.
    """
    events = events.unify_dictionaries().combine_chunks()
    watermark = pc.max(events["stream_ts"]).cast(pa.int64()).as_py() if events.num_rows else NOT_HELD
    mask = symbol_mask(operator, events)
    rows = np.flatnonzero(mask)
    codes, keys = key_codes(operator, events, rows)
    order, offsets = sort_by_key(codes, keys)
    rows = rows[order]
    sn = int64s(events["sn"])[rows]
    ts = int64s(events["stream_ts"])[rows]
    found = match(
        Stream(offsets, mask[rows], sn, ts),
        len(operator.pattern.steps),
        operator.window,
        within=operator.within,
        to_next_row=operator.to_next_row,
        first_window=first_window,
        after_sn=after_sn,
        end_sn=end_sn,
    )
    held = np.flatnonzero(found.deadline != NOT_HELD)
    bound = rows[found.rows]
    return ShardMatches(match_table(operator, events, bound, found.window), sn[held], found.deadline[held], watermark)


def warm_up() -> None:
    """Load the compiled kernel, compiling it where this host has not yet: the first call pays for all that follow."""
    operator = Operator(
        name="warm_up", pattern=parse_pattern("A -> B"), define={"A": "v > 0", "B": "v > 1"}, types={"v": pa.int64()}
    )
    events = pa.table({"sn": [1, 2], "stream_ts": pa.array([1, 2], TIMESTAMP), "v": [1, 2]})
    match_shard(operator, events, first_window=1, after_sn=0, end_sn=2)


def symbol_mask(operator: Operator, events: pa.Table) -> Int64s:
    """Bit s of the result is set where the event fits step s of the pattern."""
    fits = {symbol: _fits(predicate, events) for symbol, predicate in operator.predicates.items()}
    mask = np.zeros(events.num_rows, np.int64)
    for step, symbol in enumerate(operator.pattern.steps):
        mask |= fits[symbol].astype(np.int64) << step
    return mask


def _fits(predicate: Expression, events: pa.Table) -> Any:
    """The predicate as booleans per event, NULL counting as false; on coded text, once per distinct value."""
    columns = sorted(predicate.columns)
    if len(columns) == 1 and pa.types.is_dictionary(events.schema.field(columns[0]).type):
        coded = _one_chunk(events[columns[0]])
        # One more entry than there are codes: it answers for NULL.
        values = pa.concat_arrays([coded.dictionary, pa.nulls(1, coded.dictionary.type)])
        answers = _booleans(predicate.evaluate({columns[0]: values}), len(values))
        return answers[_codes(coded)]
    plain = {name: _decoded(events[name]) for name in columns}
    return _booleans(predicate.evaluate(plain), events.num_rows)


def _booleans(value: Any, length: int) -> Any:
    if isinstance(value, pa.Scalar):
        return np.full(length, bool(value.as_py()))
    return np.asarray(pc.fill_null(value, False))


def key_codes(operator: Operator, events: pa.Table, rows: Int64s) -> tuple[Any, int]:
    """A small integer per event and key; NULL is a key of its own, as in SQL's PARTITION BY."""
    if operator.partition_by is None:
        return np.zeros(rows.size, np.int64), 1
    column = _one_chunk(events[operator.partition_by])
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return _codes(coded)[rows], len(coded.dictionary) + 1


def _codes(coded: pa.DictionaryArray) -> Any:
    return np.asarray(pc.fill_null(coded.indices.cast(pa.int64()), len(coded.dictionary)))


def match_table(operator: Operator, events: pa.Table, bound: Int64s, window: Int64s) -> pa.Table:
    count, steps = bound.shape
    last = pa.array(bound[:, -1])
    sns = int64s(events["sn"])[bound.ravel()]
    table = {
        "y": pa.array(window),
        "key": _key_texts(operator, events, last),
        "ts": _one_chunk(events["stream_ts"]).take(last).cast(TIMESTAMP),
        "sns": pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * steps), pa.array(sns)),
    }
    # A symbol that stands at several steps means its last event, as in SQL.
    step_of = {symbol: step for step, symbol in enumerate(operator.pattern.steps)}
    for name, measure in operator.measure_expressions.items():
        columns = {}
        for qualified in measure.columns:
            symbol, column = qualified.split(".", 1)
            columns[qualified] = _decoded(_one_chunk(events[column]).take(pa.array(bound[:, step_of[symbol]])))
        value = measure.evaluate(columns)
        table[name] = pa.repeat(value, count) if isinstance(value, pa.Scalar) else value
    return pa.table(table)


def _key_texts(operator: Operator, events: pa.Table, rows: pa.Array) -> pa.Array:
    if operator.partition_by is None:
        return pa.nulls(len(rows), pa.string())
    return pc.cast(_decoded(_one_chunk(events[operator.partition_by]).take(rows)), pa.string())


def _decoded(column: Any) -> Any:
    column = _one_chunk(column)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _one_chunk(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def int64s(column: Any) -> Int64s:
    return np.asarray(_one_chunk(column).cast(pa.int64()))
