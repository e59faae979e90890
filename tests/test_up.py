"""`make up`: a real Airflow on loopback that comes up with the DAGs and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from spark_jobs.drills.processes import awaited
from tests.airflow_server import call, running_airflow

RUN_SECONDS = 480.0


def run_dag(base: str, token: str, dag: str, conf: dict[str, object]) -> str:
    """Trigger a DAG and wait for its end; SQLite answers 503 when it is busy."""
    call(f"{base}/api/v2/dags/{dag}", token, {"is_paused": False}, "PATCH")
    run = call(f"{base}/api/v2/dags/{dag}/dagRuns", token, {"logical_date": None, "conf": conf})["dag_run_id"]

    def state() -> str:
        return str(call(f"{base}/api/v2/dags/{dag}/dagRuns/{run}", token)["state"])

    assert awaited(lambda: state() in ("success", "failed"), RUN_SECONDS), f"{dag} is still {state()}"
    return state()


def drill_of(folder: Path) -> dict[str, object]:
    """A drill without Spark: it is the scheduler, its retry and the DAG that are tried here.

    The process of the Airflow task is stopped once and killed once; only a running Airflow has one of its own.
    """
    faults = "kill_driver:detect.saved@2, stop_task:detect.written@3, kill_task:detect.saved@4"
    sizes = {"events": 5_000, "batch_events": 1_000, "master": "inline"}
    return {"folder": str(folder / "drill"), "faults": faults, **sizes}


def test_airflow_comes_up_with_the_dags_and_ends_without_leftovers(tmp_path: Path) -> None:
    # A killed task process is noticed after this time, not 60 s.
    with running_airflow(tmp_path, AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT="5") as server:
        server.wait_for_dags("card_probing.ingest", "card_probing.detect", "card_probing.verify", "recovery_drill")
        assert run_dag(server.base, server.token(), "recovery_drill", drill_of(tmp_path)) == "success"
        facts = json.loads((tmp_path / "drill" / "report.json").read_text())
        assert facts["verdict"] == "valid"
        assert [fault["kind"] for fault in facts["faults"]] == ["kill_driver", "stop_task", "kill_task"]
