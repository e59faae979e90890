"""States as bytes: part of a savepoint. An Arrow table, so that nothing has to be invented or executed to read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Floors
from spark_jobs.ordering.states import State

_NUMBERS = pa.list_(pa.int64())
_SCHEMA = pa.schema([
    ("upto", pa.int64()),
    ("read", pa.int64()),
    *((name, _NUMBERS) for name in ("needed", "places", "context")),
    *((f"floor_{name}", _NUMBERS) for name in Floors._fields),
])


def packed(states: Sequence[State]) -> bytes:
    rows = [
        {
            "upto": state.upto,
            "read": state.read,
            "needed": state.needed,
            "places": state.places,
            "context": state.context,
            **{f"floor_{name}": part for name, part in state.floors._asdict().items()},
        }
        for state in states
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> tuple[State, ...]:
    rows = pa.ipc.open_stream(data).read_all().to_pylist()
    return tuple(_state(row) for row in rows)


def _state(row: dict[str, Any]) -> State:
    numbers = {name: np.array(value, np.int64) for name, value in row.items() if isinstance(value, list)}
    floors = Floors(*(numbers[f"floor_{name}"] for name in Floors._fields))
    return State(row["upto"], row["read"], numbers["needed"], numbers["places"], numbers["context"], floors)
