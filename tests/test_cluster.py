"""The cluster of docker/compose.yaml as processes on loopback: a worker of Spark is killed in the middle of a batch, the run
goes on, and every complex event comes out exactly once.

Airflow's database is PostgreSQL, the lake a folder that driver and executors share. The batch is in its middle for certain: one
of the two executors is held (SIGSTOP) until the driver waits for it alone; then its worker is killed, and only then may it go
on, as an executor that nobody waits for any more.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.drills.processes import awaited
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from tests.airflow_server import ROOT, Server, call, left_behind
from tests.compose import Cluster, running_cluster
from tests.conftest import PIPELINE, find, output, small_log

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

# Longer than anything here takes, also on a machine that has hardly any time for it.
PATIENCE = 900.0
EVENTS = 20_000
# Two hundred batches: enough for both executors to be at work when one of them is held.
BATCH = 100
NAME = "small"
STRUCK = "spark-worker-2"
PHASES = ("detect.started", "detect.published")
OVER = ("success", "failed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Below .local, not in pytest's folder: nobody but its owner may enter that, and PostgreSQL is not root."""
    home = ROOT / ".local" / "cluster"
    home.mkdir(parents=True, exist_ok=True)
    volumes = Path(tempfile.mkdtemp(dir=home))
    volumes.chmod(0o755)
    (volumes / "data" / "pipelines").mkdir(parents=True)
    (volumes / "data" / "pipelines" / f"{NAME}.yaml").write_text(PIPELINE)
    small_log(volumes / "data" / "landing" / NAME, EVENTS)
    try:
        with running_cluster(volumes) as running:
            yield running
        assert awaited(lambda: not left_behind(), 30), "processes were left behind"
    finally:
        shutil.rmtree(volumes)


@pytest.fixture(scope="module")
def ask(cluster: Cluster) -> Callable[..., dict[str, Any]]:
    """Airflow's API, when it knows the DAGs."""
    passwords = json.loads((cluster.data / "airflow" / "simple_auth_manager_passwords.json.generated").read_text())
    server = Server(cluster.base, passwords)
    server.wait_for_dags(*(f"{NAME}.{step}" for step in ("ingest", "detect", "verify", "trim")))
    token = server.token()

    def asked(path: str, body: dict[str, object] | None = None, method: str | None = None) -> dict[str, Any]:
        return call(f"{cluster.base}/api/v2/{path}", token, body, method)

    return asked


def test_a_worker_killed_in_the_middle_of_a_batch_stops_nothing(
    cluster: Cluster, ask: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    lake = Lake(cluster.data / "lakes" / NAME)
    ask(f"dags/{NAME}.verify", {"is_paused": False}, "PATCH")  # it follows detection by itself
    assert ended(ask, run_of(ask, "ingest")) == "success"
    run = run_of(ask, "detect", batch_events=BATCH)
    until(lambda: batches(lake) >= 3, "detection did not begin")
    worker = cluster.processes[STRUCK].pid
    (executor,) = executors(worker)
    os.kill(executor, signal.SIGSTOP)
    until(lambda: waits(lake), "the driver never waited for the executor that is held")
    os.kill(worker, signal.SIGKILL)
    done = batches(lake)
    assert done < EVENTS // BATCH, "it was over before it could be struck"
    until(lambda: batches(lake) > done, "the run did not go on without the worker")
    os.kill(executor, signal.SIGCONT)
    assert ended(ask, run) == "success"
    assert tries(ask, run) == [1], "Spark has done it all by itself, without a retry of the task"
    assert awaited(lambda: not Path(f"/proc/{executor}").exists(), 30), "an executor without a worker ends"
    assert_valid(ask, lake, tmp_path)


def test_the_database_is_postgresql(cluster: Cluster) -> None:
    """The control of the test above: that SQLite was not asked instead."""
    assert not list((cluster.data / "airflow").glob("*.db"))


def run_of(ask: Callable[..., dict[str, Any]], step: str, **conf: int) -> str:
    """A run that somebody starts by hand, of a DAG that was paused until now."""
    dag = f"dags/{NAME}.{step}"
    ask(dag, {"is_paused": False}, "PATCH")
    return f"{dag}/dagRuns/{ask(f'{dag}/dagRuns', {'logical_date': None, 'conf': conf})['dag_run_id']}"


def ended(ask: Callable[..., dict[str, Any]], run: str) -> str:
    until(lambda: ask(run)["state"] in OVER, f"{run} never ended")
    return str(ask(run)["state"])


def tries(ask: Callable[..., dict[str, Any]], run: str) -> list[int]:
    return [one["try_number"] for one in ask(f"{run}/taskInstances")["task_instances"] if one["task_id"] == "detect"]


def until(holds: Callable[[], bool], otherwise: str) -> None:
    assert awaited(holds, PATIENCE), otherwise


def batches(lake: Lake) -> int:
    """How many were published so far."""
    return max(0, len(list((lake.root / "complex_events" / "_delta_log").glob("*.json"))) - 1)


def waits(lake: Lake, seconds: float = 2.0) -> bool:
    """Is a batch begun, and stays so for longer than any batch takes?"""
    started, published = before = newest(lake)
    return started > published and not awaited(lambda: newest(lake) != before, seconds)


def newest(lake: Lake) -> tuple[int, int]:
    """The last batch that was started, and the last one that was published."""
    rows = [row for row in read_history(lake) if row["kind"] == "phase"]
    last = {name: max((row["batch"] for row in rows if row["name"] == name), default=0) for name in PHASES}
    return last["detect.started"], last["detect.published"]


def executors(worker: int) -> list[int]:
    """The executors that a worker has started."""
    found: list[int] = []

    def there() -> bool:
        found[:] = [pid for pid in children(worker) if b"CoarseGrainedExecutorBackend" in command(pid)]
        return bool(found)

    until(there, "the worker has no executor")
    return found


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def assert_valid(ask: Callable[..., dict[str, Any]], lake: Lake, tmp_path: Path) -> None:
    """The verdict of the verification that follows by itself; and the output is that of a detection left alone."""
    until(lambda: lake.has("verdicts"), "nothing was verified")
    until(lambda: all(run["state"] in OVER for run in ask(f"dags/{NAME}.verify/dagRuns")["dag_runs"]), "it never ended")
    assert {(row["verdict"], row["events"]) for row in lake.read("verdicts").to_pylist()} == {("valid", EVENTS)}
    alone = Lake(tmp_path / "alone")
    shutil.copytree(lake.path("event_log"), alone.path("event_log"))
    find(parse_pipeline(PIPELINE, "small.yaml"), alone)
    assert output(lake) == output(alone) != []
