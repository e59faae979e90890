"""The page's app with a user and rights of our own, over an installation of two small pipelines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / ".local" / "airflow"))  # before Airflow makes one elsewhere

from airflow.api_fastapi.core_api.security import get_user  # noqa: E402
from fastapi import FastAPI  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from reprise_page_app.access import auth_manager  # noqa: E402
from reprise_page_app.app import make_app  # noqa: E402
from reprise_page_app.runs import Run, airflow_runs  # noqa: E402

from tests.views.lakes import detected, judged  # noqa: E402

POST = {"x-reprise": "1"}


class User:
    def get_name(self) -> str:
        return "ana"


@dataclass
class Rights:
    """An auth manager that grants what is not taken away: (method, DAG)."""

    refused: set[tuple[str, str]] = field(default_factory=set)

    def is_authorized_dag(self, *, method: str, access_entity: Any, details: Any, user: Any) -> bool:
        return (method, details.id) not in self.refused


@dataclass
class FakeRuns:
    """Runs in memory instead of Airflow's database."""

    runs: list[Run] = field(default_factory=list)
    states: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    problem: Exception | None = None
    dags: list[tuple[str, ...]] = field(default_factory=list)

    def recent(self) -> list[Run]:
        return self.runs[::-1]

    def tasks(self, run_id: str) -> dict[str, tuple[str | None, int]]:
        return self.states

    def start(self, dag: str, run_id: str, conf: dict[str, Any], by: str, followed_by: Sequence[str] = ()) -> None:
        if self.problem:
            raise self.problem
        self.dags.append((dag, *followed_by))
        self.runs.append(Run(run_id, "queued", conf, None, by))


@dataclass
class Installation:
    """Folders as places.py finds them."""

    root: Path
    rights: Rights
    runs: FakeRuns
    app: FastAPI
    client: TestClient

    @property
    def drills(self) -> Path:
        return self.root / "drills"


@pytest.fixture(scope="module")
def folders(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pipelines, of which `small` has detected something that was judged."""
    root = tmp_path_factory.mktemp("installation")
    (root / "pipelines").mkdir()
    place = detected(ingested, root)
    judged(place)
    place.file.rename(root / "pipelines" / "small.yaml")
    text = (root / "pipelines" / "small.yaml").read_text()
    (root / "pipelines" / "other.yaml").write_text(text.replace("name: small", "name: other"))
    return root


@pytest.fixture
def installed(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    for variable, folder in {"PIPELINES": "pipelines", "LANDING": "landing", "LAKES": "lakes"}.items():
        monkeypatch.setenv(f"REPRISE_{variable}", str(folders / folder))
    monkeypatch.setenv("REPRISE_DRILLS", str(tmp_path / "drills"))
    app, rights, runs = make_app(), Rights(), FakeRuns()
    app.dependency_overrides = {get_user: User, auth_manager: lambda: rights, airflow_runs: lambda: runs}
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Installation(tmp_path, rights, runs, app, client)


@pytest.fixture
def get(installed: Installation) -> Callable[..., Any]:
    """Ask, and expect an answer."""

    def asked(path: str, **query: Any) -> Any:
        answer = installed.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return asked
