"""The steps of one drill, each an ordinary command, tried again as long as something was broken in it."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from spark_jobs.console import PROGRESS_FILE
from spark_jobs.drills.processes import MARK, Process, Start, finish, leftovers
from spark_jobs.drills.steps import SECOND_ROUND, SKIPPED, VERDICTS
from spark_jobs.errors import FencedAttempt
from spark_jobs.faults import storage
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.tables import Lake


class Work:
    """The processes of one drill below one folder."""

    def __init__(self, folder: Path, deadline: float, show: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self.deadline, self._show = folder, deadline, show
        self.lake = Lake(folder / "lake")
        self.log = folder / "drill.log"
        self.tries: dict[str, int] = {}
        self.codes: dict[str, int] = {}  # how each step ended
        self._sessions: set[int] = set()
        mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            PROGRESS_FILE: str(folder / "progress.log"),
            "PYTHONUNBUFFERED": "1",
            MARK: mark,
        }
        self._shown = 0
        self._progress = folder / "progress.log"
        self._progress.touch()

    def all(self, steps: dict[str, list[str]], start: Start) -> str:
        """Do steps in order. Why they did not come to their end; empty if they did."""
        skipping = False
        for name, arguments in steps.items():
            if skipping and name in SECOND_ROUND:
                continue
            code = self.codes[name] = self._step(name, arguments, start)
            skipping = code == SKIPPED
            if code not in (0, SKIPPED) and name not in VERDICTS:  # an invalid output still deserves its report
                return f"step {name} ended with exit code {code}; what happened is in {self.log}"
        return ""

    def _step(self, name: str, arguments: Sequence[str], start: Start) -> int:
        """A step is tried again if it was broken, or if something was healed in it: then the next try stands better."""
        while True:
            self.tries[name] = self.tries.get(name, 0) + 1
            before = self._troubles()
            code = self.wait(start(arguments, self.environment, self.log), name)
            if code in (0, SKIPPED) or name in VERDICTS or self._troubles() == before:
                return code
            self._tell(f"{name} {_ended(code)}; starting it again is recovering")

    def wait(self, process: Process, name: str) -> int:
        self._sessions.add(process.pid)
        return finish(process, self.deadline, self._look, name)

    def end_processes(self) -> list[str]:
        """Nothing is left running; what had to be ended."""
        return leftovers(self.environment[MARK], self._sessions)

    def end(self) -> list[str]:
        """Nothing is left running, nothing is left damaged; what had to be ended."""
        left = self.end_processes()
        storage.heal(self.lake)  # folders that cannot be written could not even be deleted
        return left

    def _troubles(self) -> int:
        """Strikes and healings so far."""
        folder = FaultPlan(self.lake).folder
        return sum(1 for pattern in ("fired-*.json", "kept/*.healed") for _ in folder.glob(pattern))

    def _look(self) -> None:
        """Show what was appended to the progress file."""
        with self._progress.open(encoding="utf-8") as progress:
            progress.seek(self._shown)
            while (line := progress.readline()).endswith("\n"):  # one without its end is still being written
                self._show(line.rstrip("\n"))
                self._shown = progress.tell()

    def _tell(self, text: str) -> None:
        with self._progress.open("a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} {text}\n")
        self._look()


def _ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return "was fenced" if code == FencedAttempt.exit_code else f"ended with exit code {code}"
