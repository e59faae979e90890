"""What the capacity page is fed with: seconds of executors and of the driver, and how they grow with tasks, files, events held.

Everything is taken from the stages as they run, on Spark with two cores; what grows is measured at two points, and what lies
between them divided by how much more there was.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from deltalake.transaction import AddAction

from bench.capacity import TASK_EVENTS, Costs
from bench.engine import KEYS, Shape, detected, make_log, pipeline_with
from bench.scale import TINY, TINY_BATCHES, fixed_cost, phases
from spark_jobs.detect import Detected, Settings, detect
from spark_jobs.lake.commit import claim, renewed
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.runner import Runner, open_runner

BATCHES = 8
ROUNDS = 3
SHARDS = 8  # as many as the log has buckets
HELD_KEYS, HELD_EVENTS = 1_000_000, 4_000_000
COMMITS, FILES = 20, 1_000
SCATTERED = 50  # commits of the log instead of one
# What a task that matches does itself, but for the few milliseconds in which it writes what it found.
TASK = ("scan", "predicate", "kernel", "keep")
NARROW = "within: 100 s"
SCHEMA = pa.schema([pa.field("number", pa.int64())])


def measure(master: str = "local[2]") -> Costs:
    with tempfile.TemporaryDirectory(prefix="capacity-") as name:
        folder, started = Path(name), time.perf_counter()
        with open_runner(master, Lake(folder / "spark"), "capacity") as runner:
            runner.ready()
            start = time.perf_counter() - started
            found = {
                **_batch(folder / "batch", runner),
                **_tiny(folder / "tiny", runner),
                **_commits(folder / "commits"),
                **_held(folder / "held", runner),
                "file": _file(folder / "files", runner),
                "start": start,
            }
    return Costs(measured_on=f"{os.cpu_count()} cores, {TASK_EVENTS:,} events per batch", **_rounded(found))


def _batch(folder: Path, runner: Runner) -> dict[str, float]:
    """A batch of a million events by one executor, and all that it is made of."""
    pipeline, lake = pipeline_with(NARROW), Lake(folder)
    make_log(pipeline, lake, Shape(TASK_EVENTS * BATCHES, KEYS))
    runs = [detected(pipeline, lake, runner, Settings(TASK_EVENTS, 1)) for _ in range(ROUNDS + 1)][1:]
    wall, done = min(runs, key=lambda run: run[0])
    durations = _between(lake, "detect.started", "detect.matched")
    work, commit = _task_seconds(done), done.seconds["commit"]
    stamp = sum(_between(lake, "detect.matched", "detect.written"))
    return {
        "wall": wall / done.batches,
        "event": work / done.events,
        "match": stamp / done.matches,
        "matches": done.matches / done.events,
        "commit": commit / done.batches,
        "batch": max(0.0, wall - work - stamp - commit) / done.batches,
        "held_share": phases(lake, "detect.started")[-1][1]["carried"] / TASK_EVENTS,
        "spread": statistics.pstdev(durations) / statistics.mean(durations),
    }


def _between(lake: Lake, begin: str, end: str) -> list[float]:
    """Seconds from one phase of the last attempt to another, batch by batch."""
    return [
        (after - before).total_seconds() for (before, _), (after, _) in zip(phases(lake, begin), phases(lake, end), strict=True)
    ]


def _tiny(folder: Path, runner: Runner) -> dict[str, float]:
    """What one more task costs the driver: all of it, as if executors had no part in it, so rather too much than too little."""
    pipeline, lake = pipeline_with(NARROW), Lake(folder)
    make_log(pipeline, lake, Shape(TINY * TINY_BATCHES, KEYS))
    (one, one_done), (many, many_done) = (fixed_cost(pipeline, lake, runner, shards) for shards in (1, SHARDS))
    saving = (many_done.seconds["commit"] - one_done.seconds["commit"]) / TINY_BATCHES
    shard = max(0.0, saving / (SHARDS - 1))
    return {"task": max(0.0, (many - one) / (SHARDS - 1) - shard), "shard": shard}


def _commits(folder: Path) -> dict[str, float]:
    """Commits of one file and of a thousand, in turns, while the table grows. Nobody reads the files, so there are none."""
    place = claim(Lake(folder).open("files", SCHEMA), "capacity", renewed)
    few: list[float] = []
    many: list[float] = []
    for number in range(COMMITS):
        for count, seconds in ((1, few), (FILES, many)):
            files = [AddAction(f"{number}-{count}-{n}.parquet", 1, {}, 0, True, "{}") for n in range(count)]
            started = time.perf_counter()
            place.publish(files, SCHEMA, 1)
            seconds.append(time.perf_counter() - started)
    grown = (COMMITS - COMMITS // 2) * (FILES + 1)
    later, sooner = (statistics.median(part) for part in (few[COMMITS // 2 :], few[: COMMITS // 2]))
    return {
        "commit_file": max(0.0, statistics.median(many) - statistics.median(few)) / (FILES - 1),
        "table_file": max(0.0, later - sooner) / grown,
    }


def _held(folder: Path, runner: Runner) -> dict[str, float]:
    """Tiny batches of a driver whose operator holds millions of events, against those of one that holds hardly any.

    One task, so that all that it does is known, and the rest is the driver's.
    """
    open_ended, lake = pipeline_with("after_match: past last row"), Lake(folder / "many")
    make_log(open_ended, lake, Shape(HELD_EVENTS, HELD_KEYS))
    detected(open_ended, lake, runner, Settings(HELD_EVENTS, 1))
    make_log(open_ended, lake, Shape(TINY * BATCHES, HELD_KEYS))
    started = time.perf_counter()
    (many,) = detect(open_ended, lake, runner, Attempt(lake, "capacity"), Settings(TINY, 1))
    many_seconds = (time.perf_counter() - started - _task_seconds(many)) / many.batches
    held = phases(lake, "detect.started")[-1][1]["carried"]
    stored = phases(lake, "detect.saved")[-1][1]["bytes"]
    small = Lake(folder / "few")
    make_log(pipeline_with(NARROW), small, Shape(TINY * BATCHES, KEYS))
    wall, few = detected(pipeline_with(NARROW), small, runner, Settings(TINY, 1))
    more = many_seconds - (wall - _task_seconds(few)) / few.batches
    return {"held": max(0.0, more) / held, "held_bytes": stored / held}


def _file(folder: Path, runner: Runner) -> float:
    """A task that finds its events in many files, against one that finds them in few."""
    pipeline = pipeline_with(NARROW)
    scans = []
    for commits in (1, SCATTERED):
        lake = Lake(folder / str(commits))
        make_log(pipeline, lake, Shape(TASK_EVENTS, KEYS), TASK_EVENTS // commits)
        runs = [detected(pipeline, lake, runner, Settings(TASK_EVENTS, 1))[1] for _ in range(ROUNDS + 1)][1:]
        scans.append(min(done.seconds["scan"] for done in runs))
    return max(0.0, scans[1] - scans[0]) / (pipeline.source.buckets * (SCATTERED - 1))


def _task_seconds(done: Detected) -> float:
    return sum(done.seconds.get(stage, 0.0) for stage in TASK)


def _rounded(found: dict[str, float]) -> dict[str, float]:
    """Four digits: the rest is noise."""
    return {name: float(f"{value:.4g}") for name, value in found.items()}
