"""A drill: a log, a fault plan, detection that is broken and recovers, a verdict, a report.

The steps are ordinary commands in processes of their own, because a fault kills the process it strikes. They
are run either by this module or, with `--airflow`, as tasks of the DAG recovery_drill.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_jobs.drills.cluster import master_for
from spark_jobs.drills.processes import ROOT, Program, TimeLimit
from spark_jobs.drills.steps import POISON, drill_steps
from spark_jobs.drills.work import Work
from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import Fault, check_against
from spark_jobs.faults.phases import TRIM_PHASES
from spark_jobs.pipeline_file import load_pipeline
from spark_jobs.verify.verdict import Verdict

DRILLS = ROOT / ".local" / "drills"
TIME_LIMIT = 900.0


@dataclass(frozen=True)
class Drill:
    """What to break, on what."""

    pipeline: Path
    faults: tuple[Fault, ...]
    events: int = 100_000
    batch_events: int = 20_000
    landing: Path | None = None
    out: Path | None = None
    master: str = "local[2]"
    airflow: bool = False
    time_limit: float = TIME_LIMIT
    start: Program = field(default_factory=Program)  # how `reprise` is started


@dataclass
class Outcome:
    """What came of a drill."""

    folder: Path
    verdict: Verdict
    why: str = ""  # no report could be made because of this
    seconds: float = 0.0
    tries: dict[str, int] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def check_drill(drill: Drill) -> None:
    """Refuse a drill that cannot work before anything is started."""
    if not drill.faults:
        raise RepriseError("a drill needs at least one fault")
    check_faults(drill.faults, drill.pipeline, drill.master, tasks_are_processes=False)
    if drill.landing is not None:
        check_landing(drill.landing)


def check_faults(faults: Sequence[Fault], pipeline: Path, master: str, *, tasks_are_processes: bool) -> None:
    operators = list(load_pipeline(pipeline).operators)
    for fault in faults:
        check_against(fault, operators, master, tasks_are_processes=tasks_are_processes)
        if fault.phase in TRIM_PHASES:
            raise RepriseError(f"'{fault}': a drill does not trim")


def check_landing(landing: Path) -> None:
    if not landing.is_dir():
        raise RepriseError(f"landing folder {landing} does not exist")
    if not any(file.is_file() for file in landing.rglob("*")):
        raise RepriseError(f"landing folder {landing} holds no file. Nothing was started.")


def run_drill(drill: Drill, show: Callable[[str], None] = lambda line: None) -> Outcome:
    """Run a drill, showing its progress; it ends by itself within its time limit and leaves no process behind."""
    check_drill(drill)
    folder, began = _new_folder(drill), time.monotonic()
    work = Work(folder, began + drill.time_limit, show)
    why = ""
    try:
        with master_for(drill.master, folder / "cluster") as master:
            if drill.airflow:
                why = _through_airflow(drill, work, master)
            else:
                why = work.all(_steps(drill, folder, master), drill.start)
    except TimeLimit as error:
        why = f"the time limit of {drill.time_limit:g} s was reached: {error}"
    finally:
        left = work.end()
    return _outcome(folder, why, time.monotonic() - began, work, left)


def _new_folder(drill: Drill) -> Path:
    folder = drill.out or DRILLS / time.strftime("%Y%m%d-%H%M%S")
    if folder.is_dir() and any(folder.iterdir()):
        raise RepriseError(f"{folder} is not empty; a drill needs a folder of its own")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RepriseError(f"the folder of the drill cannot be made: {error}. Nothing was started.") from None
    return folder.resolve()


def _steps(drill: Drill, folder: Path, master: str) -> dict[str, list[str]]:
    steps = drill_steps(
        pipeline=str(drill.pipeline.resolve()),
        folder=str(folder),
        given=str(drill.landing.resolve() if drill.landing else folder / "given"),
        faults=[word for fault in drill.faults for word in ("--fault", str(fault))],
        events=str(drill.events),
        poison=str(min(POISON, drill.events)),
        batch_events=str(drill.batch_events),
        master=master,
    )
    if drill.landing:
        del steps["generate"]
    return steps


def _through_airflow(drill: Drill, work: Work, master: str) -> str:
    """One run of the DAG, in-process (`airflow dags test`): real tasks, real retries, no server."""
    params = {
        "pipeline": str(drill.pipeline.resolve()),
        "folder": str(work.folder),
        "landing": str(drill.landing.resolve()) if drill.landing else "",
        "faults": ", ".join(str(fault) for fault in drill.faults),
        "events": drill.events,
        "batch_events": drill.batch_events,
        "master": master,
    }
    start = Program((str(ROOT / "scripts" / "airflow"),))
    command = ["dags", "test", "recovery_drill", "--conf", json.dumps(params)]
    code = work.codes["verify"] = work.wait(start(command, work.environment, work.log), "the DAG run")
    if code and not (work.folder / "report.json").exists():
        return f"the DAG run ended with exit code {code}; what happened is in {work.log}"
    return ""


def _outcome(folder: Path, why: str, seconds: float, work: Work, left: list[str]) -> Outcome:
    report = folder / "report.json"
    facts = json.loads(report.read_text()) if report.exists() else {}
    verdict = Verdict(facts["verdict"]) if facts and not why else Verdict.UNKNOWN
    if verdict is Verdict.VALID and (code := work.codes.get("verify", 0)):
        verdict, why = Verdict.UNKNOWN, f"the verification ended with exit code {code}; what happened is in {work.log}"
    if left:
        verdict = Verdict.INVALID if verdict is Verdict.VALID else verdict
        why = why or f"{len(left)} processes were left behind: {left[0]}"
    return Outcome(folder, verdict, why, seconds, work.tries, left, facts)
