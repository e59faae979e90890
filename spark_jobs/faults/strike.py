"""How faults strike: signals to processes, commits that get lost, hung drivers and rivals; storage is in storage.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from spark_jobs.errors import RepriseError
from spark_jobs.faults import storage
from spark_jobs.faults.catalogue import Group
from spark_jobs.faults.fault import STOPPED_SECONDS, Fault
from spark_jobs.lake.journals import at_work
from spark_jobs.lake.tables import Lake

# Set by whoever runs a job as a process of its own below a task process.
TASK_PROCESS = "REPRISE_TASK_PROCESS"
# How `reprise` was started, a word per line.
PROGRAM = "REPRISE_PROGRAM"
# However a retry beside a hung driver ends, the driver is woken after this time.
RETRY_SECONDS = 240
_LOOK_AGAIN_SECONDS = 0.05


class InjectedFailure(RepriseError):
    """A drill wanted this attempt to fail here."""

    exit_code = 1


class LostOnTheWay(OSError):
    """A drill has lost a commit, or the answer to it."""


@dataclass
class Scene:
    """The process that a fault strikes in, and what the fault leaves behind in it."""

    lake: Lake
    losing: str | None = None  # what happens to the next commit
    rivals: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def settle(self) -> None:
        """Nobody ends before the rivals that were started here have."""
        for rival in self.rivals:
            rival.wait()
        self.rivals.clear()

    def send(self, commit: Callable[[], None]) -> None:
        """Carry a commit to its table, or lose it, or the answer."""
        losing, self.losing = self.losing, None
        if losing == "lose_request":
            raise LostOnTheWay("the connection broke before the commit was sent")
        commit()
        if losing == "lose_answer":
            raise LostOnTheWay("the connection broke before the answer came")


def possible(fault: Fault, scene: Scene) -> bool:
    """Can the fault strike here and now? One that cannot is not said to have struck."""
    if fault.known.group is Group.STORAGE and fault.kind not in ("full_disk", "read_only"):
        return storage.target_of(scene.lake, fault.kind) is not None
    if fault.kind == "read_only":
        return storage.can_be_read_only(scene.lake)
    match fault.kind.partition("_")[2]:
        case "jvm":
            return _jvm() is not None
        case "group":
            return os.getpgid(0) == os.getpid()  # in somebody else's group, others would die too
        case "task":
            return TASK_PROCESS in os.environ
    return True


def strike(fault: Fault, scene: Scene) -> None:
    """Break something. Many do not come back from here."""
    if fault.known.group is Group.STORAGE:
        _strike_storage(fault, scene)
        return
    how, _, whom = fault.kind.partition("_")
    match how:
        case "kill" | "stop":
            if (pid := _process(whom)) is not None:
                _signal(how, pid)
        case "raise":
            raise InjectedFailure(f"a drill wanted this attempt to fail: {fault}. Nothing else is wrong; start again.")
        case "lose":
            scene.losing = fault.kind
        case "zombie":
            # In a session of its own, as every try is: a fault may mean its group.
            _heal_later(["timeout", "-k", "5", str(RETRY_SECONDS), "setsid", *_same_command()], os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)
        case "rival":
            _let_a_rival_begin(scene)


def _let_a_rival_begin(scene: Scene) -> None:
    """Two drivers at once: this one waits until the other is at work. A rival that comes when all is done is none."""
    before = at_work(scene.lake)
    rival = subprocess.Popen(_same_command(), stdin=subprocess.DEVNULL, start_new_session=True)
    scene.rivals.append(rival)
    deadline = time.monotonic() + RETRY_SECONDS
    while at_work(scene.lake) <= before and time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            code = rival.wait(_LOOK_AGAIN_SECONDS)
            raise RepriseError(
                f"the rival of this drill ended with exit code {code} before it had begun. Start the drill again."
            )


def _strike_storage(fault: Fault, scene: Scene) -> None:
    if fault.kind == "full_disk":
        storage.fill_disk()
        return
    if fault.kind == "read_only":
        storage.make_read_only(scene.lake)
        return
    target = storage.target_of(scene.lake, fault.kind)
    if target is not None:
        storage.damage(scene.lake, fault.kind, target, str(fault))
    if fault.kind.endswith(("_savepoint", "_commit")):  # who goes on has it in memory; a start has to read it
        os.kill(os.getpid(), signal.SIGKILL)


def _process(whom: str) -> int | None:
    """The process that is meant, seen from the driver or, for workers and executors, from a shard's task."""
    match whom:
        case "jvm":
            return _jvm()
        case "executor":
            return _parent(os.getppid())  # worker < daemon < executor
        case "task":
            return os.getppid()
        case "group":
            return -os.getpid()
    return os.getpid()


def _signal(how: str, pid: int) -> None:
    if how == "kill":
        os.kill(pid, signal.SIGKILL)
        return
    _heal_later(["sleep", str(STOPPED_SECONDS)], pid)
    os.kill(pid, signal.SIGSTOP)


def _heal_later(first: list[str], pid: int) -> None:
    """A process outside of our group that continues a stopped one, or a group, when a command has ended."""
    script = "import os, signal, subprocess, sys; subprocess.call(sys.argv[2:]); os.kill(int(sys.argv[1]), signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-S", "-c", script, str(pid), *first], start_new_session=True, stdin=subprocess.DEVNULL)


def _same_command() -> list[str]:
    """The command that this process is doing, to be done by another one."""
    program = os.environ.get(PROGRAM, f"{sys.executable}\n-m\nspark_jobs")
    return [*program.split("\n"), *sys.argv[1:]]


def _jvm() -> int | None:
    """The JVM that this driver has started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    names = {int(child): _name(int(child)) for child in _all_children(children)}
    return next((pid for pid, name in names.items() if name == "java"), None)


def _all_children(own: Path) -> list[str]:
    """Of every thread: the JVM is started by one in the background."""
    return [child for file in own.parent.parent.glob("*/children") for child in file.read_text().split()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
