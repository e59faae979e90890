"""The DAGs, run by Airflow itself: `airflow dags test` with real tasks, real retries and a real kill."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from tests.conftest import PIPELINE, small_log
from tests.test_cli import reprise

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of its own, copied from the one the set-up has migrated."""
    home = tmp_path_factory.mktemp("airflow")
    shutil.copy(ROOT / ".local" / "airflow" / "airflow.db", home / "airflow.db")
    return home


def run_dags(home: Path, runs: list[tuple[str, dict[str, object], str]], **settings: object) -> tuple[int, str]:
    """Let Airflow run some DAGs, one after the other; its exit code, and what it has printed."""
    environment = {**os.environ, "AIRFLOW_HOME": str(home), **{name: str(value) for name, value in settings.items()}}
    command = [
        str(ROOT / "scripts" / "airflow-env"),
        str(ROOT / ".venv" / "bin" / "python"),
        "-m",
        "tests.dag_runs",
        json.dumps(runs),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr[-2000:]


@pytest.fixture
def installation(tmp_path: Path) -> dict[str, object]:
    """A pipelines folder with one pipeline of two replicas: each is a mapped task, and here one runs after the other."""
    (tmp_path / "pipelines").mkdir()
    recovery = "recovery: {strategy: replication, f: 1, heartbeat: 300 ms}\n"
    (tmp_path / "pipelines" / "any.yaml").write_text(PIPELINE + recovery + "schedule: '@hourly'\n")
    names = {"REPRISE_PIPELINES": "pipelines", "REPRISE_LANDING": "landing", "REPRISE_LAKES": "lakes"}
    folders: dict[str, object] = {variable: tmp_path / folder for variable, folder in names.items()}
    notifier = {"class": "tests.dag_runs.Told", "arguments": {"message": "{{ dag.dag_id }} has failed"}}
    folders["AIRFLOW__REPRISE__NOTIFIERS"] = json.dumps([notifier])
    told = {"type": "file", "log_file_path": str(tmp_path / "lineage"), "append": True}
    folders["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps(told)
    return {**folders, "REPRISE_JOBS": tmp_path / "jobs", "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": True}


def test_a_pipeline_file_is_a_family_of_dags_that_ingest_detect_verify_and_trim(
    airflow_home: Path, tmp_path: Path, installation: dict[str, object]
) -> None:
    small_log(tmp_path / "landing" / "small")
    (tmp_path / "pipelines" / "wrong.yaml").write_text("name: Not a name")
    runs: list[tuple[str, dict[str, object], str]] = [
        ("small.verify", {"master": "inline"}, "failed"),  # there is nothing to be judged yet
        ("small.ingest", {"master": "inline"}, "success"),
        ("small.detect", {"master": "inline", "batch_events": 500}, "success"),
        ("small.verify", {"master": "inline"}, "success"),
        ("small.trim", {"keep_hours": 0}, "success"),
        ("small.ingest", {"master": "inline"}, "success"),
        ("small.detect", {"master": "inline", "batch_events": 300}, "success"),  # again: a replay publishes nothing
    ]
    code, said = run_dags(airflow_home, runs, **installation)
    assert code == 0, said[-3000:]
    known = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert known["dags"] == ["recovery_drill", "small.detect", "small.ingest", "small.trim", "small.verify"]
    assert max(known["seconds"].values()) < 1
    ((file, problem),) = known["errors"].items()
    assert file.endswith("misplaced.py")
    assert "wrong.yaml: it has no 'name' of small letters" in problem
    assert list((tmp_path / "jobs").iterdir()) == [], "tasks were deferred, and have tidied up"
    assert said.count("told: small.verify has failed") == 1
    lake = Lake(tmp_path / "lakes" / "small")
    assert lineage_of("small.ingest.ingest", tmp_path) == (["landing/small"], ["event_log", "quarantine"])
    assert lineage_of("small.detect.detect", tmp_path) == (["event_log"], ["complex_events"])
    assert lineage_of("small.verify.verify", tmp_path) == (["complex_events", "event_log"], ["verdicts"])
    told = lake.read("metrics").to_pylist()
    assert len({row["at"] for row in told}) == 8, "after every task of a pipeline, and two replicas are two"
    last = {(row["operator"], row["name"]): row["value"] for row in sorted(told, key=lambda row: row["at"])}
    assert (last[None, "events"], last["probing", "lag_events"], last["probing", "verdict"]) == (2_000, 0, 0)
    (verdict,) = lake.read("verdicts").to_pylist()
    assert (verdict["verdict"], verdict["events"]) == ("valid", 2000)
    history = read_history(lake)
    attempts = [row for row in history if (row["kind"], row["name"]) == ("attempt", "detect")]
    began = [row["detail"]["replica"] for row in attempts]
    assert (set(began[:2]), set(began[2:])) == ({0, 1}, {0, 1}), "of two replicas, whichever is up first"
    commits = [row["attempt"] for row in history if row["kind"] == "commit" and row["name"] == "complex_events"]
    assert set(commits) <= {row["attempt"] for row in attempts[:2]}


def lineage_of(job: str, tmp_path: Path) -> tuple[list[str], list[str]]:
    """What OpenLineage was told at the end of a job that it reads and writes, from the lake or the folder of the test on."""
    events = [json.loads(line) for line in (tmp_path / "lineage").read_text().splitlines()]
    ended = [event for event in events if event["job"]["name"] == job and event["eventType"] == "COMPLETE"]
    folders = (f"{tmp_path}/lakes/small/", f"{tmp_path}/")
    inputs, outputs = ([dataset["name"] for dataset in ended[-1][side]] for side in ("inputs", "outputs"))
    return _below(folders, inputs), _below(folders, outputs)


def _below(folders: tuple[str, ...], names: list[str]) -> list[str]:
    for folder in folders:
        names = [name.removeprefix(folder) for name in names]
    return sorted(names)


def test_the_recovery_drill_is_killed_recovers_and_is_valid(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `make run` does, through Spark, on fewer events."""
    monkeypatch.setenv("AIRFLOW_HOME", str(airflow_home))
    folder = tmp_path / "drill"
    said = reprise(
        "drill",
        ROOT / "examples" / "card_probing.yaml",
        "--airflow",
        "--events",
        20_000,
        "--batch-events",
        4_000,
        "--out",
        folder,
    )
    assert "fault: SIGKILL to the driver's Python at detect.saved, batch 3" in said
    assert "resumes after batch 2" in said
    assert "card_probing: valid" in said
    facts = json.loads((folder / "report.json").read_text())
    (operator,) = facts["operators"]
    assert operator["matches"] == operator["reference_matches"] > 0
    assert 0 < operator["replayed"] < operator["processed_before"] == 8_000
    assert facts["faults"][0]["phase"] == "detect.saved"
    assert facts["dead_letters"] == 2, "the killed attempt wrote its savepoint, one row per shard, and nobody counts it"


def test_a_drill_whose_fault_never_fires_is_unknown(tmp_path: Path) -> None:
    said = reprise(
        "drill", ROOT / "examples" / "card_probing.yaml", "--fault", "kill_driver:detect.saved@99", "--events", 2_000,
        "--out", tmp_path / "drill", "--master", "inline", code=2,
    )  # fmt: skip
    assert "card_probing: unknown" in said
    assert "0 of 1 armed faults fired" in (tmp_path / "drill" / "report.html").read_text()


def test_a_drill_on_given_landing_files_only_reads_them(tmp_path: Path) -> None:
    landing = small_log(tmp_path / "landing")
    before = sorted((str(file), file.stat().st_mtime_ns) for file in landing.rglob("*"))
    (tmp_path / "small.yaml").write_text(PIPELINE)
    said = reprise(
        "drill", tmp_path / "small.yaml", "--landing", landing, "--batch-events", 300, "--out", tmp_path / "drill",
        "--fault", "kill_driver:detect.published@2", "--fault", "kill_driver:ingest.listed@1", "--master", "inline",
    )  # fmt: skip
    assert said.count("fault: SIGKILL to the driver") == 2
    assert "small: valid" in said
    assert sorted((str(file), file.stat().st_mtime_ns) for file in landing.rglob("*")) == before
