"""The DAGs, run by Airflow itself: `airflow dags test` with real tasks, real retries and a real kill."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

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


def airflow(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AIRFLOW_HOME": str(home)}
    return subprocess.run(
        [str(ROOT / "scripts" / "airflow"), *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_all_dags_are_imported_without_an_error(airflow_home: Path) -> None:
    errors = airflow(airflow_home, "dags", "list-import-errors", "-o", "json", "--local")
    assert json.loads(errors.stdout.splitlines()[-1]) == [], errors.stdout
    listed = airflow(airflow_home, "dags", "list", "-o", "json", "--local")
    dags = {dag["dag_id"] for dag in json.loads(listed.stdout.splitlines()[-1])}
    assert dags == {"ingest_events", "detect_patterns", "verify_output", "recovery_drill", "trim_queues"}


def test_ingest_detect_and_verify_run_one_after_the_other(airflow_home: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(PIPELINE)
    common = {"pipeline": str(tmp_path / "small.yaml"), "lake": str(tmp_path / "lake")}
    confs = {
        "ingest_events": {**common, "landing": str(small_log(tmp_path / "landing")), "master": "inline"},
        "detect_patterns": {**common, "batch_events": 500, "master": "inline"},
        "verify_output": common,
        "trim_queues": {**common, "keep_hours": 0},
    }
    for dag, conf in confs.items():
        done = airflow(airflow_home, "dags", "test", dag, "--conf", json.dumps(conf))
        assert done.returncode == 0, done.stdout[-3000:]
    (verdict,) = Lake(tmp_path / "lake").read("verdicts").to_pylist()
    assert (verdict["verdict"], verdict["events"]) == ("valid", 2000)


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
