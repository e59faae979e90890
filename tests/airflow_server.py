"""A real Airflow on loopback for tests: `scripts/up` with a database and a port of its own, ended with all it started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jobs.drills.processes import awaited

ROOT = Path(__file__).resolve().parents[1]
# In the environment of every process it starts.
MARK = "REPRISE_TEST_UP"
NO_HEADERS: Mapping[str, str] = {}
DAG_SECONDS = 240.0


@dataclass(frozen=True)
class Server:
    """An Airflow that is up."""

    base: str
    passwords: dict[str, str]

    def token(self, user: str = "admin") -> str:
        body: dict[str, object] = {"username": user, "password": self.passwords[user]}
        return str(call(f"{self.base}/auth/token", body=body)["access_token"])

    def wait_for_dags(self, *wanted: str) -> None:
        """The DAG processor reads the folder a moment after the API is healthy."""
        token = self.token()

        def listed() -> set[str]:
            return {dag["dag_id"] for dag in call(f"{self.base}/api/v2/dags", token)["dags"]}

        if not awaited(lambda: set(wanted) <= listed(), DAG_SECONDS):
            wrong = [error["stack_trace"] for error in call(f"{self.base}/api/v2/importErrors", token)["import_errors"]]
            raise AssertionError(f"not all of {wanted} are among {listed()}; import errors: {wrong}")


@contextmanager
def running_airflow(home: Path, **settings: str) -> Iterator[Server]:
    port = free_port()
    shutil.copy(ROOT / ".local" / "airflow" / "airflow.db", home / "airflow.db")
    environment = {**os.environ, "PORT": str(port), "AIRFLOW_HOME": str(home), MARK: str(os.getpid()), **settings}
    server = subprocess.Popen([str(ROOT / "scripts" / "up")], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        while "Airflow is up" not in (line := server.stdout.readline()):
            assert line, "Airflow did not come up"
        passwords = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text())
        yield Server(f"http://127.0.0.1:{port}", passwords)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert left_behind() == []


def left_behind() -> list[int]:
    """Whatever still runs of it."""
    return started()


def started(*words: str) -> list[int]:
    """Processes that were started for Airflow, by their environment; of those, the ones whose command has these words.

    A program may be called by its name alone.
    """
    mark = f"{MARK}={os.getpid()}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().split()
            command += [Path(word).name for word in command]
            ours = mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid()
            if ours and set(words) <= set(command):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(
    url: str,
    token: str | None = None,
    body: dict[str, object] | None = None,
    method: str | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    data = json.dumps(body).encode() if body is not None else None
    while True:
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  # loopback
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code != 503:  # SQLite is busy: ask again
                raise
