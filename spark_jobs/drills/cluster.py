"""A Spark cluster of one machine: a master and two workers as processes on loopback, for drills that kill executors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_jobs.drills.processes import awaited
from spark_jobs.errors import RepriseError

CLUSTER = "cluster"
WORKERS = 2
# As many drivers have room at the same time, each with a core of every worker: one that hangs keeps its executors, and its
# retry needs some too.
DRIVERS = 3
START_SECONDS = 60
# The processes schedule and supervise, they hold no data.
_MEMORY = "256m"


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
    folder.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master = folder / "master.log"
        processes.append(_started(folder, master, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"))
        url = _awaited(master, r"Starting Spark master at (spark://\S+)", 1, processes)
        for number in range(1, WORKERS + 1):
            worker = ["worker.Worker", url, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            worker += ["--cores", str(DRIVERS), "--memory", f"{DRIVERS}g", "--work-dir", str(folder / f"worker-{number}")]
            processes.append(_started(folder, folder / f"worker-{number}.log", *worker))
        _awaited(master, r"(Registering worker)", WORKERS, processes)
        yield url
    finally:
        _stop(processes)


def _started(folder: Path, log: Path, main: str, *arguments: str) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    options = f"-XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={folder}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": _MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": f"-Dspark.deploy.defaultCores={WORKERS}",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
    }
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments]
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
