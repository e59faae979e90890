"""Savepoints as rows of the `savepoints` table: one per shard and input, each with a checksum, written before the batch is
published.

What is read back is trusted only as far as it can be checked: a row that is cut off or changed fails its checksum, a row
that is missing is noticed because every row says how many there are, and the commit says where the savepoint has to stand.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from schemas import savepoints
from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed
from spark_jobs.errors import RepriseError
from spark_jobs.lake.aside import CHECKPOINTED_LATER, Aside
from spark_jobs.lake.commit import add_file, renewed
from spark_jobs.lake.outputs import Committed, Named
from spark_jobs.lake.tables import Lake, file_names
from spark_jobs.recovery.savepoint import Edge, Kept, Savepoint, ShardSavepoint

Row = dict[str, Any]

# The columns that all rows of one savepoint share.
_COMMON = ("operator", "version", "batch", "attempt", "shards", "inputs", "seed_x", "seed_y", "seed_ordinal", "read")
_PLACE = ("log_sn", "watermark")


@dataclass(frozen=True)
class Stored:
    """One savepoint as it was found: whole, or with shards missing. What is there has passed its checks."""

    savepoint: Savepoint
    attempt: int
    shards: int
    missing: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return not self.missing


@dataclass
class Found:
    """The savepoints of one operator version that can be read, the newest first, and what is wrong with the others."""

    stored: list[Stored] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def of(self, committed: Committed) -> Stored | None:
        """The savepoint of a commit's own batch. Any attempt's will do that stands at the same place with the same numbers: a
        batch is a pure function. One that is whole is preferred."""
        same = [s for s in self.stored if _stands_at(s.savepoint, committed)]
        return max(same, key=lambda s: s.whole, default=None)

    def named(self, name: Named) -> Stored | None:
        """The one that a commit names; one that is not whole is as good as none."""
        return next((s for s in self.stored if (s.savepoint.batch, s.attempt) == name and s.whole), None)

    def before(self, committed: Committed) -> list[Stored]:
        """Those of earlier batches. Dead letters may be among them, and may stand further on than the commit."""
        return [s for s in self.stored if s.savepoint.batch < committed.batch and s.savepoint.at <= committed.at]


class Savepoints(Protocol):
    """Where savepoints are kept."""

    def save(self, savepoint: Savepoint, attempt: int) -> None:
        """Write the savepoint of a batch that has not happened yet; without its commit it is a dead letter."""

    def find(self, operator: str, version: int, batch: int | None = None) -> Found:
        """What is there of an operator version, or of one batch of it."""


@dataclass
class SavepointTable:
    """The table `savepoints` of a lake."""

    lake: Lake
    aside: Aside
    _handle: Future[DeltaTable] | None = None  # opened by the first who saves, and brought up to date after each

    def save(self, savepoint: Savepoint, attempt: int) -> None:
        handle = self._handle.result() if self._handle else _opened(self.lake)
        _save(self.lake, handle, savepoint, attempt)
        self._handle = self.aside.do(lambda: self._renewed(handle))

    def _renewed(self, handle: DeltaTable) -> DeltaTable:
        self.aside.checkpoint(renewed(handle))
        return handle

    def find(self, operator: str, version: int, batch: int | None = None) -> Found:
        """A file that cannot be read costs its own rows."""
        return _find(self.lake, operator, version, batch)


def _opened(lake: Lake) -> DeltaTable:
    try:
        return lake.open("savepoints", savepoints.SCHEMA, may_grow=True)
    except DeltaError as error:
        raise RepriseError(
            f"the table 'savepoints' cannot be written: {_first_line(error)}. Nothing was published. Move the folder "
            f"{lake.path('savepoints')} away and start again: what it held is then recomputed from the log."
        ) from error


def _save(lake: Lake, handle: DeltaTable, savepoint: Savepoint, attempt: int) -> None:
    rows = [row for shard in savepoint.shards for row in _rows(savepoint, shard, attempt)]
    name = f"{_prefix(savepoint.operator, savepoint.version, savepoint.batch)}{attempt:06}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, savepoints.SCHEMA), f"{lake.path('savepoints')}/{name}")
    files: list[AddAction | RemoveAction] = [add_file(lake.path("savepoints"), name, len(rows))]
    handle.create_write_transaction(files, "append", savepoints.SCHEMA, [], post_commithook_properties=CHECKPOINTED_LATER)


def _prefix(operator: str, version: int, batch: int | None = None) -> str:
    """The name of a file says whose savepoint it is, so that finding one of many does not mean opening all."""
    return f"{operator}-{version}-" + (f"{batch:08}-" if batch is not None else "")


def _find(lake: Lake, operator: str, version: int, batch: int | None) -> Found:
    found = Found()
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in _readable_rows(lake, _prefix(operator, version, batch), found.problems):
        place = f"batch {row['batch']}, attempt {row['attempt']}, shard {row['shard']}"
        if row["checksum"] != checksum(row):
            found.problems.append(f"{place}: the row was changed or cut off (its checksum does not fit)")
        else:
            groups[row["batch"], row["attempt"]].append(row)
    for (number, attempt), rows in sorted(groups.items(), reverse=True):
        stored = _stored(rows, attempt)
        found.stored.append(stored)
        if stored.missing:
            shards = ", ".join(map(str, stored.missing))
            found.problems.append(f"batch {number}, attempt {attempt}: no usable row of shard {shards} of {stored.shards}")
    return found


def all_rows(lake: Lake) -> list[Row]:
    """Every row that can be read, for people."""
    order = ("attempt", "operator", "version", "batch", "shard", "place")  # the newest last
    return sorted(_readable_rows(lake, "", []), key=lambda row: tuple(row[name] for name in order))


def _stands_at(savepoint: Savepoint, committed: Committed) -> bool:
    return (savepoint.batch, savepoint.at, savepoint.seed) == (committed.batch, committed.at, committed.seed)


def _readable_rows(lake: Lake, prefix: str, problems: list[str]) -> Iterable[Row]:
    if not lake.has("savepoints"):
        problems.append("the table 'savepoints' is missing")
        return
    try:
        names = file_names(DeltaTable(lake.path("savepoints")))
    except (DeltaError, OSError) as error:
        problems.append(f"the table 'savepoints' cannot be opened: {_first_line(error)}")
        return
    for name in names:
        if not name.startswith(prefix):
            continue
        try:
            rows = pq.read_table(f"{lake.path('savepoints')}/{name}", schema=savepoints.SCHEMA, partitioning=None).to_pylist()
        except (pa.ArrowException, OSError) as error:
            problems.append(f"{name} cannot be read: {_first_line(error)}")
            continue
        yield from rows


def _stored(rows: list[Row], attempt: int) -> Stored:
    """Rows of one savepoint, put together; all shards' rows say the same of what they share."""
    first = rows[0]
    by_shard: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if all(row[name] == first[name] for name in (*_COMMON, *_PLACE)):
            by_shard[row["shard"]][row["input"]] = row
    whole = {shard: inputs for shard, inputs in by_shard.items() if len(inputs) == first["inputs"]}
    names = _input_order(next(iter(whole.values()), {}))
    some = next(iter(whole.values()), {})
    savepoint = Savepoint(
        operator=first["operator"],
        version=first["version"],
        batch=first["batch"],
        seed=Seed(first["seed_x"], first["seed_ordinal"]),
        seed_y=first["seed_y"],
        at=Instant(first["watermark"], first["log_sn"]),
        read=first["read"],
        edges=tuple(Edge(name, some[name]["start_sn"], some[name]["end_sn"]) for name in names),
        shards=tuple(_shard(whole[shard], names) for shard in sorted(whole)),
        ordering=first["ordering"] or "",
    )
    missing = tuple(shard for shard in range(first["shards"]) if shard not in whole)
    return Stored(savepoint, attempt, first["shards"], missing)


