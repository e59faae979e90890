"""Reading the event log: Spark schedules, Arrow reads. A task opens its own bucket files and nothing else.

A shard is a set of whole buckets, never a split of one: cutting a file by size would cut keys across tasks
and lose matches without any error (FACTS.md, the split trap). Files are SN-ordered, so the rows of a batch are
found by row-group statistics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from schemas import event_log
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.kernel import rows_by_number
from spark_jobs.errors import TrimmedEventNeeded
from spark_jobs.lake.seal import CHECKED
from spark_jobs.lake.tables import Lake

# The names under which event_log's commits keep the stream time and the SN they reach, up to which SN no event had come late,
# and up to where it was trimmed.
STREAM_TS = "ingest#stream_ts"
LAST_SN = "ingest#last_sn"
ORDERED_SN = "ingest#ordered_sn"
TRIMMED_SN = "trim#sn"


@dataclass(frozen=True)
class LogFile:
    """One Parquet file of the event log, and the SNs that its ingest numbered in all buckets together."""

    path: str
    bucket: int
    first_sn: int
    last_sn: int


@dataclass(frozen=True)
class EventLog:
    """The files of one version of the event log, and the handle that shows this version and no later one."""

    files: tuple[LogFile, ...]
    schema: pa.Schema
    handle: DeltaTable

    @property
    def last_sn(self) -> int:
        """Not from the files: all of them may have been trimmed, and no number is ever given twice."""
        return self.handle.transaction_version(LAST_SN) or 0

    @property
    def ordered_sn(self) -> int:
        """Up to here, and maybe further, every event came in its order of time. Logs of earlier releases do not say."""
        return self.handle.transaction_version(ORDERED_SN) or 0

    @property
    def trimmed_sn(self) -> int:
        """Up to here, only events that some consumer needs are left."""
        return self.handle.transaction_version(TRIMMED_SN) or 0

    def shard_files(self, shard: int, shards: int, partition_by: str | None, upto: int) -> list[dict[str, Any]]:
        """What a shard has to look at. A key of its own other than the bucket key needs all files."""
        return [
            asdict(file)
            for file in self.files
            if file.first_sn <= upto and (partition_by != "key" or file.bucket % shards == shard)
        ]

    def stream_ts_at(self, sn: int) -> int:
        """The stream time that the log had reached with this SN, in microseconds."""
        at_the_end = self.handle.transaction_version(STREAM_TS) if sn == self.last_sn else None
        return int(self.stream_times(np.array([sn]))[0]) if at_the_end is None else at_the_end

    def stream_times(self, sns: Int64s) -> Int64s:
        """The stream time at each of some SNs, which are in order. Only row groups that may hold one are read."""
        files = [asdict(file) for file in self.files if any_between(sns, file.first_sn, file.last_sn)]
        found = read_events(files, self.schema, (), sns, int(sns[-1]), int(sns[-1]), in_sn_order=True)
        if found.num_rows != sns.size:
            raise TrimmedEventNeeded(
                f"of {sns.size:,} events between {sns[0]:,} and {sns[-1]:,}, whose times are needed, {found.num_rows:,} are in "
                f"the event log, which was trimmed up to {self.trimmed_sn:,}. Nothing was changed."
            )
        return np.asarray(found["stream_ts"].cast(pa.int64()))


def open_log(lake: Lake, schema: pa.Schema) -> EventLog:
    handle = lake.open("event_log", schema, event_log.PARTITION_BY)
    actions = pa.table(handle.get_add_actions(flatten=True)).to_pylist()
    files = []
    for row in actions:
        path = f"{lake.path('event_log')}/{row['path']}"
        files.append(LogFile(path, int(row["partition.bucket"]), *number_range(path, "sn")))
    return EventLog(tuple(sorted(files, key=lambda file: (file.first_sn, file.bucket))), schema, handle)


def file_name(first_sn: int, last_sn: int, attempt: int) -> str:
    """The name says which SNs its ingest numbered, so that a batch finds its files without opening any."""
    return f"sn-{first_sn:015}-{last_sn:015}-{attempt:06}.parquet"


def number_range(path: str, number: str) -> tuple[int, int]:
    """The numbers that a file's name says are inside; somebody else's file, say of a compaction, has to be opened for them."""
    named = re.fullmatch(r"[a-z]+-(\d{12,})-(\d{12,})-[\d-]+(\.[0-9a-f]{8})?\.parquet", path.rsplit("/", 1)[-1])
    if named:
        return int(named[1]), int(named[2])
    ranges = row_group_ranges(path, number)
    return min((low for low, _ in ranges), default=0), max((high for _, high in ranges), default=0)


def read_events(
    files: Sequence[dict[str, Any]],
    schema: pa.Schema,
    columns: Sequence[str],
    residual: Int64s,
    after_sn: int,
    end_sn: int,
    *,
    in_sn_order: bool,
    number: str = "sn",
) -> pa.Table:
    """The residual and the new events (after_sn, end_sn] of some files, text as dictionary codes.

    Every key is in SN order, because a key lives in one bucket and later files hold later events;
    `in_sn_order` asks for that order across keys too. `number` is the column that says so, with the time in its SN's place.
    """
    names = list(dict.fromkeys([number, "stream_ts" if number == "sn" else "decided_ts", *columns]))
    coded = [name for name in names[2:] if not pa.types.is_list(schema.field(name).type)]
    parts = []
    for file in files:
        if _holds(file["first_sn"], file["last_sn"], residual, after_sn, end_sn):  # a log of a year is not opened for a batch
            parts += _read_file(file["path"], names, coded, residual, after_sn, end_sn)
    if not parts:
        return pa.schema([_as_read(schema.field(name), name in coded) for name in names]).empty_table()
    table = pa.concat_tables(parts, promote_options="permissive")
    if in_sn_order:
        table = table.unify_dictionaries().take(pa.array(_order(np.asarray(table[number]))))
    return table


def _order(numbers: Int64s) -> Int64s:
    """The order that sorts numbers of which none comes twice. Where they have few gaps, as those of a batch have none, each
    one's place is known without comparing it with others."""
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (1, 0)
    if high - low >= 2 * numbers.size:
        return np.argsort(numbers, kind="stable")
    rows: Int64s = rows_by_number(numbers, low, high)
    return rows if rows.size == numbers.size else rows[rows >= 0]


