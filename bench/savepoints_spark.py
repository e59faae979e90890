"""What v_skip saves through Spark: the first batch after a restart, with a log of 10 million events of which half lie above
SN_trim, because some keys are so rare that their unfinished runs stay until WITHIN ends them.

Two lakes with the same log; one was detected with v_skip, the other without, and each log was trimmed to what its savepoints
need, as an upstream backup is. Both restart at the same place, in turns, on a runner that is warm, again and again: before each
restart the tables are put back to what they were.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bench.bars import Bar
from bench.engine import PIPELINE, Shape, make_log
from spark_jobs.detect import Detected, Settings, detect
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import Runner, open_runner
from spark_jobs.trim import Trimmed, trim

EVENTS, NEW = 10_000_000, 100_000  # NEW: those that come after the restart
KEYS, RARE = 10_000, 100
# One event per millisecond. The first run of a rare key that WITHIN has not ended yet begins up to 200,000 events later, so
# that half of the log lies above SN_trim.
WITHIN = "within: 5200 s"
ROUNDS = 11


class Recovery(NamedTuple):
    """One restart: seconds until its first batch was published, the same with start and end of the job, and what was read."""

    seconds: float
    whole: float
    done: Detected


@dataclass
class Side:
    """One of the two lakes, and its restarts."""

    lake: Lake
    skip: bool
    trimmed: Trimmed | None = None
    recoveries: list[Recovery] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(recovery.seconds for recovery in self.recoveries)

    @property
    def whole(self) -> float:
        return statistics.median(recovery.whole for recovery in self.recoveries)

    @property
    def backup(self) -> int:
        """Events that were left in the log."""
        return self.trimmed.events - self.trimmed.removed if self.trimmed else 0

    @property
    def replayed(self) -> int:
        return self.recoveries[0].done.replayed

    def output(self) -> pa.Table:
        return self.lake.read("complex_events").sort_by("ordinal")


def spark_bars(master: str) -> list[Bar]:
    return compared(master, Shape(EVENTS, KEYS, RARE), NEW, WITHIN, ROUNDS)


def compared(master: str, shape: Shape, new: int, within: str, rounds: int) -> list[Bar]:
    with tempfile.TemporaryDirectory(prefix="savepoints-") as folder:
        root, pipeline = Path(folder), parse_pipeline(PIPELINE.format(limit=within), "engine.yaml")
        on, off = (Side(Lake(root / name), skip) for name, skip in (("on", True), ("off", False)))
        with open_runner(master, Lake(root / "spark"), "bench") as runner:
            _until_the_failure(pipeline, runner, (on, off), Shape(shape.events - new, shape.keys, shape.rare))
            above = 1 - _trim_sn(off.lake) / (shape.events - new)
            for side in (on, off):
                make_log(pipeline, side.lake, Shape(new, shape.keys, shape.rare))
            for round_ in range(rounds + 1):
                for side in (on, off):
                    _restart(pipeline, runner, side, warm=round_ > 0)
        return _bars(on, off, above, shape.events)


def _until_the_failure(pipeline: Pipeline, runner: Runner, sides: tuple[Side, Side], shape: Shape) -> None:
    on, off = sides
    make_log(pipeline, on.lake, shape)
    shutil.copytree(on.lake.path("event_log"), off.lake.path("event_log"))
    for side in sides:
        detect(pipeline, side.lake, runner, Attempt(side.lake, "bench"), Settings(skip=side.skip))
        (side.trimmed,) = trim(pipeline, side.lake, Attempt(side.lake, "trim"))
        for table in ("complex_events", "savepoints"):
            shutil.copytree(side.lake.path(table), _copy(side.lake, table))


def _restart(pipeline: Pipeline, runner: Runner, side: Side, *, warm: bool) -> None:
    """Put the tables back, and go on from them; the first time warms up and does not count."""
    for table in ("complex_events", "savepoints"):
        shutil.rmtree(side.lake.path(table))
        shutil.copytree(_copy(side.lake, table), side.lake.path(table))
    began = time.perf_counter()
    (done,) = detect(pipeline, side.lake, runner, Attempt(side.lake, "bench"), Settings(skip=side.skip))
    whole = time.perf_counter() - began
    if warm:
        side.recoveries.append(Recovery(done.first_batch, whole, done))


def _copy(lake: Lake, table: str) -> str:
    return f"{lake.root}-before/{table}"


def _trim_sn(lake: Lake) -> int:
    """The lowest SN_trim of the shards in the last savepoint."""
    rows = lake.read("savepoints", ["batch", "trim_sn"])
    return int(pc.min(rows.filter(pc.equal(rows["batch"], pc.max(rows["batch"])))["trim_sn"]).as_py())


def _bars(on: Side, off: Side, above: float, events: int) -> list[Bar]:
    name = f"Spark, {events:,} events"
    return [
        Bar(f"{name}: less recovery time", 1 - on.seconds / off.seconds, 0.6, unit="%"),
        Bar(f"{name}: .. with v_skip", on.seconds, unit="s"),
        Bar(f"{name}: .. without", off.seconds, unit="s"),
        Bar(f"{name}: .. less, with start and end of the job", 1 - on.whole / off.whole, unit="%"),
        Bar(f"{name}: fewer events replayed", 1 - on.replayed / off.replayed, 0.9, unit="%"),
        Bar(f"{name}: .. with v_skip", on.replayed),
        Bar(f"{name}: .. without", off.replayed),
        Bar(f"{name}: events left in the trimmed log with v_skip", on.backup),
        Bar(f"{name}: .. without", off.backup),
        Bar(f"{name}: share of the log above SN_trim at the failure", above, 0.5, unit="%"),
        Bar(f"{name}: both with the same complex events (1: equal)", float(on.output().equals(off.output())), 1),
        Bar(f"{name}: .. complex events", on.output().num_rows),
    ]
