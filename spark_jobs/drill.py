"""A drill: generate a log, arm a fault, let detection be killed and recover, verify, report.

The steps are ordinary commands in processes of their own, because a fault kills the process it strikes. They
are run either by this module or, with `--airflow`, as tasks of the DAG recovery_drill; both read STEPS.
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
from spark_jobs.faults.plan import parse_fault
from spark_jobs.pipeline import load_pipeline

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


def steps(
    pipeline: str, folder: str, landing: str, kill: list[str], events: int, batch_events: int, master: str
) -> dict[str, list[str]]:
    """The commands of a drill, in order; a generated log is left out where landing files are given."""
    lake = f"{folder}/lake"
    arm = [word for fault in kill for word in ("--kill", fault)]
    commands = {
        "generate": ["generate", "--out", f"{folder}/landing", "--events", str(events), "--poison", str(min(5, events))],
        "arm": ["arm", pipeline, "--lake", lake, *arm],
        "ingest": ["ingest", pipeline, "--landing", landing or f"{folder}/landing", "--lake", lake, "--master", master],
        "reference": ["reference", pipeline, "--lake", lake],
        "detect": ["detect", pipeline, "--lake", lake, "--batch-events", str(batch_events), "--master", master],
        "verify": ["verify", pipeline, "--lake", lake],
        "report": ["report", pipeline, "--lake", lake, "--out", f"{folder}/report.html"],
    }
    if landing:
        del commands["generate"]
    return commands


def run_drill(drill: Drill) -> int:
    """Run a drill and show it while it runs; the exit code is the verdict's."""
    load_pipeline(drill.pipeline)
    for fault in drill.kill:
        parse_fault(fault)
    if drill.landing is not None and not drill.landing.is_dir():
        raise RepriseError(f"landing folder {drill.landing} does not exist")
    folder = _new_folder(drill)
    OUT.print(f"[bold]Recovery drill[/bold] of {drill.pipeline}: SIGKILL at {', '.join(drill.kill)}. Everything is below {folder}")
    work = _through_airflow(drill, folder) if drill.airflow else _directly(drill, folder)
    return _finish(folder, work)


def _new_folder(drill: Drill) -> Path:
    folder = drill.out or DRILLS / time.strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise RepriseError(f"{folder} is not empty; a drill needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _directly(drill: Drill, folder: Path) -> int:
    landing = str(drill.landing.resolve()) if drill.landing else ""
    commands = steps(
        str(drill.pipeline.resolve()), str(folder), landing, list(drill.kill), drill.events, drill.batch_events, drill.master
    )
    verdict = 0
    for name, command in commands.items():
        for _ in range(len(drill.kill) + SPARE_TRIES):
            code = _watched(folder, [sys.executable, "-m", "spark_jobs", *command])
            if code != -signal.SIGKILL:
                break
            _tell(folder, f"{name} was killed; starting it again is recovering")
        if name == "verify":
            verdict = code
        elif code != 0:
            return code
    return verdict


def _through_airflow(drill: Drill, folder: Path) -> int:
    """One run of the DAG, in-process (`airflow dags test`): real tasks, real retries, no server."""
    params = {
        "pipeline": str(drill.pipeline.resolve()),
        "folder": str(folder),
        "landing": str(drill.landing.resolve()) if drill.landing else "",
        "kill": list(drill.kill),
        "events": drill.events,
        "batch_events": drill.batch_events,
        "master": drill.master,
    }
    airflow = str(Path(sys.executable).with_name("airflow"))
    code = _watched(folder, [airflow, "dags", "test", "recovery_drill", "--conf", json.dumps(params)])
    verdict = folder / "verdict"
    if not verdict.exists():
        raise RepriseError(f"the DAG ended with exit code {code} before a verdict; see {folder}/drill.log")
    return int(verdict.read_text())


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
        return code or 2
    facts: dict[str, Any] = json.loads(facts_file.read_text())
    from spark_jobs.console import table
    from spark_jobs.report import summary_rows

    for title, columns, rows in summary_rows(facts):
        table(title, columns, rows)
    OUT.print(f"report: {folder}/report.html")
    return code
