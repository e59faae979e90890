"""Detection in processes that die: forked from a warm server, so that hundreds of kills cost seconds, not hours."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

from spark_jobs.cep import matcher
from spark_jobs.detect import Settings, detect
from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import Fault
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.recovery import sets
from spark_jobs.runner import InlineRunner

matcher.warm_up()
sets.warm_up()


def kill_at(phase: str, batch: int, operator: str | None = None) -> Fault:
    """SIGKILL to the driver, once."""
    return Fault("kill_driver", phase, batch, operator)


def forkserver() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.children"])
    return context


def detecting(pipeline: str, lake: Path, batch_events: int, stop_at: tuple[str, int] | None = None) -> Any:
    """A child that detects; with `stop_at`, one that stops itself at that phase, as a hung machine would."""
    process = forkserver().Process(target=_detect, args=(pipeline, lake, batch_events, stop_at))
    process.start()
    return process


def run_detection(pipeline: str, lake: Path, batch_events: int) -> int:
    """Detect in a child and wait; its exit code, negative for a signal."""
    process = detecting(pipeline, lake, batch_events)
    process.join(120)
    assert process.exitcode is not None
    return int(process.exitcode)


def await_stop(pid: int) -> None:
    """Until the kernel says that the process is stopped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if state == "T":
            return
        os.sched_yield()
    raise AssertionError("the process did not stop")


def _detect(pipeline: str, folder: Path, batch_events: int, stop_at: tuple[str, int] | None) -> None:
    lake = Lake(folder)
    attempt = _Stopping(lake, stop_at) if stop_at else Attempt(lake, "detect")
    try:
        detect(parse_pipeline(pipeline, "small.yaml"), lake, InlineRunner(), attempt, Settings(batch_events, 2))
    except RepriseError as error:
        os._exit(error.exit_code)


class _Stopping(Attempt):
    def __init__(self, lake: Lake, stop_at: tuple[str, int]) -> None:
        super().__init__(lake, "detect")
        self._stop_at = stop_at

    def phase(self, name: str, batch: int, operator: str | None = None, *, shard: int | None = None, **detail: Any) -> None:
        super().phase(name, batch, operator, shard=shard, **detail)
        if (name, batch) == self._stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)
