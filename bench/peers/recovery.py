"""A kill at half of a log: what is read again, how long it takes, and what had to be stored for it.

Flink runs abcde with a checkpoint every second, Reprise in micro-batches that it commits one by one; both are killed with
SIGKILL when half of the log has been read, and start again. What counts is the same for both: the events that had been read
before and are read again, those of the batch at work included; and the time from the moment a cluster (Flink's, or Spark's)
is there until everything has been read again that had been read before. Structured Streaming is asked for the size of its
checkpoint only, and so is Flink with RocksDB, where a tenth of the log takes it as long as half of it on the heap: its state
grows with the log, so that less of it is in its favour.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.bars import Bar
from bench.engine import Shape, detected, make_log
from bench.peers.digest import Digest, digest
from bench.peers.flink import Flink, job_of
from bench.peers.results import REPRISE, STREAMING, bytes_below
from bench.peers.streaming import run_streaming
from bench.peers.workloads import BY_NAME
from spark_jobs.console import say
from spark_jobs.detect import Settings
from spark_jobs.drills.processes import Process, Program, awaited, leftovers
from spark_jobs.errors import RepriseError
from spark_jobs.lake.history import read_history
from spark_jobs.lake.scan import LogFile, open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.runner import InlineRunner

EVENTS, KEYS = 1_000_000, 1_000
CHECKPOINT_MS = 1_000
# About what arrives while the batch before it is committed: ours are small here, as somebody waits for the matches.
BATCH = 5_000
SECONDS = 240.0
# Now and then Flink 2.3 fails by itself after a restore (a NullPointerException in the SharedBuffer of its CEP library).
TRIES = 4
HEAP, ROCKSDB = "hashmap", "rocksdb"
ROCKSDB_EVENTS = EVENTS // 10
WORKLOAD = BY_NAME["abcde, keyed"]


@dataclass(frozen=True)
class Recovery:
    """What one of them did after a kill."""

    who: str
    read: int  # events before the kill
    again: int  # events that were read a second time
    seconds: float  # until it had read as far as before, from when its cluster was there
    whole: float  # the same, from the start of the process
    stored: int  # bytes of what it recovered from
    failed: int = 0  # recoveries before this one that ended with an error of its own

    def as_line(self) -> dict[str, Any]:
        return {"kind": "recovery", **asdict(self)}


def recovery_lines(master: str, folder: Path, flink: Flink) -> list[dict[str, Any]]:
    folder.mkdir()
    lake, pipeline = Lake(folder / "lake"), WORKLOAD.pipeline()
    make_log(pipeline, lake, Shape(EVENTS, KEYS))
    files = open_log(lake, pipeline.source.schema).files
    heap = _flink(flink, files, folder / HEAP).as_line()
    (folder / ROCKSDB).mkdir()
    rocksdb = _flink_until(flink, files, ROCKSDB, ROCKSDB_EVENTS, folder / ROCKSDB)
    ((_, streaming),) = run_streaming([(WORKLOAD, EVENTS // 2)], files, folder / "streaming")
    stored = {f"Flink, {ROCKSDB}, a tenth of the log": rocksdb.stored, STREAMING: streaming}
    sizes = [{"kind": "checkpoint", "who": who, "stored": size} for who, size in stored.items()]
    return [heap, _reprise(master, lake, folder), *sizes]


def recovery_bars(lines: Sequence[dict[str, Any]]) -> list[Bar]:
    killed = {line["who"]: line for line in lines if line["kind"] == "recovery"}
    heap, ours = killed[f"Flink, {HEAP}"], killed[REPRISE]
    rocksdb, streaming = (line for line in lines if line["kind"] == "checkpoint")
    return [
        Bar("after a kill at half: the same matches as without (1: equal)", float(ours["same"]), 1),
        Bar("after a kill at half: events read again, against Flink's", ours["again"] / heap["again"], 0.1, False, "%"),
        Bar(".. by Reprise", ours["again"]),
        Bar(".. by Flink", heap["again"]),
        Bar("after a kill at half: time to catch up, against Flink's", ours["seconds"] / heap["seconds"], 0.1, False, "%"),
        Bar(".. Reprise", ours["seconds"], unit="s"),
        Bar(".. Flink", heap["seconds"], unit="s"),
        Bar(".. Reprise, from the start of the process", ours["whole"], unit="s"),
        Bar(".. Flink, from the start of the process", heap["whole"], unit="s"),
        Bar("savepoint, against Flink's checkpoint on the heap", ours["stored"] / heap["stored"], 0.02, False, "%"),
        Bar("savepoint, against Flink's checkpoint in RocksDB", ours["stored"] / rocksdb["stored"], 0.02, False, "%"),
        Bar("savepoint, against Structured Streaming's checkpoint", ours["stored"] / streaming["stored"], 0.02, False, "%"),
        Bar(".. bytes of the savepoint", ours["stored"], unit="bytes"),
    ]


# Flink


class Said(NamedTuple):
    """A line of FlinkPeer.java."""

    at: float
    what: str
    numbers: tuple[int, ...]


class FlinkFailedError(RepriseError):
    """Flink ended by itself before it had caught up."""


class Killed(NamedTuple):
    """A job of Flink's that was killed on its way: what it had read by source task, and what it left to recover from."""

    job: dict[str, Any]
    read: dict[int, int]
    last: Path
    stored: int