def _input_order(inputs: dict[str, Row]) -> list[str]:
    """The order of the inputs decides ties, so every row says its place in it."""
    return sorted(inputs, key=lambda name: int(inputs[name]["place"]))


def _shard(inputs: dict[str, Row], names: list[str]) -> ShardSavepoint:
    rows = [inputs[name] for name in names]
    kept = tuple(Kept(row["trim_sn"], row["skip"], row["context"], row["places"]) for row in rows)
    first = rows[0]
    states, checkpoint = first["states"] or b"", first["checkpoint"] or ""
    return ShardSavepoint(first["shard"], first["shards"], kept, first["floors"], states, checkpoint)


def _rows(savepoint: Savepoint, shard: ShardSavepoint, attempt: int) -> list[Row]:
    rows = []
    for place, (edge, kept) in enumerate(zip(savepoint.edges, shard.kept, strict=True)):
        floors = shard.floors if place == 0 else b""
        row: Row = {
            "operator": savepoint.operator,
            "version": savepoint.version,
            "batch": savepoint.batch,
            "attempt": attempt,
            "shard": shard.shard,
            "shards": shard.shards,
            "input": edge.name,
            "place": place,
            "inputs": len(savepoint.edges),
            "seed_x": savepoint.seed.x,
            "seed_y": savepoint.seed_y,
            "seed_ordinal": savepoint.seed.ordinal,
            "trim_sn": kept.trim_sn,
            "skip": kept.skip,
            "context": kept.context,
            "places": kept.places,
            "floors": floors,
            "start_sn": edge.start,
            "end_sn": edge.end,
            "read": savepoint.read,
            "log_sn": savepoint.at.sn,
            "watermark": savepoint.at.ts,
            "ordering": savepoint.ordering or None,
            "states": (shard.states or None) if place == 0 else None,
            "checkpoint": (shard.checkpoint or None) if place == 0 else None,
            "bytes": kept.bytes + len(floors) + (len(shard.states) if place == 0 else 0),
        }
        rows.append({**row, "checksum": checksum(row)})
    return rows


def checksum(row: Row) -> int:
    """Of all columns but itself, the same on every machine; of those that older tables do not have, where there is a value."""
    values = [(name, row[name]) for name in savepoints.SCHEMA.names if name != "checksum" and not _added_later(name, row)]
    text = json.dumps([[name, base64.b64encode(v).decode() if isinstance(v, bytes) else v] for name, v in values])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _added_later(name: str, row: Row) -> bool:
    return name in ("ordering", "states", "checkpoint") and row[name] is None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
