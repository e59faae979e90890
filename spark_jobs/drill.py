"""A drill: generate a log, arm a fault, let detection be killed and recover, verify, report.

The steps are ordinary commands in processes of their own, because a fault kills the process it strikes. They
are run either by this module or, with `--airflow`, as tasks of the DAG recovery_drill.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jobs.console import OUT, PROGRESS_FILE
from spark_jobs.errors import RepriseError
from spark_jobs.faults.plan import check_fault, parse_fault
from spark_jobs.pipeline import load_pipeline
from spark_jobs.steps import POISON, VERDICTS, drill_steps
from spark_jobs.verify.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]
DRILLS = ROOT / ".local" / "drills"
# A fault fires once, so a step needs one try more than there are faults.
SPARE_TRIES = 1


@dataclass(frozen=True)
class Drill:
    """What to break, on what."""

    pipeline: Path
    kill: tuple[str, ...]
    events: int
    batch_events: int
    landing: Path | None
    out: Path | None
    master: str
    airflow: bool


def run_drill(drill: Drill) -> int:
    """Run a drill and show it while it runs; the exit code is the verdict's."""
    pipeline = load_pipeline(drill.pipeline)
    for text in drill.kill:
        check_fault(parse_fault(text), list(pipeline.operators))
    if drill.landing is not None and not drill.landing.is_dir():
        raise RepriseError(f"landing folder {drill.landing} does not exist")
    folder = _new_folder(drill)
    OUT.print(
        f"[bold]Recovery drill[/bold] of {drill.pipeline}: SIGKILL at {', '.join(drill.kill)}. Everything is below {folder}"
    )
    work = _through_airflow(drill, folder) if drill.airflow else _directly(drill, folder)
    return _finish(folder, work)


def _new_folder(drill: Drill) -> Path:
    folder = drill.out or DRILLS / time.strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise RepriseError(f"{folder} is not empty; a drill needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _directly(drill: Drill, folder: Path) -> int:
    commands = drill_steps(
        pipeline=str(drill.pipeline.resolve()),
        folder=str(folder),
        landing=str(drill.landing.resolve() if drill.landing else folder / "landing"),
        kill=list(drill.kill),
        events=str(drill.events),
        poison=str(min(POISON, drill.events)),
        batch_events=str(drill.batch_events),
        master=drill.master,
    )
    if drill.landing:
        del commands["generate"]
    for name, command in commands.items():
        for _ in range(len(drill.kill) + SPARE_TRIES):
            code = _watched(folder, [sys.executable, "-m", "spark_jobs", *command])
            if code != -signal.SIGKILL:
                break
            _tell(folder, f"{name} was killed; starting it again is recovering")
        if code != 0 and name not in VERDICTS:  # an invalid output still deserves its report
            return code
    return 0


def _through_airflow(drill: Drill, folder: Path) -> int:
    """One run of the DAG, in-process (`airflow dags test`): real tasks, real retries, no server."""
    if len(drill.kill) != 1:
        raise RepriseError(f"the DAG recovery_drill takes one fault, not {len(drill.kill)}; leave --airflow out for more")
    fault = parse_fault(drill.kill[0])
    params = {
        "pipeline": str(drill.pipeline.resolve()),
        "folder": str(folder),
        "landing": str(drill.landing.resolve()) if drill.landing else "",
        "phase": fault.phase,
        "batch": fault.batch,
        "operator": fault.operator or "",
        "events": drill.events,
        "batch_events": drill.batch_events,
        "master": drill.master,
    }
    return _watched(folder, [str(ROOT / "scripts" / "airflow"), "dags", "test", "recovery_drill", "--conf", json.dumps(params)])


def _watched(folder: Path, command: list[str]) -> int:
    """Run a command with its output in the drill's log, and show progress as it comes."""
    environment = {**os.environ, PROGRESS_FILE: str(_progress(folder)), "PYTHONUNBUFFERED": "1"}
    with (folder / "drill.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
        try:
            for line in _follow(_progress(folder), process):
                OUT.print(line)
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def _follow(file: Path, process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Lines appended to `file` until the process has ended and all of them were seen."""
    file.touch()
    with file.open(encoding="utf-8") as progress:
        progress.seek(_shown.get(file, 0))
        while True:
            ended = process.poll() is not None
            for line in iter(progress.readline, ""):
                at, _, text = line.rstrip("\n").partition(" ")
                yield _styled(float(at), text)
            _shown[file] = progress.tell()
            if ended:
                return
            try:  # wake up at once when the process ends, otherwise look for new lines twice a second
                process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue


# How much of a progress file has been shown; several commands of a drill append to the same one.
_shown: dict[Path, int] = {}


def _styled(at: float, text: str) -> str:
    from rich.markup import escape

    colour = "red" if text.startswith(("killed", "error")) else "green" if "resumes" in text or "valid" in text else ""
    shown = f"[{colour}]{escape(text)}[/{colour}]" if colour else escape(text)
    return f"[dim]{time.strftime('%H:%M:%S', time.localtime(at))}[/dim] {shown}"


def _tell(folder: Path, text: str) -> None:
    with _progress(folder).open("a", encoding="utf-8") as file:
        file.write(f"{time.time():.3f} {text}\n")


def _progress(folder: Path) -> Path:
    return folder / "progress.log"


def _finish(folder: Path, code: int) -> int:
    """The small table at the end, from the facts that the report step has written."""
    facts_file = folder / "report.json"
    if not facts_file.exists():
        OUT.print(f"[red]The drill stopped before its report (exit code {code}).[/red] What happened is in {folder}/drill.log")
        return 2
    facts: dict[str, Any] = json.loads(facts_file.read_text())
    from spark_jobs.console import table
    from spark_jobs.report import summary_rows

    for title, columns, rows in summary_rows(facts):
        table(title, columns, rows)
    OUT.print(f"report: {folder}/report.html")
    return Verdict(facts["verdict"]).exit_code
