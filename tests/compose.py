"""docker/compose.yaml as processes on loopback: the same commands and environment in the same order, without a Docker engine.

Host names become 127.0.0.1, ports free ones, volumes folders of the test, and what the image has in /reprise is this project.
What that cannot show is whether the images can be built.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from spark_jobs.drills.processes import awaited
from tests.airflow_server import MARK, ROOT, free_port

COMPOSE = ROOT / "docker" / "compose.yaml"
# A component of Airflow takes 20 s to load on a busy machine, and minutes on one that has no time for it.
PATIENCE = 600.0
LOOPBACK = "127.0.0.1"


def services(file: Path = COMPOSE) -> dict[str, dict[str, Any]]:
    """Of the file, by name, each after those it depends on."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["services"]
    order: list[str] = []

    def visit(name: str) -> None:
        for other in found[name].get("depends_on", {}):
            visit(other)
        if name not in order:
            order.append(name)

    for name in found:
        visit(name)
    return {name: found[name] for name in order}


@dataclass
class Loopback:
    """What the services find instead of a Docker network and volumes."""

    volumes: Path
    variables: Mapping[str, str]
    names: tuple[str, ...]
    ports: dict[tuple[str, str], int] = field(default_factory=dict)

    def port(self, service: str, number: str) -> int:
        return self.ports.setdefault((service, number), free_port())

    def folder(self, name: str, service: dict[str, Any], path: str) -> Path:
        """A folder in the container of a service: of a volume that others see too, or its own."""
        for mount in service.get("volumes", []):
            volume, place = mount.split(":")
            if path == place or path.startswith(f"{place}/"):
                return self.volumes / volume / path[len(place) + 1 :]
        return self.volumes / name / path.lstrip("/")

    def text(self, name: str, service: dict[str, Any], said: object) -> str:
        """A word of a command, or a value of the environment."""
        text = re.sub(r"\$\{(\w+)[^}]*\}", lambda found: self.variables[found[1]], str(said))
        if text in (*self.names, "0.0.0.0"):  # noqa: S104  # nothing is bound to it here
            return LOOPBACK
        if text.startswith("/"):
            return str(self.folder(name, service, text))
        hosts = "|".join(self.names)
        return re.sub(rf"\b({hosts}):(\d+)\b", lambda found: f"{LOOPBACK}:{self.port(found[1], found[2])}", text)

    def environment(self, name: str, service: dict[str, Any]) -> dict[str, str]:
        said = {key: self.text(name, service, value) for key, value in service.get("environment", {}).items()}
        return {key: str(self.port(name, value)) if key.endswith("PORT") else value for key, value in said.items()}

    def words(self, name: str, service: dict[str, Any], said: list[str]) -> list[str]:
        """A command; the port after a host is that of the service with this name."""
        found = [self.text(name, service, word) for word in said]
        for place, (host, word) in enumerate(pairwise(said), 1):
            if host in self.names and word.isdigit():
                found[place] = str(self.port(host, word))
        return found


@dataclass
class Cluster:
    """The services that are up."""

    loopback: Loopback
    processes: dict[str, subprocess.Popen[bytes]]

    @property
    def base(self) -> str:
        return f"http://{LOOPBACK}:{self.loopback.port('airflow-api-server', '8080')}"

    @property
    def data(self) -> Path:
        return self.loopback.volumes / "data"


@contextmanager
def running_cluster(volumes: Path, **settings: str) -> Iterator[Cluster]:
    """All services of the compose file, with further settings for all of them; ended in the opposite order, by their ids."""
    file = services()
    cluster = Cluster(Loopback(volumes, {"POSTGRES_PASSWORD": "only on loopback"}, tuple(file)), {})
    (volumes / "logs").mkdir(parents=True)
    cluster.data.mkdir(exist_ok=True)
    try:
        for name, service in file.items():
            for other, wanted in service.get("depends_on", {}).items():
                _until(cluster, other, file[other], wanted["condition"])
            cluster.processes[name] = _started(cluster.loopback, name, service, settings)
        _until(cluster, "airflow-api-server", file["airflow-api-server"], "service_healthy")
        yield cluster
    finally:
        for name, process in reversed(cluster.processes.items()):
            _stop(process, signal.SIGINT if name == "postgres" else signal.SIGTERM)


def _started(loopback: Loopback, name: str, service: dict[str, Any], settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **loopback.environment(name, service), **settings, MARK: str(os.getpid())}
    command = loopback.words(name, service, service["command"])
    with (loopback.volumes / "logs" / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _until(cluster: Cluster, name: str, service: dict[str, Any], condition: str) -> None:
    """The conditions that the file uses, and what Docker means by them."""
    process, log = cluster.processes[name], cluster.loopback.volumes / "logs" / f"{name}.log"

    def holds() -> bool:
        if condition == "service_completed_successfully":
            return process.poll() is not None
        return process.poll() is not None or _healthy(cluster.loopback, name, service)

    assert condition in ("service_completed_successfully", "service_healthy"), condition
    in_time = awaited(holds, PATIENCE)
    well = process.poll() == 0 if condition == "service_completed_successfully" else process.poll() is None
    assert (in_time, well) == (True, True), f"{name}:\n{log.read_text()[-3000:]}"


def _healthy(loopback: Loopback, name: str, service: dict[str, Any]) -> bool:
    kind, *check = service["healthcheck"]["test"]
    assert kind == "CMD", shlex.join(check)
    return subprocess.run(loopback.words(name, service, check), cwd=ROOT, check=False).returncode == 0


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """A service and all it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
