"""The output of operators in `complex_events`: where each version stands, and its complex events as somebody else's input.

Every commit carries, besides its step, how far the log was known and the numbers that come next: so the place of an
operator does not depend on its savepoints, which may be damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from schemas import complex_events
from spark_jobs.cep.order import NO_INSTANTS, Instant, Instants
from spark_jobs.cep.sequencer import Seed
from spark_jobs.errors import CommitDamaged
from spark_jobs.lake.commit import claim
from spark_jobs.lake.scan import number_range, read_events
from spark_jobs.lake.seal import CHECKED
from spark_jobs.lake.tables import Lake

_NUMBERS: tuple[str, ...] = ("log_sn", "watermark", "seed_x", "seed_ordinal")
# Which savepoint a commit names; commits of earlier releases do not, and mean that of their own batch.
_SAVED: tuple[str, ...] = ("saved", "saved_by")
_CHECK = "check"


class Named(NamedTuple):
    """A savepoint as a commit names it: its batch, and the attempt that wrote it. Batch 0 is the beginning."""

    batch: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class Committed:
    """What the last commit of an operator version says."""

    batch: int
    attempt: int
    at: Instant
    seed: Seed
    savepoint: Named | None = None  # the last one, where that is older; None: the batch has its own


@dataclass(frozen=True)
class OutputFile:
    """One Parquet file of complex events, and the ordinals in it."""

    path: str
    first_sn: int
    last_sn: int


@dataclass(frozen=True)
class Output:
    """The complex events of one operator version, in one version of the table."""

    operator: str
    version: int
    committed: Committed
    trimmed_sn: int  # up to this ordinal, only what some consumer needs is left
    files: tuple[OutputFile, ...]
    schema: pa.Schema
    final: int | None = None  # of events in order of time: up to when nothing will be taken back

    @property
    def last(self) -> int:
        """The last ordinal."""
        return self.committed.seed.ordinal - 1

    def instants(self, after: int) -> Instants:
        """When the complex events after ordinal `after` were decided."""
        files = [asdict(file) for file in self.files if file.last_sn > after]
        if not files or self.last <= after:
            return NO_INSTANTS
        nothing = np.empty(0, np.int64)
        columns = ["decided_sn"]
        found = read_events(files, self.schema, columns, nothing, after, self.last, in_sn_order=True, number="ordinal")
        return Instants(np.asarray(found["decided_ts"].cast(pa.int64())), np.asarray(found["decided_sn"]))

    def upto(self, at: Instant) -> int:
        """How many complex events were decided by then."""
        return self.trimmed_sn + self.instants(self.trimmed_sn).upto(at)


def app_of(operator: str, version: int) -> str:
    """The name under which an operator version commits."""
    return f"{operator}/{version}"


def numbers_of(
    operator: str, version: int, batch: int, attempt: int, at: Instant, seed: Seed, savepoint: Named
) -> dict[str, int]:
    """What a commit carries besides its step."""
    values = (at.sn, at.ts, seed.x, seed.ordinal, *savepoint)
    numbers = (*values, _check_number((batch, attempt, *values)))
    names = (*_NUMBERS, *_SAVED, _CHECK)
    return {f"{app_of(operator, version)}#{name}": value for name, value in zip(names, numbers, strict=True)}


def _check_number(values: Sequence[int]) -> int:
    """A commit is a line of text in a file: a digit that was changed there would renumber all that follows."""
    return zlib.crc32(" ".join(map(str, values)).encode())


def final_app(operator: str, version: int) -> str:
    """Where commits over events in order of time keep up to when everything is final."""
    return f"{app_of(operator, version)}#final"


def end_app(operator: str, version: int, upstream: str) -> str:
    """Where they keep how far an operator was read: its revisions go on, and what was made of them has to be found again."""
    return f"{app_of(operator, version)}#read:{upstream}"


def trimmed_of(operator: str, version: int) -> str:
    return f"{app_of(operator, version)}#trimmed"


def committed_of(handle: DeltaTable, operator: str, version: int) -> Committed | None:
    """Where an operator version stands in this version of the table; None before its first commit."""
    app = app_of(operator, version)
    place = claim(handle, app)
    if place.step == 0:
        return None
    carried = {name: handle.transaction_version(f"{app}#{name}") for name in (*_NUMBERS, *_SAVED, _CHECK)}
    log_sn, watermark, x, ordinal = (carried[name] or 0 for name in _NUMBERS)
    saved = [number for name in _SAVED if (number := carried[name]) is not None]
    check = carried[_CHECK]
    if check and check != _check_number((place.step, place.attempt, log_sn, watermark, x, ordinal, *saved)):
        raise CommitDamaged(
            f"{app}: the numbers in the commit of batch {place.step} do not fit their checksum: its file in the Delta log of "
            "complex_events was changed. Nothing was published. Restore the file, or detect into a new lake."
        )
    named = Named(*saved) if saved else None
    older = named if named and named.batch < place.step else None
    return Committed(place.step, place.attempt, Instant(watermark, log_sn), Seed(x, ordinal), older)


def open_outputs(lake: Lake, schema: pa.Schema) -> DeltaTable:
    return lake.open("complex_events", schema, complex_events.PARTITION_BY, may_grow=True)


def output_of(lake: Lake, handle: DeltaTable, operator: str, version: int) -> Output:
    paths = [
        f"{lake.path('complex_events')}/{row['path']}"
        for row in pa.table(handle.get_add_actions(flatten=True)).to_pylist()
        if row["partition.operator"] == operator and int(row["partition.version"]) == version
    ]
    files = [OutputFile(path, *number_range(path, "ordinal")) for path in paths]
    return Output(
        operator,
        version,
        committed_of(handle, operator, version) or Committed(0, 0, Instant(), Seed()),
        handle.transaction_version(trimmed_of(operator, version)) or 0,
        tuple(sorted(files, key=lambda file: file.first_sn)),
        pa.schema(handle.schema().to_arrow()),
        handle.transaction_version(final_app(operator, version)),
    )


def output_folder(operator: str, version: int) -> str:
    return f"operator={operator}/version={version}"


def output_name(first: int, last: int, batch: int, attempt: int, index: int) -> str:
    """The name says which ordinals are inside, so that a consumer finds its files without opening any."""
    return f"ce-{first:012}-{last:012}-{batch:08}-{attempt:06}-{index:03}.parquet"


def read_rows(files: Sequence[dict[str, Any]], schema: pa.Schema, first: int, last: int) -> pa.Table:
    """Complex events as they were published, with the ordinals from `first` to `last`."""
    inside = pa.schema([field for field in schema if field.name not in complex_events.PARTITION_BY])
    tables = [pq.read_table(file["path"], schema=inside, partitioning=None, **CHECKED) for file in files]
    rows = pa.concat_tables([inside.empty_table(), *tables])
    return rows.filter((pc.field("ordinal") >= first) & (pc.field("ordinal") <= last))


def shard_files(files: Sequence[OutputFile], after: int, end: int, needed: Any) -> list[dict[str, Any]]:
    """The files with ordinals (after, end], or with some of those needed, which are in order."""
    chosen = []
    for file in files:
        low, high = np.searchsorted(needed, [file.first_sn, file.last_sn + 1])
        if low < high or (file.last_sn > after and file.first_sn <= end):
            chosen.append(asdict(file))
    return chosen
