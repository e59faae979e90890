"""One real Airflow in which everything goes wrong that may: every complex event comes out exactly once all the same.

Each test has a pipeline of its own. Detection is held (SIGSTOP) in the middle of its batches, so that what happens then
happens in the middle of a run on any machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from spark_jobs.drills.processes import awaited
from spark_jobs.lake.history import read_history
from spark_jobs.lake.journals import at_work
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from tests.airflow_server import Server, call, running_airflow, started
from tests.conftest import PIPELINE, events_of, find, output, small_log

pytestmark = pytest.mark.bars

# Longer than anything here takes on a busy machine with two cores.
PATIENCE = 180.0
EVENTS = 2_000
# A hundred batches: a look between two of them comes before the last one.
BATCH = 20
HELD_AFTER = 10
OVER = ("success", "failed")
# What a killed process costs is not waiting here; what is noticed, and what follows, stays Airflow's own.
QUICK = {
    "AIRFLOW__CORE__PARALLELISM": "6",
    "AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT": "5",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "8",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "2",
}


@dataclass(frozen=True)
class Installation:
    """A running Airflow with a pipeline for each test."""

    server: Server
    token: str
    root: Path

    def lake(self, name: str) -> Lake:
        return Lake(self.root / "lakes" / name)

    def ask(self, path: str, body: dict[str, object] | None = None, method: str | None = None) -> dict[str, Any]:
        return call(f"{self.server.base}/api/v2/{path}", self.token, body, method)

    def page(self, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        """As the Reprise page itself asks."""
        return call(f"{self.server.base}/reprise/{path}", self.token, body, headers={"x-reprise": "1"})

    def start(self, dag: str, **conf: int) -> str:
        """A run that somebody starts by hand."""
        body: dict[str, object] = {"logical_date": None, "conf": conf}
        return f"dags/{dag}/dagRuns/{self.ask(f'dags/{dag}/dagRuns', body)['dag_run_id']}"

    def tries(self, run: str, task: str) -> int:
        return max(one["try_number"] for one in self.ask(f"{run}/taskInstances")["task_instances"] if one["task_id"] == task)

    def is_over(self, run: str, name: str) -> bool:
        """Airflow is asked last: an answer costs as much as a batch."""
        return batches(self.lake(name)) == EVENTS // BATCH and self.ask(run)["state"] in OVER

    def has_settled(self, name: str) -> bool:
        """No job is running, and no run has yet to begin one."""
        if started("spark_jobs", str(self.lake(name).root)):
            return False
        steps = (self.ask(f"dags/{name}.{step}/dagRuns")["dag_runs"] for step in ("ingest", "detect", "verify"))
        return all(run["state"] in OVER for runs in steps for run in runs)


@pytest.fixture(scope="module")
def installation(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Four pipelines whose log is ingested, and one whose files are just delivered."""
    root = tmp_path_factory.mktemp("bars")
    (root / "pipelines").mkdir()
    for name in PIPELINES:
        (root / "pipelines" / f"{name}.yaml").write_text(PIPELINE.replace("name: small", f"name: {name}"))
        if name != "backfilled":
            shutil.copytree(ingested, root / "lakes" / name)
    with (root / "pipelines" / "backfilled.yaml").open("a") as file:
        file.write("schedule: '@hourly'\n")  # only what has a calendar can be backfilled
    small_log(root / "landing" / "backfilled", EVENTS)
    folders = {f"REPRISE_{name.upper()}": str(root / name) for name in ("pipelines", "landing", "lakes", "jobs", "drills")}
    spark = {"AIRFLOW_CONN_REPRISE_SPARK": '{"conn_type": "spark", "host": "inline"}'}
    paused = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}
    with running_airflow(tmp_path_factory.mktemp("airflow"), **folders, **spark, **paused, **QUICK) as server:
        server.wait_for_dags(*(f"{name}.{step}" for name in PIPELINES for step in ("ingest", "detect", "verify", "trim")))
        yield Installation(server, server.token(), root)


def until(holds: Callable[[], bool], otherwise: str) -> None:
    assert awaited(holds, PATIENCE), otherwise


def batches(lake: Lake) -> int:
    """How many were published so far."""
    return len(list((lake.root / "complex_events" / "_delta_log").glob("*.json"))) - 1


def driver(step: str, lake: Lake) -> int:
    """The process that does the work of a task."""
    found: list[int] = []

    def there() -> bool:
        found[:] = started("spark_jobs", step, str(lake.root))
        return bool(found)

    until(there, f"no {step} of {lake.root} is running")
    return found[0]


@contextmanager
def held(pid: int) -> Iterator[None]:
    """A process stands still, and goes on afterwards, unless it has been ended."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def hold_in_the_middle(lakes: list[Lake]) -> list[int]:
    """Wait until every one of some detections is in its middle, and hold each there; their drivers, in the same order."""
    found: dict[Path, int] = {}

    def all_held() -> bool:
        for lake in lakes:
            if lake.root not in found and batches(lake) >= HELD_AFTER:
                found[lake.root] = driver("detect", lake)
                os.kill(found[lake.root], signal.SIGSTOP)
                assert batches(lake) < EVENTS // BATCH, "it was over before it could be held"
        return len(found) == len(lakes)

    until(all_held, "a detection did not come to its middle")
    return [found[lake.root] for lake in lakes]


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def assert_exactly_once(installation: Installation, name: str, tmp_path: Path) -> None:
    """The verdict of the verification that follows by itself is valid; and the output is that of a detection left alone."""
    lake = installation.lake(name)
    until(lambda: lake.has("verdicts"), "nothing was verified")
    until(lambda: installation.has_settled(name), "not everything came to its end")
    assert {(row["verdict"], row["events"]) for row in lake.read("verdicts").to_pylist()} == {("valid", EVENTS)}
    assert output(lake) == output(alone(lake, tmp_path)) != []


def alone(lake: Lake, tmp_path: Path) -> Lake:
    """The same log, detected by one attempt in one batch."""
    other = Lake(tmp_path / "alone")
    shutil.copytree(lake.path("event_log"), other.path("event_log"))
    find(parse_pipeline(PIPELINE, "small.yaml"), other)
    return other


def kill_task(installation: Installation, run: str, job: int) -> None:
    os.kill(parent(job), signal.SIGKILL)


def kill_supervisor(installation: Installation, run: str, job: int) -> None:
    """The executor's process that watches the task: nobody is left who could tell Airflow."""
    os.kill(parent(parent(job)), signal.SIGKILL)


