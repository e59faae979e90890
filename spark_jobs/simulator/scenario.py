"""Scenarios: a pipeline and a small log, the failure-free output, and a memory of what tasks have answered."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_jobs.cep.arrays import Int64s
from spark_jobs.lake.scan import LAST_SN, STREAM_TS, EventLog, LogFile, file_name
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import Task
from spark_jobs.simulator.table import Table
from spark_jobs.versions import LOG_VERSION, Version

SOURCE = """
name: simulated
source:
  columns: {ts: ts, type: type, key: key}
  attributes: {v: int}
  buckets: 3
operators:
"""

PIPELINES = {
    # A sequence per key: the usual case.
    "keyed": """
  keyed: {partition_by: key, pattern: A -> B -> C, define: {A: v > 0, B: type = 'b', C: type = 'c'}, within: 2 min}
""",
    # Windows by count over all keys, shared out among shards by window.
    "count": """
  count: {window: {count: 9, slide: 4}, pattern: A -> B -> A, define: {A: type <> 'd', B: v > A.v}, measures: {of: SUM(A.v)}}
""",
    # Windows by time that overlap, per key, and consume their events: floors.
    "time": """
  time: {partition_by: key, window: {time: 30 s, slide: 10 s}, pattern: A -> B, define: {A: type = 'a', B: type <> 'd'}}
""",
    # PREV needs context, deadlines decide matches, and two operators commit to one table.
    "two": """
  rising: {partition_by: key, pattern: A B+, define: {A: type <> 'd', B: v > PREV(v)}, measures: {top: LAST(B.v)}}
  quiet: {partition_by: key, pattern: A -> !B, define: {A: type = 'a', B: type = 'd'}, within: 15 s}
""",
    # An operator that reads another one.
    "chain": """
  pairs: {partition_by: key, pattern: A -> B, define: {A: v > 1, B: type = 'b'}, measures: {sum: A.v + B.v}}
  more: {from: pairs, window: {count: 4, slide: 2}, pattern: P -> Q, define: {P: sum > 1, Q: sum > P.sum - 3}}
""",
}

Row = tuple[Any, ...]
# What a task is given that names places in scratch folders, or is the same in all of them.
_PLACES = ("pipeline", "out", "closes", "folder")


@dataclass(frozen=True, eq=False)
class Scenario:
    """What is the same for all schedules that are tried on it."""

    name: str
    pipeline: Pipeline
    lake: Lake  # only the files of the log and of complex events are there
    times: tuple[int, ...]
    files: tuple[LogFile, ...]
    _answers: dict[str, str] = field(default_factory=dict, repr=False)
    _rows: dict[str, list[Row]] = field(default_factory=dict, repr=False)

    @property
    def events(self) -> int:
        return len(self.times)

    @cached_property
    def versions(self) -> dict[str, Version]:
        found = {}
        for name in self.pipeline.order:
            inputs = {i: LOG_VERSION if i == EVENT_LOG else 1 for i in self.pipeline.operators[name].inputs}
            found[name] = Version(name, 1, self.pipeline.fingerprint(name), 0, inputs, current=True)
        return found

    def log(self, events: int) -> EventLog:
        """The log as it was when it had so many events."""
        table = Table(self.pipeline.source.schema, numbers={LAST_SN: events, STREAM_TS: self.times[events - 1]})
        return SimulatedLog(self.files, self.pipeline.source.schema, cast(DeltaTable, table.open()), np.array(self.times))

    def matched(self, task: Task, payload: dict[str, Any]) -> dict[str, Any]:
        known = _known(payload)
        if known not in self._answers:
            place = self.lake.root / "matches"
            place.mkdir(exist_ok=True)
            self._answers[known] = json.dumps(task(_wired({**payload, "out": f"{place}/{len(self._answers)}"})))
        answer: dict[str, Any] = json.loads(self._answers[known])
        return answer

    def stamped(self, task: Task, payload: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """The answer, and what it is the answer to."""
        known = _known(payload)
        if known not in self._answers:
            place = hashlib.blake2b(known.encode(), digest_size=8).hexdigest()
            answer = task(_wired({**payload, "folder": f"{payload['folder']}/{place}"}))
            self._answers[known] = json.dumps({**answer, "name": f"{place}/{answer['name']}"})
        answer = json.loads(self._answers[known])
        return answer, known

    def rows(self, path: str) -> list[Row]:
        """The complex events of a file, without the batch: how the log was cut must not show."""
        if path not in self._rows:
            table = pq.read_table(f"{self.lake.path('complex_events')}/{path}", partitioning=None).drop(["batch"])
            stamps = [i for i, f in enumerate(table.schema) if pa.types.is_timestamp(f.type)]
            for index in stamps:
                table = table.set_column(index, table.schema.names[index], table.column(index).cast(pa.int64()))
            self._rows[path] = [_frozen(row) for row in table.to_pylist()]
        return self._rows[path]


@dataclass(frozen=True)
class SimulatedLog(EventLog):
    """The event log, with its times at hand."""

    times: Int64s

    def stream_times(self, sns: Int64s) -> Int64s:
        found: Int64s = self.times[sns - 1]
        return found


def _known(payload: dict[str, Any]) -> str:
    what = {name: value for name, value in payload.items() if name not in _PLACES}
    what["inputs"] = [{**entry, "places": bool(entry["places"])} for entry in payload.get("inputs", ())]
    return json.dumps(what)


def _wired(payload: dict[str, Any]) -> dict[str, Any]:
    """As it arrives at a worker."""
    wired: dict[str, Any] = json.loads(json.dumps(payload))
    return wired


def _frozen(row: dict[str, Any]) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row.values())


@lru_cache(maxsize=8)  # what tasks have answered is kept for the schedules that follow
def scenario(kind: str, number: int) -> Scenario:
    """One of endlessly many small logs for one of the pipelines."""
    random = Random(f"{kind} {number}")  # noqa: S311 - chance that repeats itself
    pipeline = parse_pipeline(SOURCE + PIPELINES[kind], f"{kind}.yaml")
    lake = Lake(tempfile.mkdtemp(prefix="reprise-simulated-"))
    count = random.randint(30, 54)
    events = pa.table(_columns(random, count), schema=pipeline.source.schema)
    files = tuple(_file(lake.root, events, bucket) for bucket in range(pipeline.source.buckets))
    times = tuple(np.asarray(events["stream_ts"].cast(pa.int64())).tolist())
    made = Scenario(f"{kind} {number}", pipeline, lake, times, files)
    weakref.finalize(made, shutil.rmtree, lake.root, ignore_errors=True)
    return made


def _columns(random: Random, count: int) -> dict[str, list[Any]]:
    ts, rows = 1_700_000_000_000_000, []
    for sn in range(1, count + 1):
        ts += random.choice((0, 1, 2, 3, 8)) * 1_000_000
        key = random.randrange(3)
        rows.append((sn, "s", sn, random.choice("abcabcd"), f"k{key}", ts, ts, ts, key, random.randrange(6)))
    names = ("sn", "source", "source_seq", "type", "key", "ts", "arrival_ts", "stream_ts", "bucket", "v")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _file(folder: Path, events: pa.Table, bucket: int) -> LogFile:
    mine = events.filter(pa.array(np.asarray(events["bucket"]) == bucket)).drop(["bucket"])
    path = folder / f"event_log-{bucket}" / file_name(1, events.num_rows, 1)
    path.parent.mkdir()
    pq.write_table(mine, path)
    return LogFile(str(path), bucket, 1, events.num_rows)
