"""A job that runs as long as somebody wants it: `python -m spark_jobs.leased FOLDER COMMAND ..`.

For tasks that do not wait for their job. All they share is a folder, which may be that of another machine: `lease` is touched
by who wants the job, `alive` by who watches it; `log` is what the job says, `exit` its exit code. A job that nobody wants any
more is ended, and one whose watcher dies ends with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_jobs.console import WITH_PARENT

# Who renews a lease may be started anew in between.
BEAT_SECONDS, LEASE_SECONDS = 1.0, 60.0
END_SECONDS = 10.0


class Sign:
    """A file that somebody touches as long as he is there. Clocks are not compared: machines may disagree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen, self._since = 0, time.monotonic()

    def give(self) -> None:
        self.path.touch()

    def missed(self) -> float:
        """For how many seconds there was nothing new."""
        found = self.path.stat().st_mtime_ns if self.path.exists() else 0
        if found != self._seen:
            self._seen, self._since = found, time.monotonic()
        return time.monotonic() - self._since


class Job:
    """A job, as seen by who wants it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lease, self._alive = Sign(folder / "lease"), Sign(folder / "alive")
        self._read = 0

    def begin(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        """Start it, to go on when this process has ended."""
        self.folder.mkdir(parents=True)
        self._lease.give()
        words = ["setsid", "--fork", sys.executable, "-m", "spark_jobs.leased", str(self.folder), *command]
        silent = subprocess.DEVNULL
        subprocess.run(words, stdin=silent, stdout=silent, stderr=silent, env=dict(environment), cwd=directory, check=True)

    def renew(self) -> None:
        self._lease.give()

    def ended(self) -> int | None:
        file = self.folder / "exit"
        return int(file.read_text()) if file.exists() else None

    def lost(self) -> bool:
        """Nobody watches it any more, so it does not run any more."""
        return self._alive.missed() > LEASE_SECONDS

    def news(self) -> list[str]:
        """What it has said since it was last asked; a line without its end is left for the next time."""
        file = self.folder / "log"
        if not file.exists():
            return []
        with file.open("rb") as log:
            log.seek(self._read)
            found = log.read()
        whole = found if self.ended() is not None else found[: found.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


def watch(folder: Path, command: Sequence[str]) -> int:
    """Run a command until it ends, or until its lease does."""
    lease, alive = Sign(folder / "lease"), Sign(folder / "alive")
    environment = {**os.environ, WITH_PARENT: "1"}
    with (folder / "log").open("ab") as log:
        job = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        while (code := _waited(job, BEAT_SECONDS)) is None:
            alive.give()
            if lease.missed() > LEASE_SECONDS:
                job.terminate()
                if _waited(job, END_SECONDS) is None:
                    job.kill()
    unfinished = folder / "exit.unfinished"
    unfinished.write_text(str(code))
    unfinished.rename(folder / "exit")
    return code


def _waited(job: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return job.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    raise SystemExit(abs(watch(Path(sys.argv[1]), sys.argv[2:])))