def _flink(flink: Flink, files: Sequence[LogFile], folder: Path) -> Recovery:
    folder.mkdir()
    for tried in range(TRIES):
        try:
            return replace(_flink_killed(flink, files, folder / str(tried)), failed=tried)
        except FlinkFailedError as error:
            say(f"Flink: {error}")
    raise RepriseError(f"Flink: none of {TRIES} recoveries came to its end")


def _flink_until(flink: Flink, files: Sequence[LogFile], backend: str, events: int, folder: Path) -> Killed:
    saved = folder / "checkpoints"
    checkpoints = {"every_ms": CHECKPOINT_MS, "folder": saved.as_uri(), "backend": backend}
    job = {**job_of(WORKLOAD, files), "events": EVENTS, "checkpoints": checkpoints}
    with _started(flink.command(job, folder), folder) as process:
        read = _until(process, events)
    last = max(saved.glob("*/chk-*/_metadata"), key=lambda file: int(file.parent.name.removeprefix("chk-"))).parent
    return Killed(job, read, last, bytes_below(last) + bytes_below(last.parent / "shared"))


def _flink_killed(flink: Flink, files: Sequence[LogFile], folder: Path) -> Recovery:
    folder.mkdir()
    job, read, last, stored = _flink_until(flink, files, HEAP, EVENTS // 2, folder)
    job["checkpoints"] = {**job["checkpoints"], "from": last.as_uri()}
    began = time.time()
    with _started(flink.command(job, folder), folder) as process:
        try:
            again, seconds, end = _caught_up(process, read)
        except FlinkFailedError as error:
            raise FlinkFailedError(f"{error}: {_cause((folder / 'stderr.log').read_text())}") from None
    return Recovery(f"Flink, {HEAP}", sum(read.values()), again, seconds, end - began, stored)


def _cause(log: str) -> str:
    """The last cause in a Java stack trace, and where it was."""
    lines = log.splitlines()
    causes = [place for place, line in enumerate(lines) if line.startswith("Caused by:")]
    return " ".join(line.strip() for line in lines[causes[-1] : causes[-1] + 3]) if causes else log[-1500:]


@contextmanager
def _started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed at the end, whatever happens."""
    with (folder / "stderr.log").open("ab") as log:
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _said(process: subprocess.Popen[str]) -> Iterator[Said]:
    assert process.stdout is not None
    for line in process.stdout:
        at, _, rest = line.partition(" ")
        if at.isdigit():
            what, *numbers = rest.split()
            yield Said(int(at) / 1000, what, tuple(map(int, numbers)))


def _until(process: subprocess.Popen[str], events: int) -> dict[int, int]:
    """Events by source task, when it was killed; what it said until then counts, also what nobody had heard yet."""
    read: dict[int, int] = {}
    for said in _said(process):
        if said.what == "read":
            read[said.numbers[0]] = said.numbers[2]
        if sum(read.values()) >= events:
            process.kill()
    if sum(read.values()) in (0, EVENTS):
        raise RepriseError(f"Flink could not be killed after {events:,} events: it had read {sum(read.values()):,} events.")
    return read


def _caught_up(process: subprocess.Popen[str], read: dict[int, int]) -> tuple[int, float, float]:
    """Events read again, seconds since its cluster was there, and when all were read that had been read before."""
    ready, begun, now = 0.0, dict(read), dict.fromkeys(read, 0)
    for said in _said(process):
        if said.what == "ready":
            ready = said.at
        elif said.what == "from":
            begun[said.numbers[0]] = said.numbers[2]
        elif said.what == "read":
            now[said.numbers[0]] = said.numbers[2]
        if all(now[task] >= read[task] for task in read):
            return sum(read[task] - begun[task] for task in read), said.at - ready, said.at
    raise FlinkFailedError("it ended before it had caught up")


# Reprise


def _reprise(master: str, lake: Lake, folder: Path) -> dict[str, Any]:
    expected = _undisturbed(lake)
    file = folder / "peers.yaml"
    file.write_text(WORKLOAD.text())
    arguments = ["detect", str(file), "--lake", str(lake.root), "--batch-events", str(BATCH), "--master", master]
    with _detecting(arguments, folder) as process:
        _wait(lambda: _reached(lake) > EVENTS // 2, "half of the log")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = _Attempt.last(lake)
    began = time.time()
    with _detecting(arguments, folder) as process:
        if process.wait(SECONDS):
            raise RepriseError(f"the detection after the kill failed: {(folder / 'reprise.log').read_text()[-2000:]}")
    after = _Attempt.last(lake)
    caught_up = after.at("detect.published", before.read)
    batch = (caught_up - after.at("detect.started", before.read)).total_seconds()
    seconds = after.resumed + batch
    again = after.residual + before.read - before.published
    recovery = Recovery(REPRISE, before.read, again, seconds, caught_up.timestamp() - began, before.stored)
    return {**recovery.as_line(), "same": _found(lake) == expected}


def _undisturbed(lake: Lake) -> Digest:
    detected(WORKLOAD.pipeline(), lake, InlineRunner(), Settings(EVENTS))
    found = _found(lake)
    for table in ("complex_events", "savepoints", "versions"):
        shutil.rmtree(lake.path(table))
    return found


def _found(lake: Lake) -> Digest:
    table = lake.read("complex_events", ["y", "sns"])
    return digest(table["y"], table["sns"].combine_chunks(), EVENTS)


@contextmanager
def _detecting(arguments: Sequence[str], folder: Path) -> Iterator[Process]:
    """`reprise detect`, of which nothing is left at the end."""
    process = Program()(arguments, dict(os.environ), folder / "reprise.log")
    try:
        yield process
    finally:
        leftovers(f"peers-{process.pid}", [process.pid])


def _wait(holds: Callable[[], bool], what: str) -> None:
    if not awaited(holds, SECONDS):
        raise RepriseError(f"detection did not come to {what} in {SECONDS:.0f} s")


def _reached(lake: Lake) -> int:
    return max((row["detail"]["end_sn"] for row in _phases(read_history(lake), "detect.started")), default=0)


def _phases(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["kind"], row["name"]) == ("phase", name)]


@dataclass(frozen=True)
class _Attempt:
    """What history says of one attempt."""

    rows: Sequence[dict[str, Any]]

    @classmethod
    def last(cls, lake: Lake) -> _Attempt:
        rows = read_history(lake)
        number = max(row["attempt"] for row in rows)
        return cls([row for row in rows if row["attempt"] == number])

    @property
    def read(self) -> int:
        """Up to which SN, that of a batch at work included."""
        return int(max(row["detail"]["end_sn"] for row in _phases(self.rows, "detect.started")))

    @property
    def published(self) -> int:
        ends = {row["batch"]: row["detail"]["end_sn"] for row in _phases(self.rows, "detect.started")}
        return int(max(ends[row["batch"]] for row in _phases(self.rows, "detect.published")))

    @property
    def stored(self) -> int:
        """Bytes of the last savepoint."""
        return int(_phases(self.rows, "detect.saved")[-1]["detail"]["bytes"])

    @property
    def residual(self) -> int:
        (row,) = (row for row in self.rows if row["kind"] == "replay")
        return int(row["detail"]["events"])

    @property
    def resumed(self) -> float:
        """Seconds until it knew from where to go on; Spark starts meanwhile."""
        (attempt,) = (row for row in self.rows if row["kind"] == "attempt")
        (replay,) = (row for row in self.rows if row["kind"] == "replay")
        return float((replay["at"] - attempt["at"]).total_seconds())

    def at(self, phase: str, sn: int) -> dt.datetime:
        """When the batch that holds an event was in a phase; where it began, of the first batch of all."""
        ends = {row["batch"]: row["detail"]["end_sn"] for row in _phases(self.rows, "detect.started")}
        batch = min(ends) if phase == "detect.started" else min(b for b, end in ends.items() if end >= sn)
        (row,) = (row for row in _phases(self.rows, phase) if row["batch"] == batch)
        at: dt.datetime = row["at"]
        return at
