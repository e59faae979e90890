"""What the recovery strategies cost: in normal operation, and after a kill, by how often they save.

One log of 100,000 events in batches of 2,000, 1,000 keys, pattern a..e. Each way to recover detects 49 batches, which is just
before the fiftieth would be saved, and is killed; then a process that remembers nothing publishes the next one. Tasks run in
this process, so that what is measured is the strategy and not Spark; time is CPU time of all its threads, so that ways measured
one after the other can be compared on a busy machine. Outputs are compared before anything is said.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.bars import Bar
from bench.engine import Shape, make_log
from spark_jobs.detect import Detected, Settings, detect
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline, Recovery, SaveSpec
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.recovery import checkpoint
from spark_jobs.runner import InlineRunner

EVENTS, KEYS, BATCH = 100_000, 1_000, 2_000
BATCHES = EVENTS // BATCH
INTERVALS = (1, 5, 10, 50)  # batches
RESTARTS = 3  # the median counts
PIPELINE = parse_pipeline(
    """
name: recovery
source:
  columns: {ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}
  buckets: 8
operators:
  abcde:
    partition_by: key
    pattern: A -> B -> C -> D -> E
    define: {A: type = 'a', B: type = 'b', C: type = 'c', D: type = 'd', E: type = 'e'}
    within: 100 s
""",
    "recovery.yaml",
)


@dataclass(frozen=True)
class Way:
    """A way to recover."""

    name: str
    strategy: str
    skip: bool = True

    def pipeline(self, interval: int) -> Pipeline:
        # Before every commit is what a pipeline does that says nothing.
        save = SaveSpec(events=interval * BATCH) if interval > 1 else None
        return PIPELINE.model_copy(update={"recovery": Recovery.model_validate({"strategy": self.strategy, "save": save})})


WAYS = (
    Way("savepoint", "savepoint"),
    Way("savepoint without skip", "savepoint", skip=False),
    Way("checkpoint", "checkpoint"),
)


@dataclass(frozen=True)
class Cost:
    """What one way to recover cost with one interval."""

    stored: float  # bytes per batch
    batch: float  # CPU seconds per batch
    again: int  # events read from the log that had been processed
    restart: float  # CPU seconds until the first batch after the kill was published
    output: Any


class _Ended(Exception):
    """Where the process is killed, or enough was seen of it."""


class _Until(Attempt):
    """An attempt that ends with a batch."""

    def __init__(self, lake: Lake, last: int) -> None:
        super().__init__(lake, "detect")
        self.last = last

    def phase(self, name: str, batch: int, operator: str | None = None, *, shard: int | None = None, **detail: Any) -> None:
        super().phase(name, batch, operator, shard=shard, **detail)
        if (name, batch) == ("detect.started", self.last + 1):
            raise _Ended


def recovery(master: str) -> list[Bar]:
    """Measure on lakes of their own, which are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        log = Lake(Path(folder) / "log")
        make_log(PIPELINE, log, Shape(EVENTS, KEYS))
        _measured(Path(folder), log, WAYS[0], 1)  # kernels are loaded, files are in memory
        costs = {(way, interval): _measured(Path(folder), log, way, interval) for way in WAYS for interval in INTERVALS}
    expected = costs[WAYS[0], 1].output
    same = sum(cost.output == expected for cost in costs.values())
    bars = [Bar("ways and intervals with the same complex events and numbers", same, len(costs))]
    for (way, interval), cost in costs.items():
        where = f"{way.name}, saved every {interval if interval > 1 else ''} batch{'es' if interval > 1 else ''}".replace(
            "  ", " "
        )
        bars += [
            Bar(f"{where}: stored per batch", cost.stored, unit="bytes"),
            Bar(f"{where}: CPU time per batch", cost.batch * 1000, unit="ms"),
            Bar(f"{where}: events read again after a kill", cost.again),
            Bar(f"{where}: CPU time to the first batch after a kill", cost.restart * 1000, unit="ms"),
        ]
    return bars


def _measured(folder: Path, log: Lake, way: Way, interval: int) -> Cost:
    lake, pipeline, settings = _copied(log, folder / "lake"), way.pipeline(interval), Settings(BATCH, skip=way.skip)
    checkpoint.forget()
    started = time.process_time()
    try:
        detect(pipeline, lake, InlineRunner(), _Until(lake, BATCHES - 1), settings)
    except _Ended:
        seconds = time.process_time() - started
    stored = _stored(lake)
    restarts: list[tuple[float, Detected]] = []
    for _ in range(RESTARTS):
        again = _copied(lake, folder / "again")
        checkpoint.forget()
        started = time.process_time()
        (done,) = detect(pipeline, again, InlineRunner(), Attempt(again, "detect"), settings)
        restarts.append((time.process_time() - started, done))
    output = again.read("complex_events").sort_by("ordinal").drop(["batch"])
    restart = statistics.median(seconds for seconds, _ in restarts)
    return Cost(stored / (BATCHES - 1), seconds / (BATCHES - 1), done.replayed - done.restored, restart, output)


def _copied(lake: Lake, folder: Path) -> Lake:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(lake.root, folder)
    return Lake(folder)


def _stored(lake: Lake) -> int:
    """What was written to be able to recover: the files of savepoints, and of checkpoints also those that are gone by now."""
    savepoints = sum(file.stat().st_size for file in Path(lake.path("savepoints")).glob("*.parquet"))
    saved = [row["detail"] for row in read_history(lake) if row["name"] == "detect.saved"]
    checkpoints: int = sum(detail.get("checkpoints", 0) for detail in saved)
    return savepoints + checkpoints