def clear_task(installation: Installation, run: str, job: int) -> None:
    _, dag, _, run_id = run.split("/")
    body: dict[str, object] = {"dag_run_id": run_id, "task_ids": ["detect"], "dry_run": False, "only_failed": False}
    installation.ask(f"dags/{dag}/clearTaskInstances", body)


# What each does to the run of the pipeline of this name.
STRIKES = {"killed": kill_task, "unwatched": kill_supervisor, "cleared": clear_task}
PIPELINES = (*STRIKES, "scheduler", "backfilled")


@pytest.fixture(scope="module")
def struck(installation: Installation) -> dict[str, tuple[str, int]]:
    """Three runs and the jobs of their tasks, struck in the middle of their work; they recover side by side."""
    runs = [installation.start(f"{name}.detect", batch_events=BATCH) for name in STRIKES]
    jobs = hold_in_the_middle([installation.lake(name) for name in STRIKES])
    for strike, run, job in zip(STRIKES.values(), runs, jobs, strict=True):
        strike(installation, run, job)
    return dict(zip(STRIKES, zip(runs, jobs, strict=True), strict=True))


@pytest.mark.parametrize("name", STRIKES)
def test_a_task_that_is_killed_or_cleared_while_it_runs_runs_again_and_goes_on(
    name: str, installation: Installation, struck: dict[str, tuple[str, int]], tmp_path: Path
) -> None:
    run, job = struck[name]
    until(lambda: ended(job), "the job has outlived its task")
    until(lambda: installation.is_over(run, name), "the run never ended")
    assert (installation.ask(run)["state"], installation.tries(run, "detect")) == ("success", 2)
    assert_exactly_once(installation, name, tmp_path)


def test_two_backfills_and_a_replay_that_overlap_ingest_everything_once(installation: Installation, tmp_path: Path) -> None:
    lake = installation.lake("backfilled")
    first = backfill(installation, "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z")
    until(lambda: bool(at_work(lake)), "no ingest has begun")
    with held(driver("ingest", lake)):
        with pytest.raises(HTTPError, match="409"):
            backfill(installation, "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z")
        installation.ask(f"backfills/{first}/cancel", method="PUT")
        backfill(installation, "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z")
        replay = installation.page("api/pipelines/backfilled/replay", {})["run"]
        until(lambda: lake.has("event_log"), "the others did not go on")
    assert_exactly_once(installation, "backfilled", tmp_path)
    assert installation.ask(f"dags/backfilled.ingest/dagRuns/{replay}")["state"] == "success"
    assert len({(event["source"], event["source_seq"]) for event in events_of(lake)}) == len(events_of(lake)) == EVENTS
    assert {row["name"] for row in read_history(lake) if row["kind"] == "fence"} == {"event_log"}, "the others were fenced"


def backfill(installation: Installation, since: str, to: str) -> int:
    """Two runs at a time, also of hours that had one."""
    body: dict[str, object] = {"dag_id": "backfilled.ingest", "from_date": since, "to_date": to, "max_active_runs": 2}
    return int(installation.ask("backfills", {**body, "reprocess_behavior": "completed", "run_backwards": False})["id"])


def test_a_task_leads_to_pages_that_are_there(installation: Installation) -> None:
    run = installation.start("killed.trim")
    until(lambda: installation.ask(run)["state"] in OVER, "the run never ended")
    links = installation.ask(f"{run}/taskInstances/trim/links")["extra_links"]
    assert links == {
        "Data Docs": "/reprise/api/pipelines/killed/docs/index.html",
        "Report": "/reprise/api/pipelines/killed/report",
        "Reprise page": "/reprise/#/p/killed",
        "Spark UI": None,  # trimming needs no Spark
    }
    assert installation.page("api/pipelines/killed")["has_docs"], "of what came in"


def test_a_scheduler_that_is_killed_and_started_anew_finishes_the_run(installation: Installation, tmp_path: Path) -> None:
    lake = installation.lake("scheduler")
    run = installation.start("scheduler.detect", batch_events=BATCH)
    (job,) = hold_in_the_middle([lake])
    (scheduler,) = started("airflow", "scheduler")
    environment = dict(word.split("=", 1) for word in Path(f"/proc/{scheduler}/environ").read_text().split("\0") if word)
    os.kill(scheduler, signal.SIGKILL)
    again = subprocess.Popen(["airflow", "scheduler"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        until(lambda: installation.tries(run, "detect") == 2, "the new scheduler did not find the task")
        with suppress(ProcessLookupError):
            os.kill(job, signal.SIGCONT)
        until(lambda: installation.is_over(run, "scheduler"), "the run never ended")
        assert installation.ask(run)["state"] == "success"
        assert_exactly_once(installation, "scheduler", tmp_path)
    finally:
        again.terminate()
        again.wait(60)
