"""States as bytes: part of a savepoint. An Arrow table, so that nothing has to be executed to read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Floors
from spark_jobs.ordering.states import State
from spark_jobs.recovery.sets import read_columns, stored_columns

_SCHEMA = pa.schema([
    ("upto", pa.int64()),
    ("read", pa.int64()),
    *((name, pa.binary()) for name in ("needed", "context", "floors")),
])


def packed(states: Sequence[State]) -> bytes:
    rows = [
        {
            "upto": state.upto,
            "read": state.read,
            "needed": stored_columns([state.needed, state.places]),
            "context": stored_columns([state.context]),
            "floors": stored_columns(list(state.floors)),
        }
        for state in states
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> tuple[State, ...]:
    table = pa.ipc.open_stream(data).read_all()
    return tuple(map(_state if "floors" in table.column_names else _older_state, table.to_pylist()))


def _state(row: dict[str, Any]) -> State:
    (needed, places), (context,) = read_columns(row["needed"]), read_columns(row["context"])
    return State(row["upto"], row["read"], needed, places, context, Floors(*read_columns(row["floors"])))


def _older_state(row: dict[str, Any]) -> State:
    """As they were stored before 0.5: every array as a list."""
    needed, places, context = (np.array(row[name], np.int64) for name in ("needed", "places", "context"))
    floors = Floors(*(np.array(row[f"floor_{name}"], np.int64) for name in Floors._fields))
    return State(row["upto"], row["read"], needed, places, context, floors)
