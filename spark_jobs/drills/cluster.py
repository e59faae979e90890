"""A Spark cluster of one machine: a master and two workers as processes on loopback, for drills that kill executors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_jobs.drills.processes import ROOT, awaited
from spark_jobs.errors import RepriseError

CLUSTER = "cluster"
WORKERS = 2
# As many drivers have room at the same time, each with a core of every worker: one that hangs keeps its executors, and its
# retry needs some too.
DRIVERS = 3
START_SECONDS = 60


@contextmanager
def master_for(master: str, folder: Path) -> Iterator[str]:
    """The master's URL; for `cluster`, of one that lives as long as this block."""
    if master != CLUSTER:
        yield master
        return
    with local_cluster(folder) as url:
        yield url


@contextmanager
def local_cluster(folder: Path) -> Iterator[str]:
    """Its parts are those that `docker/compose.yaml` names, started by the same script."""
    folder.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master = folder / "master.log"
        ports = {"SPARK_MASTER_PORT": "0", "SPARK_MASTER_WEBUI_PORT": "0"}
        processes.append(
            _started(folder, master, "master", SPARK_MASTER_OPTS=f"-Dspark.deploy.defaultCores={WORKERS}", **ports)
        )
        url = _awaited(master, r"Starting Spark master at (spark://\S+)", 1, processes)
        offered = {"SPARK_WORKER_CORES": str(DRIVERS), "SPARK_WORKER_MEMORY": f"{DRIVERS}g", "SPARK_WORKER_WEBUI_PORT": "0"}
        for number in range(1, WORKERS + 1):
            place = folder / f"worker-{number}"
            log = place.with_suffix(".log")
            processes.append(_started(folder, log, "worker", url, SPARK_WORKER_DIR=str(place), **offered))
        _awaited(master, r"(Registering worker)", WORKERS, processes)
        yield url
    finally:
        _stop(processes)


def _started(folder: Path, log: Path, *words: str, **settings: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SPARK_LOCAL_HOSTNAME": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder), **settings}
    command = [str(ROOT / "scripts" / "spark"), *words]
    with log.open("wb") as noise:
        return subprocess.Popen(command, stdout=noise, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


def _awaited(log: Path, pattern: str, times: int, processes: list[subprocess.Popen[bytes]]) -> str:
    """Until the log says it so often; what it says first."""

    def said() -> list[str]:
        return re.findall(pattern, log.read_text(errors="replace"))

    awaited(lambda: len(said()) >= times or any(process.poll() is not None for process in processes), START_SECONDS)
    if len(said()) >= times:
        return said()[0]
    raise RepriseError(f"the Spark cluster did not start within {START_SECONDS} s; its messages are in {log.parent}")


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Workers before their master; executors die with their workers."""
    for process in reversed(processes):
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
