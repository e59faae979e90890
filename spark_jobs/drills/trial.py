"""One trial of a campaign: what is broken runs in processes of its own, from a lake that was ingested once if that will do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_jobs.drills.processes import Start, TimeLimit
from spark_jobs.drills.steps import drill_steps
from spark_jobs.drills.work import Work
from spark_jobs.faults.catalogue import Group
from spark_jobs.faults.fault import Fault
from spark_jobs.faults.phases import INGEST_PHASES
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.generate import Recipe, generate
from spark_jobs.ingest import ingest
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import load_pipeline
from spark_jobs.runner import InlineRunner
from spark_jobs.verify.job import Verification

Judge = Callable[[Pipeline, Lake], list[Verification]]

_FROM_THE_INPUT = ("deliver", "ingest", "detect", "deliver_late", "ingest_late", "detect_late")
_FROM_THE_LOG = ("detect",)


@dataclass(frozen=True)
class Ground:
    """What trials of one pipeline start from: landing files, and a lake with all of them ingested."""

    pipeline: Path
    given: Path
    lake: Path


def prepare(pipeline: Path, folder: Path, recipe: Recipe) -> Ground:
    given, lake = folder / "given", Lake(folder / "lake")
    generate(recipe, given)
    ingest(load_pipeline(pipeline), given, lake, InlineRunner(), Attempt(lake, "ingest"))
    return Ground(pipeline.resolve(), given, lake.root)


@dataclass(frozen=True)
class Trial:
    """What came of one."""

    lake: Lake
    why: str  # it did not come to a verdict because of this
    left: list[str]  # processes that had to be ended
    tries: dict[str, int]
    verifications: list[Verification]


@dataclass(frozen=True)
class Conditions:
    """How a trial is run, whatever is broken in it."""

    start: Start
    master: str
    batch_events: int
    seconds: float  # its time limit


def run_trial(ground: Ground, folder: Path, faults: Sequence[Fault], conditions: Conditions, judged: Judge) -> Trial:
    """Break detection, or all from the input on; then judge."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = any(_strikes_before_detection(fault) for fault in faults)
    lake = _armed(ground, folder / "lake", faults, ingested=not whole)
    work = Work(folder, time.monotonic() + conditions.seconds)
    why = ""
    try:
        why = work.all(_steps(ground, folder, conditions, _FROM_THE_INPUT if whole else _FROM_THE_LOG), conditions.start)
    except TimeLimit as error:
        why = f"the time limit of {conditions.seconds:g} s was reached: {error}"
    finally:
        left = work.end_processes()
    try:
        verifications = [] if why else judged(load_pipeline(ground.pipeline), lake)
    finally:
        work.end()
    return Trial(lake, why, left, work.tries, verifications)


def _armed(ground: Ground, root: Path, faults: Sequence[Fault], *, ingested: bool) -> Lake:
    if ingested:
        shutil.copytree(ground.lake, root)
    plan = FaultPlan(lake := Lake(root))
    plan.allow()
    for fault in faults:
        plan.arm(fault)
    return lake


def _steps(ground: Ground, folder: Path, conditions: Conditions, names: Sequence[str]) -> dict[str, list[str]]:
    steps = drill_steps(
        pipeline=str(ground.pipeline),
        folder=str(folder),
        given=str(ground.given),
        faults=[],
        events="",
        poison="",
        batch_events=str(conditions.batch_events),
        master=conditions.master,
    )
    return {name: steps[name] for name in names}


def _strikes_before_detection(fault: Fault) -> bool:
    """A timed fault counts from the start of whichever job is the first."""
    return fault.known.group is Group.INPUT or fault.phase in INGEST_PHASES or fault.after is not None
