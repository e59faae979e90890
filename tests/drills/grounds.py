"""Small drills that the tests share: a lake ingested once, copied for every fault."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from spark_jobs.drills.judge import judge
from spark_jobs.drills.processes import Start, TimeLimit
from spark_jobs.drills.steps import drill_steps
from spark_jobs.drills.work import Work
from spark_jobs.faults.catalogue import Group
from spark_jobs.faults.fault import Fault, parse_fault
from spark_jobs.faults.phases import INGEST_PHASES
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.generate import Recipe, generate
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import parse_pipeline
from spark_jobs.verify.expectations import Suite
from spark_jobs.verify.job import Verification
from tests.conftest import PIPELINE, take_in

BATCH_EVENTS = 400  # five batches of the 2,000 events
SECONDS = 120


@dataclass(frozen=True)
class Ground:
    """Where drills begin."""

    pipeline: Path
    given: Path
    lake: Path
    suite: Suite


def new_ground(folder: Path, suite: Suite) -> Ground:
    (folder / "small.yaml").write_text(PIPELINE)
    given = folder / "given"
    # Three hours and two sources, so that a partition can be missing between others.
    generate(Recipe(2_000, types=4, keys=5, rate=0.2), given)
    take_in(parse_pipeline(PIPELINE, "small.yaml"), given, Lake(folder / "lake"))
    return Ground(folder / "small.yaml", given, folder / "lake", suite)


@dataclass(frozen=True)
class Drilled:
    """What came of a small drill."""

    lake: Lake
    why: str
    left: list[str]
    tries: dict[str, int]
    verifications: list[Verification]

    @property
    def verdicts(self) -> list[str]:
        return [v.verdict.value for v in self.verifications]

    @property
    def fired(self) -> list[str]:
        return [str(fault) for fault in FaultPlan(self.lake).fired()]

    def finding(self, name: str) -> str:
        return next(f.verdict.value for v in self.verifications for f in v.findings if f.property == name)


def drilled(ground: Ground, folder: Path, start: Start, *texts: str, master: str = "inline") -> Drilled:
    """Break detection, or all from the input on, in processes of its own; then judge."""
    faults = [parse_fault(text) for text in texts]
    lake, pipeline = Lake(folder / "lake"), parse_pipeline(PIPELINE, "small.yaml")
    folder.mkdir(parents=True, exist_ok=True)
    whole = any(_from_the_input(fault) for fault in faults)
    if not whole:
        shutil.copytree(ground.lake, lake.root)
    plan = FaultPlan(lake)
    plan.allow()
    for fault in faults:
        plan.arm(fault)
    steps = drill_steps(
        pipeline=str(ground.pipeline), folder=str(folder), given=str(ground.given), faults=[], events="", poison="",
        batch_events=str(BATCH_EVENTS), master=master,
    )  # fmt: skip
    names = ("deliver", "ingest", "detect", "deliver_late", "ingest_late", "detect_late") if whole else ("detect",)
    work = Work(folder, time.monotonic() + SECONDS)
    why = ""
    try:
        why = work.all({name: steps[name] for name in names}, start)
    except TimeLimit as error:
        why = str(error)
    finally:
        left = work.end_processes()
    verifications = judge(pipeline, lake, suite=ground.suite) if not why else []
    work.end()
    return Drilled(lake, why, left, work.tries, verifications)


def _from_the_input(fault: Fault) -> bool:
    return fault.known.group is Group.INPUT or fault.phase in INGEST_PHASES
