"""Verification at scale: the five properties on millions of complex events, what they take in time and memory, and how long it
takes to verify only what was published since the last valid verdict.

A log of 10,000 keys in which every third or fourth event completes a match, detected in batches; then `verify` through Spark,
with its reference run and its suites: everything at first, then a twentieth more. Memory is what the Python processes (driver,
workers, suites) do not share with anybody, at its peak. The JVM only schedules, and is not counted.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.bars import Bar
from bench.engine import Shape, make_log
from spark_jobs.detect import Settings, detect
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import InlineRunner, Runner, open_runner
from spark_jobs.verify.job import Verification, verify

MATCHES, FEWER = 10_000_000, 2_000_000
EVENTS_PER_MATCH = 3.35  # a little more than the 3 events of a match by the 0.9 of all events that fit
KEYS = 10_000
NEW = 0.05
BATCH_EVENTS = 4_000_000
PIPELINE = parse_pipeline(
    """
name: verification
source:
  columns: {ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}
  buckets: 8
operators:
  often:
    partition_by: key
    pattern: A -> B -> C
    define: {A: type <> 'j', B: type <> 'j', C: type <> 'j'}
    measures: {began: A.ts, kind: B.type, last: C.sn}
""",
    "verification.yaml",
)


@dataclass(frozen=True)
class Verified:
    """A full verification, and one since, of a lake."""

    full: Verification
    since: Verification
    seconds: float
    again: float  # everything compared anew, with a reference that is there
    seconds_since: float
    megabytes: float


def verification(master: str) -> list[Bar]:
    """Measure on lakes of their own, which are removed afterwards."""
    fewer, most = (_verified(master, matches) for matches in (FEWER, MATCHES))
    valid = sum(v.verdict == "valid" for v in (most.full, most.since, fewer.full, fewer.since))
    return [
        Bar("verdicts that are valid (of 4)", valid, 4),
        Bar("complex events compared", most.full.matches, MATCHES, unit="complex events"),
        Bar("five properties on all of them, reference run included", most.seconds, 60, False, "s"),
        Bar(".. with the reference run made before", most.again, 60, False, "s"),
        Bar(f"memory of all Python processes, {MATCHES:,}", most.megabytes, 2_000, False, "MB"),
        Bar(f"memory of all Python processes, {FEWER:,}", fewer.megabytes, unit="MB"),
        Bar("memory, five times as many against", most.megabytes / fewer.megabytes, 1.5, False, "times"),
        Bar(f"a twentieth more, since the last verdict ({_compared(most.since):,} compared)", most.seconds_since, unit="s"),
        Bar(".. events of the log that its reference run read", most.since.to_sn - most.since.from_sn + 1, unit="events"),
    ]


def _compared(verified: Verification) -> int:
    return verified.to_ordinal - verified.from_ordinal + 1


def _verified(master: str, matches: int) -> Verified:
    with tempfile.TemporaryDirectory(prefix="verification-") as folder:
        lake, events = Lake(Path(folder) / "lake"), int(matches * EVENTS_PER_MATCH)
        _apart(lake, events)
        with open_runner(master, lake, "bench") as runner:
            runner.ready()
            with Memory() as memory:
                seconds, full = _timed(lake, runner, full=False)
                again, _ = _timed(lake, runner, full=True)
            _apart(lake, int(events * NEW))
            seconds_since, since = _timed(lake, runner, full=False)
        return Verified(full, since, seconds, again, seconds_since, memory.peak / 1e6)


def _timed(lake: Lake, runner: Runner, *, full: bool) -> tuple[float, Verification]:
    started = time.perf_counter()
    (verified,) = verify(PIPELINE, lake, runner, full=full)
    return time.perf_counter() - started, verified


def _apart(lake: Lake, events: int) -> None:
    """Log and output are made in a process of their own, whose memory does not count."""
    process = multiprocessing.get_context("spawn").Process(target=_detected, args=(lake.root, events))
    process.start()
    process.join()
    assert process.exitcode == 0


def _detected(root: Path, events: int) -> None:
    lake = Lake(root)
    make_log(PIPELINE, lake, Shape(events, KEYS))
    detect(PIPELINE, lake, InlineRunner(), Attempt(lake, "detect"), Settings(BATCH_EVENTS))


@dataclass
class Memory:
    """Watches the Python processes below this one, itself included."""

    peak: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)
    _watch: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._watch:
            self._watch.join()

    def _look(self) -> None:
        while not self._done.wait(0.2):
            self.peak = max(self.peak, sum(map(_own, _below(os.getpid()))))


def _below(pid: int) -> list[int]:
    """A process and all that it has started, and that those have."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found


def _own(pid: int) -> float:
    """Bytes that no other process has mapped."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return 0.0
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(1024.0 * int(kilobytes) for kilobytes in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", rollup, re.M))
