"""The bars of the whole loop: how fast detection is through Spark, and that cutting the work changes nothing.

1,000,000 events, 10 types, 1,000 keys, pattern a..e, no window, within 100,000 events' time, on 2 cores. Measured after
start-up: the Spark session and its Python workers are warm, the files have been read once.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bench.bars import Bar
from spark_jobs.detect import Detected, Settings, detect
from spark_jobs.generate import Recipe, generate
from spark_jobs.ingest import ingest
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import load_pipeline
from spark_jobs.runner import Runner, open_runner
from spark_jobs.verify.job import verify

EVENTS = 1_000_000
ROUNDS = 5
PIPELINE = Path(__file__).with_name("abcde.yaml")


def loop(master: str) -> list[Bar]:
    """Measure on a lake of its own, which is removed afterwards."""
    pipeline = load_pipeline(PIPELINE)
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder) / "lake")
        # One event per millisecond, so that 100 s hold 100,000 events.
        generate(Recipe(EVENTS, rate=1000), Path(folder) / "landing")
        with open_runner(master, lake, "bench") as runner:
            ingest(pipeline, Path(folder) / "landing", lake, runner, Attempt(lake, "ingest"))
            reference = _detected(pipeline, lake, runner, Settings(EVENTS))[1]
            runs = [_detected(pipeline, lake, runner, Settings(EVENTS)) for _ in range(ROUNDS)]
            cuts = [_detected(pipeline, lake, runner, Settings(-(-EVENTS // n)))[1] for n in (2, 7, 50)]
            shards = [_detected(pipeline, lake, runner, Settings(EVENTS // 3, n))[1] for n in (1, 2, 5)]
        (verdict,) = verify(pipeline, lake)
    seconds = statistics.median(wall for wall, _, _ in runs)
    shares = _shares([done for _, _, done in runs])
    return [
        Bar("detection through Spark, 1,000,000 events", EVENTS / seconds, 2_000_000, unit="events/s"),
        *(Bar(f"share of time: {what}", share, unit="%") for what, share in shares.items()),
        Bar("runs cut into 2, 7 and 50 batches with the output of one batch", sum(c == reference for c in cuts), 3),
        Bar("runs on 1, 2 and 5 shards with the same output", sum(s == reference for s in shards), 3),
        Bar("matches equal to the reference run (1: valid)", float(verdict.verdict == "valid"), 1),
    ]


def _detected(pipeline: Pipeline, lake: Lake, runner: Runner, settings: Settings) -> tuple[float, pa.Table, Detected]:
    """Detect from the beginning; wall time, output without the batch column, and where the time went."""
    for table in ("complex_events", "savepoints", "versions"):
        shutil.rmtree(lake.path(table), ignore_errors=True)
    attempt = Attempt(lake, "bench")
    started = time.perf_counter()
    (done,) = detect(pipeline, lake, runner, attempt, settings)
    wall = time.perf_counter() - started
    return wall, lake.read("complex_events").sort_by("ordinal").drop(["batch"]), done


def _shares(runs: list[Detected]) -> dict[str, float]:
    """Over all rounds, by what the driver waited for."""
    totals: dict[str, float] = {}
    for run in runs:
        for what, seconds in run.seconds.items():
            totals[what] = totals.get(what, 0.0) + seconds
    whole = sum(totals.values())
    return {what: seconds / whole for what, seconds in sorted(totals.items())}
