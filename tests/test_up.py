"""`make up`: a real Airflow on loopback that comes up with the DAGs and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(
    url: str, token: str | None = None, body: dict[str, object] | None = None, method: str | None = None
) -> dict[str, object]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    data = json.dumps(body).encode() if body else None
    while True:
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  # loopback
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                found: dict[str, object] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code != 503:  # SQLite is busy: ask again
                raise


def run_dag(base: str, token: str, dag: str, conf: dict[str, object]) -> str:
    """Trigger a DAG and wait for its end; SQLite answers 503 when it is busy."""
    call(f"{base}/api/v2/dags/{dag}", token, {"is_paused": False}, "PATCH")
    run = call(f"{base}/api/v2/dags/{dag}/dagRuns", token, {"logical_date": None, "conf": conf})["dag_run_id"]
    while (state := call(f"{base}/api/v2/dags/{dag}/dagRuns/{run}", token)["state"]) not in ("success", "failed"):
        pass
    return str(state)


def drill_of(folder: Path) -> dict[str, object]:
    """A drill without Spark: it is the scheduler, its retry and the DAG that are tried here.

    The process of the Airflow task is stopped once and killed once; only a running Airflow has one of its own.
    """
    faults = "kill_driver:detect.saved@2, stop_task:detect.written@3, kill_task:detect.saved@4"
    sizes = {"events": 5_000, "batch_events": 1_000, "master": "inline"}
    return {"folder": str(folder / "drill"), "faults": faults, **sizes}


def in_session(session: int) -> list[int]:
    """Processes whose session or group was started for Airflow, by their environment."""
    mark = f"REPRISE_TEST_UP={session}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_airflow_comes_up_with_the_dags_and_ends_without_leftovers(tmp_path: Path) -> None:
    port, mark = free_port(), os.getpid()
    shutil.copy(ROOT / ".local" / "airflow" / "airflow.db", tmp_path / "airflow.db")
    environment = {**os.environ, "PORT": str(port), "AIRFLOW_HOME": str(tmp_path), "REPRISE_TEST_UP": str(mark)}
    environment["AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT"] = "5"  # a killed task process is noticed after this time, not 60 s
    server = subprocess.Popen([str(ROOT / "scripts" / "up")], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        while "Airflow is up" not in (line := server.stdout.readline()):
            assert line, "Airflow did not come up"
        passwords = json.loads((tmp_path / "simple_auth_manager_passwords.json.generated").read_text())
        base = f"http://127.0.0.1:{port}"
        token = call(f"{base}/auth/token", body={"username": "admin", "password": passwords["admin"]})["access_token"]
        wanted = {"ingest_events", "detect_patterns", "verify_output", "recovery_drill"}
        listed: set[str] = set()
        while not wanted <= listed:  # the DAG processor reads the folder a moment after the API is healthy
            dags = call(f"{base}/api/v2/dags", token=str(token))["dags"]
            listed = {dag["dag_id"] for dag in dags}
        assert run_dag(base, str(token), "recovery_drill", drill_of(tmp_path)) == "success"
        facts = json.loads((tmp_path / "drill" / "report.json").read_text())
        assert facts["verdict"] == "valid"
        assert [fault["kind"] for fault in facts["faults"]] == ["kill_driver", "stop_task", "kill_task"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert in_session(mark) == []
