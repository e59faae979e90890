"""Checkpoints: the events that a shard's matcher and open windows still hold, with the columns the operator reads (seed 001,
section 4).

They are kept in the memory of the process that matched them, and in a file per shard where a savepoint is written. Who goes
on takes them from there and reads from the log what is new; shards keep and recover each for itself. A savepoint decides what
is needed, a checkpoint only saves reading it: what is lost of one, or does not fit the checksum in its name, is read from the
log as if there had been none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.cep.arrays import Int64s
from spark_jobs.lake.seal import CHECKED, broken, seal, sealed
from spark_jobs.lake.tables import Lake

# What one process remembers: the states of some hundred shards, and little beside what a batch takes.
REMEMBERED_BYTES = 64 << 20

_remembered: OrderedDict[str, pa.Table] = OrderedDict()


@dataclass(frozen=True)
class Restored:
    """What was found of some checkpoints: their events, and what is wrong with those that cannot be used."""

    events: pa.Table | None = None
    lost: tuple[str, ...] = ()


def folder_of(lake: Lake, operator: str, version: int) -> Path:
    return lake.root / "_checkpoints" / f"{operator}-{version}"


def file_of(batch: int, attempt: int, shard: int) -> str:
    """The name before it is sealed; one that is not is only remembered."""
    return f"{batch:08}-{attempt:06}-{shard:03}.parquet"


def keep(path: str, held: pa.Table, *, write: bool) -> str:
    """Keep a shard's events in memory, and in a file if they are to outlive it; the path they are then known by."""
    held = _compact(held)
    if write:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(held, path, write_page_checksum=True)
        path = seal(path)
    _remember(path, held)
    return path


def restored(paths: Sequence[str]) -> Restored:
    """The events of some checkpoints, each once."""
    found: list[pa.Table] = []
    lost: list[str] = []
    for path in paths:
        if path in _remembered:
            found.append(_remembered[path])
        elif sealed(path):
            problem = broken(path)
            if problem:
                lost.append(f"{Path(path).name}: {problem}")
                continue
            found.append(pq.read_table(path, partitioning=None, **CHECKED))
            _remember(path, found[-1])
    return Restored(_each_once(found) if found else None, tuple(lost))


def needed(events: pa.Table, numbers: Int64s) -> pa.Table:
    """The events with some of the numbers."""
    return events.filter(pa.array(np.isin(np.asarray(events["sn"]), numbers)))


def joined(held: pa.Table | None, read: pa.Table, *, in_order: bool) -> pa.Table:
    """What was held and what was read since as one stream. Every key is in order as it is; `in_order` is across keys."""
    parts = [part for part in (held, read) if part is not None and part.num_rows]
    if len(parts) < 2:
        return parts[0] if parts else read
    stream = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
    sn = np.asarray(stream["sn"])
    if not in_order or (np.diff(sn) > 0).all():
        return stream
    return stream.take(pa.array(np.argsort(sn, kind="stable")))


def sweep(folder: Path, batch: int, *named: Iterable[str]) -> None:
    """Delete the files of batches up to one that has happened which no savepoint that counts names.

    Later ones may be a rival's, whose commit is under way.
    """
    stay = set().union(*named)
    for file in folder.glob("*.parquet"):
        if file.name not in stay and int(file.name.partition("-")[0]) <= batch:
            file.unlink(missing_ok=True)


def forget() -> None:
    """Be as a process that has just begun: for tests and benchmarks."""
    _remembered.clear()


def _remember(path: str, held: pa.Table) -> None:
    _remembered[path] = held
    while _remembered and sum(table.nbytes for table in _remembered.values()) > REMEMBERED_BYTES:
        _remembered.popitem(last=False)


def _compact(held: pa.Table) -> pa.Table:
    """Without what it shares with the batch: text is coded by a dictionary of its own words only."""
    columns = [
        column.cast(column.type.value_type).dictionary_encode() if pa.types.is_dictionary(column.type) else column
        for column in held.columns
    ]
    return pa.table(columns, names=held.column_names).unify_dictionaries().combine_chunks()


def _each_once(tables: Sequence[pa.Table]) -> pa.Table:
    """Windows that overlap are held by two shards."""
    if len(tables) == 1:
        return tables[0]
    events = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    _, first = np.unique(np.asarray(events["sn"]), return_index=True)
    return events.take(pa.array(first))
