"""The replicas of one detection as processes: f + 1 `reprise detect`, each a Spark application of its own.

A replica that ends before the work is done comes back as long as another one is at work: it takes the state that was committed
and catches up. The first that finishes has seen everything published, so the work is done.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from spark_jobs.console import WITH_PARENT

ROOT = Path(__file__).resolve().parents[2]
# A replica that fails so often fails for a reason that will not go away.
RETURNS = 3
# Who was stopped, or hangs beside its own retry, may need a moment to see that all is published.
GRACE_SECONDS = 30.0


def run_replicas(arguments: Sequence[str], replicas: int, tell: Callable[[str], None]) -> int:
    """Run `reprise` with these arguments as several replicas. 0 if the work was done, otherwise how the last one has failed."""
    running = {number: _start(arguments, number) for number in range(replicas)}
    returns = dict.fromkeys(running, 0)
    code, done_at = 0, 0.0
    try:
        while running:
            for number in _ended(running, done_at):
                process = running.pop(number)
                ended = process.wait()
                if ended == 0:
                    done_at = done_at or time.monotonic()
                    continue
                code = ended
                if not done_at and running and returns[number] < RETURNS:
                    returns[number] += 1
                    tell(f"replica {number} {_how(ended)} and comes back; {len(running)} of {replicas} are at work")
                    running[number] = _start(arguments, number)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    if done_at:
        return 0
    tell(f"all {replicas} replicas have ended before the work was done; what was published stands, and a new start recovers")
    return code if code > 0 else 1


def _start(arguments: Sequence[str], number: int) -> subprocess.Popen[bytes]:
    # In a session of its own: a drill may end the group of one replica and mean that one.
    return subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", *arguments, "--replica", str(number)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, WITH_PARENT: "1"},
        cwd=ROOT,
        start_new_session=True,
    )


def _ended(running: dict[int, subprocess.Popen[bytes]], done_at: float) -> list[int]:
    """Wait for the end of one or more; once the work is done, for a while, and then the others are ended."""
    handles = {os.pidfd_open(process.pid): number for number, process in running.items()}
    try:
        left = max(0.0, done_at + GRACE_SECONDS - time.monotonic()) if done_at else None
        ready, _, _ = select.select(list(handles), [], [], left)
        if not ready:
            for process in running.values():
                process.kill()
            return list(running)
        return [handles[handle] for handle in ready]
    finally:
        for handle in handles:
            os.close(handle)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has failed with exit code {code}"
