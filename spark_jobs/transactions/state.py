"""Shared state as cells, and what a transaction learned of them and adds to them.

A transaction does not remember the values it read, but what it learned from them: that each lay between two bounds. Whatever
state lies between these bounds, the transaction does the same in it; so what others have added since is no conflict unless it
crosses a bound. What it writes are sums to add, which do not depend on what others add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s
from spark_jobs.errors import RepriseError

# Nothing was learned: any value will do.
LOWEST, HIGHEST = -(2**63), 2**63 - 1
# A cell may hold this much: the largest chunk of the largest amounts (operators.py) still has room beyond it.
LARGEST_CELL = 4 * 10**18

NO_CELLS: Int64s = np.empty(0, np.int64)
NO_KEYS = pa.array([], pa.string())


class State(NamedTuple):
    """Numbers in cells. Where cells belong to keys, `keys` names them, in the order in which the keys first came."""

    cells: Int64s
    keys: Any = NO_KEYS

    def table(self) -> pa.Table:
        """Both as one row of lists, to be mapped by who reads them."""
        return _one_row({"cells": self.cells, "keys": self.keys})

    @classmethod
    def of(cls, table: pa.Table) -> State:
        return cls(_numbers(table, "cells"), _values(table, "keys"))

    def packed(self) -> bytes:
        """As bytes: part of a savepoint."""
        sink, table = pa.BufferOutputStream(), self.table()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def unpacked(cls, data: bytes) -> State:
        return cls.of(pa.ipc.open_stream(data).read_all())


class Effect(NamedTuple):
    """What a transaction did: the rows of its chunk that it found, what it learned, and what it adds.

    It saw a state of `seen` cells. Keys that it did not find there have cells after those, in the order of `new_keys`.
    """

    rows: Int64s
    seen: int
    new_keys: Any
    read: Int64s  # cells, each once
    low: Int64s  # .. and the bounds between which their values lay
    high: Int64s
    written: Int64s  # cells, each once
    added: Int64s

    def table(self) -> pa.Table:
        return _one_row({name: getattr(self, name) for name in _LISTS}).append_column("seen", pa.array([self.seen]))

    @classmethod
    def of(cls, table: pa.Table) -> Effect:
        numbers = {name: _numbers(table, name) for name in _LISTS if name != "new_keys"}
        return cls(**numbers, seen=table["seen"][0].as_py(), new_keys=_values(table, "new_keys"))


_LISTS = ("rows", "new_keys", "read", "low", "high", "written", "added")


def committed(state: State, effect: Effect) -> State | None:
    """The state with what a transaction adds; None if what it has learned is not so any more, and it has to run again."""
    grown, places = _with_keys(state, effect)
    values = grown.cells[_placed(effect.read, places, effect.seen)]
    if not ((values >= effect.low) & (values <= effect.high)).all():
        return None
    cells = grown.cells.copy()
    cells[_placed(effect.written, places, effect.seen)] += effect.added
    if cells.max(initial=0) > LARGEST_CELL or cells.min(initial=0) < -LARGEST_CELL:
        raise RepriseError(
            f"a sum has left the range of {LARGEST_CELL:,}: the state of this operator cannot hold it. Nothing of this batch "
            "was published. Look for amounts that are wrong, or give them fewer decimal places."
        )
    return State(cells, grown.keys)


def _with_keys(state: State, effect: Effect) -> tuple[State, Int64s]:
    """The state with cells for all keys of a transaction, and the cells of those that it called new."""
    if not len(effect.new_keys):
        return state, NO_CELLS
    since = state.keys.slice(effect.seen)  # what the transaction cannot have seen
    places, missing = cells_of(effect.new_keys, since, effect.seen)
    cells = np.concatenate([state.cells, np.zeros(len(missing), np.int64)])
    return State(cells, pa.concat_arrays([state.keys, missing]) if len(missing) else state.keys), places


def cells_of(names: Any, keys: Any, first: int) -> tuple[Int64s, Any]:
    """The cells of some names, where `keys` have those from `first` on and missing ones come after; and what is missing."""
    found = pc.index_in(names, value_set=keys)
    missing = np.asarray(pc.is_null(found))
    places = np.asarray(pc.fill_null(found.cast(pa.int64()), 0)) + first
    places[missing] = first + len(keys) + np.arange(missing.sum())
    return places, names.filter(pa.array(missing))


def _placed(cells: Int64s, places: Int64s, seen: int) -> Int64s:
    """Cells as the state numbers them now."""
    if not places.size:
        return cells
    return np.where(cells < seen, cells, places[np.maximum(cells - seen, 0)])


def _one_row(columns: Mapping[str, Any]) -> pa.Table:
    arrays = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    return pa.table({name: pa.LargeListArray.from_arrays(pa.array([0, len(a)], pa.int64()), a) for name, a in arrays.items()})


def _values(table: pa.Table, name: str) -> Any:
    return table[name].combine_chunks().flatten() if table[name].num_chunks != 1 else table[name].chunk(0).flatten()


def _numbers(table: pa.Table, name: str) -> Int64s:
    return np.asarray(_values(table, name))
