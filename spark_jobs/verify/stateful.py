"""The reference run of operators with shared state: one event after the other, in plain Python.

It is slow and has nothing of the kernels, chunks and transactions that it is held against; only what a sketch's cells are is
said twice. What it keeps to go on later are names and numbers of its own, not the state of a savepoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep.columns import decoded
from spark_jobs.cep.matcher import step_mask
from spark_jobs.cep.operator import Operator
from spark_jobs.pipeline import BalanceSpec, HeavyHittersSpec
from spark_jobs.stateful_tasks import single_events
from spark_jobs.verify.reference import Kept

Key = str | None
_MASK = 2**64 - 1
_DEPTH = 4


def stateful_run(spec: Any, operator: Operator, events: pa.Table, kept: Kept) -> tuple[pa.Table, Kept]:
    """What is found in a stretch of the log, not yet numbered, and what is kept after it."""
    events = events.unify_dictionaries().combine_chunks()
    rows = np.flatnonzero(step_mask(operator, events))
    keys = decoded(events[operator.partition_by]).take(pa.array(rows)).to_pylist()
    if isinstance(spec, BalanceSpec):
        balances = _balances(kept.memory)
        found = list(_overdrawn(balances, keys, decoded(events[spec.amount]).take(pa.array(rows)).to_pylist()))
        memory = pa.table({"name": pa.array(balances, pa.string()), "number": [str(value) for value in balances.values()]})
    else:
        assert isinstance(spec, HeavyHittersSpec)
        counts, told = _sketches(kept.memory, spec.cells)
        found = list(_heavy(counts, told, keys, spec.threshold))
        memory = pa.table({"count": counts, "told": told})
    return single_events(operator, events, rows[np.array(found, np.int64)]), Kept(memory=memory)


def _overdrawn(balances: dict[Key, Decimal], keys: Iterable[Key], amounts: Iterable[Any]) -> Iterator[int]:
    for place, (key, amount) in enumerate(zip(keys, amounts, strict=True)):
        after = balances.get(key, Decimal(0)) + amount
        if amount < 0 and after < 0:
            yield place
        else:
            balances[key] = after


def _balances(memory: pa.Table | None) -> dict[Key, Decimal]:
    if memory is None:
        return {}
    return {name: Decimal(value) for name, value in zip(*(memory[n].to_pylist() for n in ("name", "number")), strict=True)}


def _heavy(counts: list[int], told: list[bool], keys: Iterable[Key], threshold: int) -> Iterator[int]:
    width, cells_of = len(counts) // _DEPTH, dict[Key, list[int]]()
    for place, key in enumerate(keys):
        cells = cells_of.get(key) or cells_of.setdefault(key, _cells(key, width))
        for cell in cells:
            counts[cell] += 1
        if all(counts[cell] >= threshold for cell in cells) and not all(told[cell] for cell in cells):
            yield place
            for cell in cells:
                told[cell] = True


def _sketches(memory: pa.Table | None, cells: int) -> tuple[list[int], list[bool]]:
    if memory is None:
        size = cells // _DEPTH * _DEPTH
        return [0] * size, [False] * size
    return memory["count"].to_pylist(), memory["told"].to_pylist()


def _cells(key: Key, width: int) -> list[int]:
    """The cells of an item, a row of the sketch each: FNV-1a, then splitmix64."""
    h = 0xCBF29CE484222325
    for byte in (key or "").encode():
        h = (h ^ byte) * 0x100000001B3 & _MASK
    h ^= _MASK if key is None else 0
    cells = []
    for row in range(_DEPTH):
        z = (h + (row + 1) * 0x9E3779B97F4A7C15) & _MASK
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        cells.append(row * width + (z ^ (z >> 31)) % width)
    return cells
