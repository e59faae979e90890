"""Operators with shared state: a sketch that finds heavy hitters, and balances that are not to be overdrawn.

Each is a frozen configuration and a kernel over one chunk. The law: in every state whose cells lie between the bounds that
`run` reports, `run` finds the same rows and adds the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.compiled import allocating, compiled
from spark_jobs.transactions.state import HIGHEST, LOWEST, NO_CELLS, NO_KEYS, Effect, State, cells_of

# What one event may move, and how many events are in a chunk: so no sum inside a chunk leaves 64 bits (state.py, LARGEST_CELL).
LARGEST_AMOUNT, LARGEST_CHUNK = 10**12, 1_000_000
# Rows of the sketch. Two items share their cells in all of them with probability width^-4.
DEPTH = 4
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MIX_1, _MIX_2, _GOLDEN = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


class Chunk(NamedTuple):
    """Events in order: which item or account each is about, as an index into `names`, and what it moves."""

    items: Int64s
    names: Any  # texts, each once, in the order in which they first come; NULL is a name of its own
    amounts: Int64s = NO_CELLS


class StatefulOperator(Protocol):
    """What a chunk of events does to a state."""

    def beginning(self) -> State:
        """The state before the first event."""

    def run(self, chunk: Chunk, state: State) -> Effect: ...


@dataclass(frozen=True)
class HeavyHitters:
    """Finds the event with which an item is first seen to have come `threshold` times, by a count-min sketch (seed 002, IV).

    An event adds 1 to a cell of its item in each row; the least of them is the estimate, which is never too low. A second
    sketch remembers who was found: it takes an item for another that was with probability (found / width)^4.
    """

    threshold: int
    cells: int  # of each sketch

    @property
    def width(self) -> int:
        return self.cells // DEPTH

    def beginning(self) -> State:
        return State(np.zeros(2 * DEPTH * self.width, np.int64))

    def run(self, chunk: Chunk, state: State) -> Effect:
        size = state.cells.size
        added, low, high = np.zeros(size, np.int64), np.full(size, LOWEST), np.full(size, HIGHEST)
        found = np.zeros(chunk.items.size, np.bool_)
        places = sketch_cells(chunk.names, self.width)
        _count(chunk.items, places, state.cells.copy(), self.threshold, added, low, high, found)
        return _effect(np.flatnonzero(found), np.arange(size), added, low, high, size, NO_KEYS)


@dataclass(frozen=True)
class Balance:
    """Finds withdrawals (negative amounts) that the balance of their account does not cover; these are not carried out."""

    def beginning(self) -> State:
        return State(NO_CELLS)

    def run(self, chunk: Chunk, state: State) -> Effect:
        cells, new = cells_of(chunk.names, state.keys, 0)
        start = np.zeros(cells.size, np.int64)
        known = cells < state.cells.size
        start[known] = state.cells[cells[known]]
        added, low, high = np.zeros(cells.size, np.int64), np.full(cells.size, LOWEST), np.full(cells.size, HIGHEST)
        declined = np.zeros(chunk.items.size, np.bool_)
        _move(chunk.items, chunk.amounts, start, added, low, high, declined)
        return _effect(np.flatnonzero(declined), cells, added, low, high, state.cells.size, new)


def _effect(rows: Int64s, cells: Int64s, added: Int64s, low: Int64s, high: Int64s, seen: int, new_keys: Any) -> Effect:
    read, written = np.flatnonzero((low > LOWEST) | (high < HIGHEST)), np.flatnonzero(added)
    return Effect(rows, seen, new_keys, cells[read], low[read], high[read], cells[written], added[written])


def chunk_of(codes: Any, texts: Any, amounts: Int64s = NO_CELLS) -> Chunk:
    """A chunk of events, given a code of each and the texts of the codes; the one after the last is that of NULL."""
    items, order = _renumbered(np.ascontiguousarray(codes, np.int64), len(texts) + 1)
    names = pa.concat_arrays([texts.cast(pa.string()), pa.nulls(1, pa.string())]).take(pa.array(order))
    return Chunk(items, names, amounts)


def sketch_cells(names: Any, width: int) -> Any:
    """The cells of items, one in each row of a sketch: a stable hash, the same on every machine and in every run."""
    texts = pc.fill_null(names, "").cast(pa.large_binary())
    _, offsets, data = texts.buffers()
    begin = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1].copy()
    bytes_ = np.frombuffer(data, np.uint8).copy() if data is not None else np.empty(0, np.uint8)
    return _hashed(begin, bytes_, np.asarray(pc.is_null(names)).copy(), width)


def warm_up() -> None:
    """Compile what this host has not yet."""
    chunk = chunk_of(np.array([0, 1]), pa.array(["a"]), np.array([1, -1]))
    for operator in (HeavyHitters(1, DEPTH), Balance()):
        operator.run(chunk, operator.beginning())


@allocating
def _renumbered(codes: Any, count: int) -> Any:
    """Codes in the order in which they first come, and the old code of each."""
    new = np.full(count, -1, np.int64)
    order = np.empty(count, np.int64)
    items = np.empty(codes.size, np.int64)
    seen = 0
    for i in range(codes.size):
        code = codes[i]
        if new[code] < 0:
            new[code] = seen
            order[seen] = code
            seen += 1
        items[i] = new[code]
    return items, order[:seen].copy()


@allocating
def _hashed(begin: Any, data: Any, is_null: Any, width: int) -> Any:
    """FNV-1a over the bytes of a name, then a mix (splitmix64) for each row."""
    places = np.empty((begin.size - 1, DEPTH), np.int64)
    for k in range(begin.size - 1):
        h = _FNV_OFFSET
        for i in range(begin[k], begin[k + 1]):
            h = (h ^ np.uint64(data[i])) * _FNV_PRIME
        if is_null[k]:
            h = ~h
        for row in range(DEPTH):
            z = h + np.uint64(row + 1) * _GOLDEN
            z = (z ^ (z >> np.uint64(30))) * _MIX_1
            z = (z ^ (z >> np.uint64(27))) * _MIX_2
            z ^= z >> np.uint64(31)
            places[k, row] = row * width + np.int64(z % np.uint64(width))
    return places


@compiled
def _count(items: Any, places: Any, start: Any, threshold: int, added: Any, low: Any, high: Any, found: Any) -> None:
    """Below the threshold, one cell that says so is enough; from it on, all have to. So is it with who was found."""
    told = start.size // 2
    for i in range(items.size):
        k = items[i]
        least, where = HIGHEST, 0
        for row in range(DEPTH):
            c = places[k, row]
            added[c] += 1
            if start[c] + added[c] < least:
                least, where = start[c] + added[c], c
        if least < threshold:
            high[where] = min(high[where], threshold - 1 - added[where])
            continue
        least, where = HIGHEST, 0
        for row in range(DEPTH):
            c = places[k, row]
            low[c] = max(low[c], threshold - added[c])
            if start[told + c] + added[told + c] < least:
                least, where = start[told + c] + added[told + c], told + c
        if least > 0:
            for row in range(DEPTH):
                c = told + places[k, row]
                low[c] = max(low[c], 1 - added[c])
            continue
        high[where] = min(high[where], -added[where])
        found[i] = True
        for row in range(DEPTH):
            added[told + places[k, row]] += 1


@compiled
def _move(items: Any, amounts: Any, start: Any, added: Any, low: Any, high: Any, declined: Any) -> None:
    for i in range(items.size):
        k, amount = items[i], amounts[i]
        if amount < 0:
            needed = -amount - added[k]  # of what was there before the chunk
            if start[k] < needed:
                high[k] = min(high[k], needed - 1)
                declined[i] = True
                continue
            low[k] = max(low[k], needed)
        added[k] += amount
