"""Complex events as events: what one operator found is what the next one reads.

The type of a complex event is the name of its operator, its attributes are the measures, and it stands at the instant at
which it was decided. Several inputs become one stream; what is found in it is led back to where its events came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import LOG_SN, TIMESTAMP
from spark_jobs.ordering.names import names_of
from spark_jobs.ordering.ranks import ranks
from spark_jobs.pipeline import EVENT_LOG, Pipeline

# Which input an event of a merged stream comes from, and its number there.
INPUT, NUMBER = "_input", "_number"
# Of complex events in order of time: their order within one instant.
RANK = "_rank"


@dataclass(frozen=True)
class Part:
    """Events of one input."""

    name: str
    events: pa.Table  # with the input's own numbers as `sn`
    places: Int64s  # their numbers in the operator's stream


def stored_columns_of(upstream: str, schema: pa.Schema, operator: Operator) -> list[str]:
    """The columns of an input's table that an operator has to read, besides number and time."""
    if upstream == EVENT_LOG:
        return [name for name in operator.columns if name in schema.names]
    made = {"sn", "type"}  # of a complex event these are not stored
    return ["decided_sn", *(name for name in operator.columns if name in schema.names and name not in made)]


def as_events(upstream: str, found: pa.Table, operator: Operator) -> pa.Table:
    """Rows of an input's table in the columns that the operator names; what the input does not have is NULL."""
    is_log = upstream == EVENT_LOG
    number = found["sn" if is_log else "ordinal"]
    columns: dict[str, Any] = {
        "sn": number,
        "stream_ts": found["stream_ts" if is_log else "decided_ts"],
        LOG_SN: number if is_log else found["decided_sn"],
    }
    for name in operator.columns:
        if name in columns:
            continue
        if name == "type" and not is_log:
            codes = pa.array(np.zeros(found.num_rows, np.int32))
            columns[name] = pa.DictionaryArray.from_arrays(codes, pa.array([upstream]))
        else:
            columns[name] = _coded(
                found[name] if name in found.column_names else pa.nulls(found.num_rows, operator.types[name])
            )
    return pa.table(columns)


def merged(parts: Sequence[Part]) -> pa.Table:
    """One stream of all parts, in the order of their places; one part is a stream as it is."""
    if len(parts) == 1:
        return parts[0].events
    tables = [
        part.events
        .set_column(part.events.schema.get_field_index("sn"), "sn", pa.array(part.places))
        .append_column(INPUT, pa.array(np.full(part.places.size, index, np.int32)))
        .append_column(NUMBER, part.events["sn"])
        for index, part in enumerate(parts)
    ]  # fmt: skip
    stream = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    return stream.take(pa.array(np.argsort(np.asarray(stream["sn"]), kind="stable")))


# Events in order of time. A complex event may be taken back, so that no number of it is its place for good: events of several
# inputs have names, and those of one instant are ordered by what they are.


def in_log(rows: pa.Table) -> pa.Table:
    """Events of the log by their own time."""
    return rows.set_column(rows.schema.get_field_index("stream_ts"), "stream_ts", rows["ts"].cast(TIMESTAMP))


def as_part(upstream: str, rows: pa.Table, pipeline: Pipeline, operator: Operator, index: int, count: int) -> pa.Table:
    """Rows of one of `count` inputs as events with names; `rows` are of the log, or complex events that stand."""
    is_log = upstream == EVENT_LOG
    events = as_events(upstream, in_log(rows) if is_log else rows, operator)
    rank = np.zeros(rows.num_rows, np.int64)
    if not is_log:
        over_log = pipeline.operators[upstream].inputs == [EVENT_LOG]
        said = sorted({"key", "symbols", *operator.columns} & set(rows.column_names) - {"x", "y", "ordinal"})
        rank = ranks(rows, () if over_log else said)
    events = events.append_column(RANK, pa.array(rank))
    if count == 1:
        return events
    numbers = int64s(events["sn"])
    events = events.append_column(INPUT, pa.array(np.full(numbers.size, index, np.int32))).append_column(NUMBER, events["sn"])
    return events.set_column(events.schema.get_field_index("sn"), "sn", pa.array(names_of(numbers, index, count)))


def in_time(events: pa.Table) -> pa.Table:
    """Events in the order in which they happened: those of one time in the order of the log, then of the inputs."""
    more = [int64s(events[name]) for name in (LOG_SN, INPUT, RANK) if name in events.column_names]
    order = np.lexsort((*(more or [int64s(events["sn"])])[::-1], int64s(events["stream_ts"])))
    return events if (order == np.arange(order.size)).all() else events.take(pa.array(order))


def traced(matches: pa.Table, events: pa.Table, closes: pa.Table | None, names: Sequence[str]) -> pa.Table:
    """Matches over complex events, led back: when the log decided them, and from which input the events bound come.

    `closes` are the events that close count windows, which may be another shard's.
    """
    if LOG_SN not in events.column_names:
        return matches
    sn, log_sn = np.asarray(events["sn"]), np.asarray(events[LOG_SN])
    order = np.argsort(sn, kind="stable")
    matches = matches.append_column(LOG_SN, pa.array(_decided(matches, sn[order], log_sn[order], closes)))
    if INPUT not in events.column_names:
        return matches
    bound = matches["sns"].combine_chunks()
    rows = order[np.searchsorted(sn[order], np.asarray(bound.values))]
    numbers = pa.array(np.asarray(events[NUMBER])[rows])
    inputs = pa.DictionaryArray.from_arrays(pa.array(np.asarray(events[INPUT])[rows]), pa.array(list(names)))
    matches = matches.set_column(matches.schema.get_field_index("sns"), "sns", pa.ListArray.from_arrays(bound.offsets, numbers))
    return matches.append_column("inputs", pa.ListArray.from_arrays(bound.offsets, inputs))


def _decided(matches: pa.Table, sn: Int64s, log_sn: Int64s, closes: pa.Table | None) -> Int64s:
    """Per match the SN of the log that decided it, 0 where a deadline did."""
    if closes is not None:
        sn, log_sn = np.append(sn, closes["sn"]), np.append(log_sn, closes["log_sn"])
        order = np.argsort(sn, kind="stable")
        sn, log_sn = sn[order], log_sn[order]
    at_sn = int64s(matches["_at_sn"])
    decided = np.zeros(at_sn.size, np.int64)
    by_row = at_sn > 0
    decided[by_row] = log_sn[np.searchsorted(sn, at_sn[by_row])]
    return decided


def _coded(column: Any) -> Any:
    """Text as codes, as tasks read it: only columns of one kind can be joined."""
    return column.dictionary_encode() if pa.types.is_string(column.type) else column
