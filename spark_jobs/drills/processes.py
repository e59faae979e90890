"""The processes of a drill: each step in a group of its own, within a time limit, and none left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spark_jobs.faults.strike import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
# Every process of a drill carries it in its environment, however far down the tree.
MARK = "REPRISE_DRILL"
# Orphans of a killed driver notice by themselves, a JVM within a second or two.
GRACE_SECONDS = 20.0
# A look costs a millisecond or two, and nobody notices a twentieth of a second.
_ASK_AGAIN_SECONDS = 0.05


class TimeLimit(Exception):
    """A drill did not end by itself in time."""


class Process(Protocol):
    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal; `subprocess.TimeoutExpired` if it still runs."""


class Start(Protocol):
    def __call__(self, arguments: Sequence[str], environment: dict[str, str], log: Path) -> Process:
        """Start `reprise` with some arguments, in a session of its own."""


@dataclass(frozen=True)
class Program:
    """Start a program anew for every command; by default `reprise` itself."""

    words: tuple[str, ...] = (sys.executable, "-m", "spark_jobs")

    def __call__(self, arguments: Sequence[str], environment: dict[str, str], log: Path) -> Process:
        with log.open("ab") as out:
            return subprocess.Popen(
                [*self.words, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**environment, PROGRAM: "\n".join(self.words)},
                cwd=ROOT,
                start_new_session=True,
            )


class Warm:
    """Fork every command from a server that has loaded everything: hundreds of kills cost minutes, not hours.

    For commands without a JVM.
    """

    def __init__(self) -> None:
        self._context: Any = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["spark_jobs.drills.warm"])

    def __call__(self, arguments: Sequence[str], environment: dict[str, str], log: Path) -> Process:
        process = self._context.Process(target=_in_the_server, args=(list(arguments), environment, str(log)))
        process.start()
        return _Forked(process)


def _in_the_server(arguments: list[str], environment: dict[str, str], log: str) -> None:
    # Only there: what it loads is not for the process that starts commands.
    from spark_jobs.drills.warm import command

    command(arguments, environment, log)


class _Forked:
    def __init__(self, process: Any) -> None:
        self._process, self.pid = process, int(process.pid)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("reprise", timeout or 0)
        return int(self._process.exitcode)


def finish(process: Process, deadline: float, look: Callable[[], None], what: str) -> int:
    """Wait for the end of a process, looking at its progress twice a second; its exit code, negative for a signal."""
    try:
        while True:
            try:
                return process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise TimeLimit(f"{what} was still running") from None
            finally:
                look()
    except BaseException:
        _kill_group(process.pid)
        process.wait()
        raise


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def awaited(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds that others bring about; False if it does not in time.

    It is asked for again and again: of other people's processes and of what they write to a log, nobody is told.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_ASK_AGAIN_SECONDS)  # between two looks: there is nobody who would wake us
    return True


def leftovers(mark: str, sessions: Collection[int] = (), grace: float = GRACE_SECONDS) -> list[str]:
    """What still runs of a drill after a moment to end by itself; it is ended now.

    `sessions` are those of the commands that were started: of a process that was forked, nobody can see its mark.
    """
    if awaited(lambda: not any(_of_drill(mark, sessions)), grace):
        return []
    found = list(_of_drill(mark, sessions))
    names = [f"{pid} {_command(pid)}" for pid in found]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return names


def _of_drill(mark: str, sessions: Collection[int]) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            state, _, _, session = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            mine = int(session) in sessions or wanted in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine and pid != os.getpid() and state != "Z":  # a zombie waits for its parent to look
            yield pid


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "(ended)"