def _as_read(field: pa.Field, coded: bool) -> pa.Field:
    """Nothing has the columns of something: somebody may put both together."""
    text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    return field.with_type(pa.dictionary(pa.int32(), field.type)) if coded and text else field


def of_shard(events: pa.Table, partition_by: str, shard: int, shards: int) -> pa.Table:
    """Only the events of the shard's keys, for a key that the log is not bucketed by."""
    column = events.unify_dictionaries().combine_chunks()[partition_by].combine_chunks()
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    place = np.append(buckets(coded.dictionary.cast(pa.string()), shards), 0)  # NULL belongs to shard 0
    codes = np.asarray(pc.fill_null(coded.indices.cast(pa.int64()), len(coded.dictionary)))
    return events.filter(pa.array(place[codes] == shard))


def buckets(keys: pa.Array, count: int) -> Any:
    """The bucket of each key: a stable hash, the same on every machine and in every run."""
    import pandas as pd  # costs more than a second to load, and only ingest and foreign keys need it

    hashes = pd.util.hash_array(np.asarray(keys.to_numpy(zero_copy_only=False), dtype=object), categorize=False)
    return (hashes % np.uint64(count)).astype(np.int32)


def _read_file(path: str, names: list[str], coded: list[str], residual: Int64s, after_sn: int, end_sn: int) -> list[pa.Table]:
    with pq.ParquetFile(path, read_dictionary=coded, memory_map=True, **CHECKED) as file:
        ranges = row_group_ranges(path, names[0])
        wanted = [group for group, (low, high) in enumerate(ranges) if _holds(low, high, residual, after_sn, end_sn)]
        if not wanted:
            return []
        table = file.read_row_groups(wanted, columns=names, use_threads=False)
    sn = np.asarray(table[names[0]])
    # The new events are one stretch at the end; before it, only the residual counts.
    new_from, new_to = np.searchsorted(sn, [after_sn, end_sn], side="right")
    parts = []
    if new_from and residual.size:
        parts.append(_of_residual(table.slice(0, new_from), sn[:new_from], residual))
    parts.append(table.slice(new_from, new_to - new_from))
    return [part for part in parts if part.num_rows]


def _holds(low: int, high: int, residual: Int64s, after_sn: int, end_sn: int) -> bool:
    """May something be wanted of what has the numbers from low to high?"""
    return (high > after_sn and low <= end_sn) or any_between(residual, low, min(high, after_sn))


def _of_residual(table: pa.Table, sn: Int64s, residual: Int64s) -> pa.Table:
    """The rows whose numbers are in the residual, both in order. One without gaps, the base method's, is not copied."""
    if residual[-1] - residual[0] == residual.size - 1:
        begin, end = np.searchsorted(sn, [residual[0], residual[-1] + 1])
        return table.slice(begin, end - begin)
    # Few numbers are looked up in many: the other way round takes ten times as long.
    place = np.searchsorted(sn, residual)
    inside = place[: np.searchsorted(place, sn.size)]
    return table.take(pa.array(inside[sn[inside] == residual[: inside.size]]))


@lru_cache(maxsize=4096)  # files are immutable, and every batch asks again
def row_group_ranges(path: str, number: str) -> tuple[tuple[int, int], ...]:
    metadata = pq.read_metadata(path)
    column = metadata.schema.names.index(number)
    groups = (metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups))
    return tuple((int(stats.min), int(stats.max)) for stats in groups)


def read_ahead(files: Sequence[dict[str, Any]], columns: Sequence[str], after_sn: int, end_sn: int) -> None:
    """Let the kernel fetch what a batch will read, and go on without waiting: this one is committed meanwhile."""
    names = frozenset(("sn", "stream_ts", *columns))
    for file in files:
        with suppress(FileNotFoundError):  # trimmed meanwhile; who reads it will know
            ranges = row_group_ranges(file["path"], "sn")
            groups = [group for group, (low, high) in enumerate(ranges) if high > after_sn and low <= end_sn]
            if groups:
                _fetch(file["path"], names, groups)


def _fetch(path: str, names: frozenset[str], groups: list[int]) -> None:
    chunks = _chunks(path, names)
    file = os.open(path, os.O_RDONLY)
    try:
        for begin, length in (chunk for group in groups for chunk in chunks[group]):
            os.posix_fadvise(file, begin, length, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)


@lru_cache(maxsize=4096)
def _chunks(path: str, names: frozenset[str]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Where some columns lie in a file: of each row group, the offsets and lengths."""
    metadata = pq.read_metadata(path)
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    columns = ([group.column(index) for index in range(metadata.num_columns)] for group in groups)
    return tuple(
        tuple(
            (column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size)
            for column in group
            if column.path_in_schema.partition(".")[0] in names
        )
        for group in columns
    )


def any_between(residual: Int64s, low: int, high: int) -> bool:
    first, last = np.searchsorted(residual, [low, high + 1])
    return bool(first < last)
