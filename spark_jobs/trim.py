"""Trimming: what every consumer has acknowledged leaves the table it was read from (seed 000, upstream backup).

A consumer's savepoint is its acknowledgement: it says what was read, and what of that is still needed. Of a queue's events
up to the smallest acknowledgement, only those that some consumer needs are kept. Two savepoints of each consumer count, the
last that was written and the one before it, so that a damaged one can still be made anew. A trim is one commit; files are
deleted later, when nobody can be reading them any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from schemas import complex_events, event_log
from spark_jobs.cep.arrays import Int64s
from spark_jobs.errors import RepriseError
from spark_jobs.graph import Graph
from spark_jobs.lake.aside import Aside
from spark_jobs.lake.commit import add_file
from spark_jobs.lake.history import Attempt, fold
from spark_jobs.lake.outputs import committed_of, output_name, output_of, trimmed_of
from spark_jobs.lake.scan import TRIMMED_SN, LogFile, file_name
from spark_jobs.lake.seal import CHECKED
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.recovery.savepoint import Savepoint
from spark_jobs.recovery.store import SavepointTable
from spark_jobs.staging import write_log_file
from spark_jobs.tasks import write_complex_events
from spark_jobs.versions import LOG_VERSION, Version, registry

# A file is written anew only if that frees at least this share of it; otherwise every trim would copy the whole log.
WORTH_IT = 0.5
NOTHING: Int64s = np.empty(0, np.int64)
# The name under which commits count trims.
_TRIMS = "trim"


@dataclass(frozen=True)
class Acknowledged:
    """What one consumer has acknowledged of a queue: read up to `end`, and of that `needed` is still wanted."""

    consumer: str
    end: int
    needed: Int64s


@dataclass(frozen=True)
class Trimmed:
    """What a trim did to one queue, or would do."""

    queue: str
    upto: int  # everything up to here is acknowledged
    held_by: str  # the consumer that has read least
    events: int  # before
    removed: int
    files: int  # that no table names any more


@dataclass(frozen=True)
class _Queue:
    """A table, or the part of it, that consumers read: how its events are numbered, and how its files are written."""

    name: str
    table: str
    number: str  # the column
    mark: str  # the name under which commits keep how far it was trimmed
    schema: pa.Schema
    partition_by: list[str]
    write: Callable[[pa.Table, str], str]


@dataclass(frozen=True)
class _File:
    path: str
    partition: dict[str, str]
    rename: Callable[[int, int], str]  # the new name, from the first and last number left


def trim(
    pipeline: Pipeline, lake: Lake, attempt: Attempt, *, dry_run: bool = False, without: Sequence[Version] = ()
) -> list[Trimmed]:
    """Trim the event log, and the complex events of operators that the pipeline does not keep.

    `without` are versions that are not waited for, as if they were retired.
    """
    try:
        queues = [name for name in pipeline.order if not pipeline.operators[name].keep and pipeline.consumers(name)]
        done = [_trim_log(pipeline, lake, attempt, dry_run, without)]
        for name in queues:
            for version in registry(lake).living(name):
                done.append(_trim_output(pipeline, lake, attempt, version, dry_run, without))
        return [trimmed for trimmed in done if trimmed is not None]
    finally:
        fold(lake)


def vacuum(lake: Lake, hours: int) -> int:
    """Delete files that were trimmed at least so many hours ago; how many."""
    gone = 0
    for table in ("event_log", "complex_events"):
        if lake.has(table):
            handle = DeltaTable(lake.path(table))
            gone += len(handle.vacuum(retention_hours=hours, enforce_retention_duration=False, dry_run=False))
    return gone


def acknowledged(
    graph: Graph, handle: DeltaTable, queue: str, number: int = LOG_VERSION, without: Sequence[Version] = ()
) -> list[Acknowledged]:
    """What the living consumers of a queue say: also those that the pipeline file does not name any more, those that it names
    and that have not run yet, and those that it names again after others have followed them."""
    known = registry(graph.lake)
    matched = known.matching(graph.pipeline)
    living = [v for name in sorted({v.operator for v in known.versions}) for v in known.living(name)]
    named_again = [version for version in matched.values() if version not in living]
    readers = [v for v in (*living, *named_again) if v.inputs.get(queue) == number and v not in without]
    waiting = [name for name in graph.pipeline.consumers(queue) if name not in matched]
    return [
        *(_acknowledged(graph.lake, handle, version, queue) for version in readers),
        *(Acknowledged(f"{name} (as the file has it, it has not run yet)", 0, NOTHING) for name in waiting),
    ]


def _acknowledged(lake: Lake, handle: DeltaTable, version: Version, queue: str) -> Acknowledged:
    name = f"{version.operator} (version {version.number})"
    committed = committed_of(handle, version.operator, version.number)
    beginning = version.after_sn if queue == EVENT_LOG else 0
    if committed is None:
        return Acknowledged(name, beginning, NOTHING)
    found = SavepointTable(lake, Aside()).find(version.operator, version.number)
    last = found.of(committed)
    if last is None and committed.savepoint is not None:  # the policy did not want one since
        if not committed.savepoint.batch:
            return Acknowledged(name, beginning, NOTHING)
        last = found.named(committed.savepoint)
    if last is None or not last.whole:
        raise RepriseError(
            f"the savepoint of {name}, batch {committed.batch}, is damaged, so what it still needs is not known. Nothing was "
            "trimmed. Run 'reprise detect', which makes it anew, and trim again."
        )
    older = [s.savepoint for s in found.before(committed) if s.whole and s.savepoint.batch < last.savepoint.batch][:1]
    counted: list[Savepoint] = [last.savepoint, *older]
    edges = [next(k for k, edge in enumerate(s.edges) if edge.name == queue) for s in counted]
    needed = [s.residuals[edge].numbers for s, edge in zip(counted, edges, strict=True)]
    return Acknowledged(
        name, min(s.edges[edge].end for s, edge in zip(counted, edges, strict=True)), np.unique(np.concatenate(needed))
    )


def _trim_log(pipeline: Pipeline, lake: Lake, attempt: Attempt, dry_run: bool, without: Sequence[Version]) -> Trimmed | None:
    graph = Graph(pipeline, lake)
    queue = _Queue(EVENT_LOG, "event_log", "sn", TRIMMED_SN, pipeline.source.schema, event_log.PARTITION_BY, write_log_file)

    def files() -> tuple[DeltaTable, list[_File], list[Acknowledged]]:
        log = graph.open_log()
        found = acknowledged(graph, graph.open_outputs(), EVENT_LOG, without=without)
        listed = [_File(f.path, {"bucket": str(f.bucket)}, partial(_log_name, f, attempt.number)) for f in log.files]
        return log.handle, listed, found

    return _trimmed(lake, queue, files, attempt, dry_run)


def _trim_output(
    pipeline: Pipeline, lake: Lake, attempt: Attempt, version: Version, dry_run: bool, without: Sequence[Version]
) -> Trimmed | None:
    graph, operator, number = Graph(pipeline, lake), version.operator, version.number
    schema, partition = pipeline.output_schema, {"operator": operator, "version": str(number)}

    def write(table: pa.Table, path: str) -> str:
        return write_complex_events(path, table, schema)

    def files() -> tuple[DeltaTable, list[_File], list[Acknowledged]]:
        handle = graph.open_outputs()
        output = output_of(lake, handle, operator, number)
        listed = [_File(f.path, partition, partial(_output_name, attempt.number, k)) for k, f in enumerate(output.files)]
        return handle, listed, acknowledged(graph, handle, operator, number, without)

    queue = _Queue(
        operator, "complex_events", "ordinal", trimmed_of(operator, number), schema, complex_events.PARTITION_BY, write
    )
    return _trimmed(lake, queue, files, attempt, dry_run)


def _log_name(file: LogFile, attempt: int, _first: int, _last: int) -> str:
    """It says which SNs were numbered together, and goes on saying so when some of them are gone."""
    return file_name(file.first_sn, file.last_sn, attempt)


def _output_name(attempt: int, index: int, first: int, last: int) -> str:
    return output_name(first, last, 0, attempt, index)


def _trimmed(
    lake: Lake,
    queue: _Queue,
    files: Callable[[], tuple[DeltaTable, list[_File], list[Acknowledged]]],
    attempt: Attempt,
    dry_run: bool,
) -> Trimmed | None:
    """Replace the files in one commit. If somebody else commits meanwhile, everything is looked at anew."""
    while True:
        handle, listed, found = files()
        if not found or not listed:
            return None
        least = min(found, key=lambda a: a.end)
        # The event at the mark tells when it was, which whoever begins after it has to know.
        needed = np.unique(np.concatenate([*(a.needed for a in found), [least.end]]))
        actions: list[AddAction | RemoveAction] = []
        written: list[str] = []
        events = removed = 0
        for file in listed:
            numbers = _numbers(file.path, queue.number)
            stay = _left(numbers, least.end, needed)
            events += numbers.size
            if numbers.size - stay.size < max(1, WORTH_IT * numbers.size):
                continue
            removed += numbers.size - stay.size
            actions.append(_remove(lake, queue, file))
            if stay.size and not dry_run:
                name = f"{Path(file.path).parent}/{file.rename(int(numbers[stay[0]]), int(numbers[stay[-1]]))}"
                name = queue.write(_rows(file.path, stay), name)
                written.append(name)
                actions.append(add_file(lake.path(queue.table), _inside(lake, queue, name), stay.size, **file.partition))
        gone = sum(isinstance(action, RemoveAction) for action in actions)
        done = Trimmed(queue.name, least.end, least.consumer, events, removed, gone)
        if dry_run or not gone or _committed(handle, queue, actions, least.end, attempt):
            if gone and not dry_run:
                attempt.record("commit", f"trim {queue.name}", **asdict(done))
            return done
        for name in written:
            Path(name).unlink(missing_ok=True)


def _committed(handle: DeltaTable, queue: _Queue, actions: list[AddAction | RemoveAction], upto: int, attempt: Attempt) -> bool:
    number = (handle.transaction_version(_TRIMS) or 0) + 1
    attempt.phase("trim.written", number)
    transactions = [Transaction(queue.mark, upto), Transaction(_TRIMS, number)]
    metadata = {"reprise.trim": queue.name, "reprise.attempt": str(attempt.number)}
    properties = CommitProperties(custom_metadata=metadata, app_transactions=transactions, max_commit_retries=0)
    try:
        handle.create_write_transaction(actions, "append", queue.schema, queue.partition_by, commit_properties=properties)
    except CommitFailedError:
        return False
    attempt.phase("trim.committed", number)
    return True


def _remove(lake: Lake, queue: _Queue, file: _File) -> RemoveAction:
    size = Path(file.path).stat().st_size
    values: dict[str, str | None] = {**file.partition}
    return RemoveAction(_inside(lake, queue, file.path), True, int(time.time() * 1000), size, values)


def _inside(lake: Lake, queue: _Queue, path: str) -> str:
    return str(Path(path).relative_to(lake.path(queue.table)))


def _left(numbers: Int64s, upto: int, needed: Int64s) -> Int64s:
    """The places of the events that stay: those after the mark, and those that somebody needs."""
    place = np.minimum(np.searchsorted(needed, numbers), needed.size - 1)
    return np.flatnonzero((numbers > upto) | (needed[place] == numbers))


def _numbers(path: str, column: str) -> Int64s:
    return np.asarray(pq.read_table(path, columns=[column], partitioning=None, **CHECKED)[column])


def _rows(path: str, places: Int64s) -> pa.Table:
    with pq.ParquetFile(path, read_dictionary=["key"], **CHECKED) as file:
        return file.read().take(pa.array(places))
