"""Small drills that the tests share: a lake ingested once, copied for every fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_jobs.drills.judge import judge
from spark_jobs.drills.processes import Start
from spark_jobs.drills.trial import Conditions, Ground, Trial, prepare, run_trial
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.generate import Recipe
from spark_jobs.verify.expectations import Suite
from tests.conftest import PIPELINE

BATCH_EVENTS = 400  # five batches of the 2,000 events
SECONDS = 120


@dataclass(frozen=True)
class Grounds:
    """Where drills begin, and who judges them."""

    ground: Ground
    suite: Suite


def new_ground(folder: Path, suite: Suite, recovery: str = "") -> Grounds:
    folder.mkdir(exist_ok=True)
    (folder / "small.yaml").write_text(PIPELINE + recovery)
    # Three hours and two sources, so that a partition can be missing between others.
    return Grounds(prepare(folder / "small.yaml", folder, Recipe(2_000, types=4, keys=5, rate=0.2)), suite)


class Drilled(Trial):
    """What came of a small drill."""

    @property
    def verdicts(self) -> list[str]:
        return [v.verdict.value for v in self.verifications]

    @property
    def fired(self) -> list[str]:
        return [str(fault) for fault in FaultPlan(self.lake).fired()]

    def finding(self, name: str) -> str:
        return next(f.verdict.value for v in self.verifications for f in v.findings if f.property == name)


def drilled(grounds: Grounds, folder: Path, start: Start, *texts: str, master: str = "inline") -> Drilled:
    """Break detection, or all from the input on, in processes of its own; then judge."""
    conditions = Conditions(start, master, BATCH_EVENTS, SECONDS)
    faults = [parse_fault(text) for text in texts]
    trial = run_trial(grounds.ground, folder, faults, conditions, lambda p, lake: judge(p, lake, suite=grounds.suite))
    return Drilled(**vars(trial))
