"""How detection grows: two executors against one, what a micro-batch costs whatever is in it, what savepoint and commit add,
and overlapping windows.

Executors are those of a standalone cluster on this machine (a master and two workers, as in drills), each with one core;
outputs are compared before times are. A driver with one executor and one with two take turns, because the machine may have
other work. Everything else runs on the master that is asked for.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.bars import Bar
from bench.engine import KEYS, Shape, detected, make_log, pipeline_with, windows
from spark_jobs.detect import Detected, Settings
from spark_jobs.drills.cluster import local_cluster
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.runner import Runner, open_runner

# In one batch, so that what a batch costs whoever does it is a small share: Spark's two jobs, savepoint and commit.
EVENTS = 50_000_000
SMALLER = 10_000_000  # a batch of which that is no small share: for information
TURNS = 2  # of a driver with each number of executors
ROUNDS = 3  # of each driver, after one that warms it up
BATCH = 1_000_000
BATCHES = 10
# So few that reading and matching them takes no time worth mentioning.
TINY = 1_000
TINY_BATCHES, WARM = 60, 10
_SUBMIT = "PYSPARK_SUBMIT_ARGS"


def scale(master: str) -> list[Bar]:
    """Measure on lakes of their own, which are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        folder = Path(name)
        bars = executors(folder / "executors")
        with open_runner(master, Lake(folder / "spark"), "bench") as runner:
            return [*bars, *batches(folder / "batches", runner), *windows(folder / "windows", runner)]


# Executors


@dataclass
class Driver:
    """What drivers with so many executors have measured."""

    executors: int
    walls: list[float] = field(default_factory=list)
    in_batches: list[float] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def executors(folder: Path, events: int = EVENTS, smaller: int = SMALLER) -> list[Bar]:
    pipeline, lake = pipeline_with("within: 100 s"), Lake(folder / "lake")
    make_log(pipeline, lake, Shape(events, KEYS))
    one, two = Driver(1), Driver(2)
    with local_cluster(folder / "cluster") as url:
        for _ in range(TURNS):
            for driver in (one, two):
                with _cores(driver.executors), open_runner(url, lake, "bench") as runner:
                    driver.walls += _walls(driver, pipeline, lake, runner, Settings(events))
                    driver.in_batches += _walls(driver, pipeline, lake, runner, Settings(smaller))
    shutil.rmtree(folder)
    outputs = one.outputs + two.outputs
    same = sum(output.equals(outputs[0]) for output in outputs)
    return [
        Bar("runs with one executor and with two that found the same complex events", same, len(outputs)),
        Bar(".. complex events", float(outputs[0].num_rows)),
        Bar("two executors against one", min(one.walls) / min(two.walls), 1.7, unit="times"),
        Bar(f".. one executor, {events:,} events in one batch", events / min(one.walls), unit="events/s"),
        Bar(".. two executors", events / min(two.walls), unit="events/s"),
        Bar(f".. the same in batches of {smaller:,}", min(one.in_batches) / min(two.in_batches), unit="times"),
    ]


def _walls(driver: Driver, pipeline: Pipeline, lake: Lake, runner: Runner, settings: Settings) -> list[float]:
    walls = [detected(pipeline, lake, runner, settings)[0] for _ in range(ROUNDS + 1)]
    driver.outputs.append(lake.read("complex_events").drop_columns("batch").sort_by("ordinal"))
    return walls[1:]


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Applications that are started now take so many cores, each with an executor of its own on another worker."""
    before = os.environ.get(_SUBMIT)
    os.environ[_SUBMIT] = f"--conf spark.cores.max={count} pyspark-shell"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SUBMIT]
        else:
            os.environ[_SUBMIT] = before


# Batches


def batches(folder: Path, runner: Runner) -> list[Bar]:
    """What a micro-batch costs: whatever is in it, and of one with a million events, to make it happen."""
    pipeline, lake = pipeline_with("within: 100 s"), Lake(folder)
    make_log(pipeline, lake, Shape(TINY * TINY_BATCHES, KEYS))
    fixed, _ = fixed_cost(pipeline, lake, runner)
    make_log(pipeline, lake, Shape(BATCH * BATCHES - TINY * TINY_BATCHES, KEYS))
    runs = [detected(pipeline, lake, runner, Settings(BATCH)) for _ in range(ROUNDS + 1)][1:]
    wall, done = min(runs, key=lambda run: run[0])
    shutil.rmtree(folder)
    return [
        Bar("a micro-batch once warm, whatever is in it", fixed, 0.15, False, "s"),
        Bar("savepoint and commit, of a batch of 1,000,000 events", done.seconds["commit"] / wall, 0.1, False, "%"),
        Bar(".. such a batch", wall / done.batches, unit="s"),
        *stages(done),
    ]


def fixed_cost(pipeline: Pipeline, lake: Lake, runner: Runner, shards: int = 2) -> tuple[float, Detected]:
    """Seconds from the start of one tiny batch to the start of the next: the median, after the first few."""
    _, done = detected(pipeline, lake, runner, Settings(TINY, shards))
    started = [at for at, _ in phases(lake, "detect.started")][WARM:]
    return statistics.median((after - before).total_seconds() for before, after in pairwise(started)), done


def phases(lake: Lake, name: str) -> list[tuple[Any, dict[str, Any]]]:
    """When the last attempt came to a phase, batch by batch, and what it said there."""
    rows = [row for row in read_history(lake) if row["name"] == name]
    last = max(row["attempt"] for row in rows)
    return sorted(((row["at"], row["detail"]) for row in rows if row["attempt"] == last), key=lambda found: found[0])


def stages(done: Detected) -> list[Bar]:
    """Where the time of a batch went, as the driver has waited for it."""
    return [Bar(f".. of it {what}", seconds / done.batches, unit="s") for what, seconds in sorted(done.seconds.items())]
