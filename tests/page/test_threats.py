"""The threat model, line by line: docs/threat-model.md names the test of each."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from reprise_page_app.access import DRILL_DAG, PIPELINE_DAGS
from reprise_page_app.app import STATIC, make_app
from reprise_page_app.guard import LARGEST_BODY
from reprise_page_app.runs import Run

from tests.page.conftest import POST, ROOT, Installation
from tests.page.test_api import DRILL
from tests.views.test_drills import finished

PAGE = ROOT / "plugins" / "reprise_page_app"
SAMPLES = {"name": "small", "operator": "probing", "version": "1", "ordinal": "1", "drill": "one", "page:path": "index.html"}


def addresses(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every route with something in the place of its parameters."""
    for route in _routes(app):
        path = route.path
        for name, sample in SAMPLES.items():
            path = path.replace(f"{{{name}}}", sample if not path.startswith("/static") else "app.js")
        yield from ((method, path) for method in sorted(route.methods))


def _routes(app: FastAPI) -> list[APIRoute]:
    assert all(isinstance(route, APIRoute) for route in app.routes), "a route of another kind has no login"
    return [route for route in app.routes if isinstance(route, APIRoute)]


def _needs(dependant: Dependant, call: Any) -> bool:
    return dependant.call is call or any(_needs(below, call) for below in dependant.dependencies)


def test_every_route_needs_a_login() -> None:
    app = make_app()
    client = TestClient(app, raise_server_exceptions=False)
    asked = list(addresses(app))
    assert len(asked) >= 17
    for method, path in asked:
        answer = client.request(method, path, json=DRILL if method == "POST" else None, headers=POST)
        assert answer.status_code == 401, (method, path, answer.text)
        assert answer.json()["detail"].startswith("You are not logged in")
    assert all(_needs(route.dependant, get_user) for route in _routes(app))


def test_nothing_of_a_request_is_read_before_the_login(installed: Installation) -> None:
    stranger = TestClient(make_app(), raise_server_exceptions=False)
    for body in (b"{", b"x" * 100_000, b""):
        answer = stranger.post("/api/drills", content=body, headers={"content-type": "application/json", **POST})
        assert answer.status_code == 401
    installed.rights.refused = {("POST", DRILL_DAG)}
    answer = installed.client.post("/api/drills", content=b"{", headers={"content-type": "application/json", **POST})
    assert answer.status_code == 403


def test_who_opens_the_page_without_a_login_reads_what_to_do() -> None:
    answer = TestClient(make_app()).get("/", headers={"accept": "text/html"})
    assert (answer.status_code, "Log in to Airflow" in answer.text) == (401, True)


def test_a_forged_token_is_no_login() -> None:
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    assert isinstance(create_auth_manager(), SimpleAuthManager)
    forged = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJhZG1pbiJ9."  # alg none, user admin
    client = TestClient(make_app(), cookies={"_token": forged})
    assert client.get("/api/pipelines").status_code == 403


def test_there_is_no_description_of_the_api_for_strangers() -> None:
    client = TestClient(make_app())
    assert {client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")} == {404}


@pytest.mark.parametrize("dag", PIPELINE_DAGS)
def test_who_may_not_read_a_dag_of_a_pipeline_sees_nothing_of_it(dag: str, installed: Installation) -> None:
    installed.rights.refused = {("GET", f"small.{dag}")}
    finished(installed.drills, "one")
    listed = installed.client.get("/api/pipelines").json()["pipelines"]
    assert [one["name"] for one in listed] == ["other"]
    for method, path in addresses(installed.app):
        if "/small" in path:
            assert installed.client.request(method, path).status_code == 403, path
    assert installed.client.get("/api/drills").json()["drills"] == []
    for path in ("/api/drills/one", "/api/drills/one/timeline", "/api/drills/one/report"):
        assert installed.client.get(path).status_code == 403
    assert [one["name"] for one in installed.client.get("/api/drills/form").json()["pipelines"]] == ["other"]


def test_who_may_not_read_a_pipeline_does_not_learn_whether_it_exists(installed: Installation) -> None:
    installed.rights.refused = {("GET", f"{name}.ingest") for name in ("small", "nobody")}
    answers = [installed.client.get(f"/api/pipelines/{name}") for name in ("small", "nobody")]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert len({answer.text.replace("nobody", "small") for answer in answers}) == 1


def test_a_drill_on_nobody_knows_what_is_for_those_who_may_read_everything(installed: Installation) -> None:
    (installed.drills / "one" / "lake").mkdir(parents=True)
    assert installed.client.get("/api/drills/one").status_code == 200
    installed.rights.refused = {("GET", "other.detect")}
    assert installed.client.get("/api/drills/one").status_code == 403


def test_a_queued_drill_of_a_hidden_pipeline_is_hidden(installed: Installation, folders: Path) -> None:
    conf = {"pipeline": str(folders / "pipelines" / "small.yaml"), "folder": str(installed.drills / "one")}
    installed.runs.runs.append(Run("one", "queued", conf, None, "ana"))
    assert len(installed.client.get("/api/drills").json()["drills"]) == 1
    installed.rights.refused = {("GET", "small.detect")}
    assert installed.client.get("/api/drills").json()["drills"] == []
    assert installed.client.get("/api/drills/one").status_code == 404


def test_drills_need_the_right_to_read_their_dag(installed: Installation) -> None:
    finished(installed.drills, "one")
    installed.rights.refused = {("GET", DRILL_DAG)}
    for path in ("/api/drills", "/api/drills/one", "/api/drills/one/timeline", "/api/drills/one/report"):
        assert installed.client.get(path).status_code == 403


def test_starting_a_drill_needs_the_right_to_trigger_the_dag(installed: Installation) -> None:
    installed.rights.refused = {("POST", DRILL_DAG)}
    answer = installed.client.post("/api/drills", json=DRILL, headers=POST)
    assert (answer.status_code, installed.runs.runs) == (403, [])
    assert answer.json()["detail"].startswith("You may not trigger the DAG recovery_drill")
    assert not installed.client.get("/api/drills/form").json()["may_start"]


def test_starting_a_drill_needs_the_right_to_read_its_pipeline(installed: Installation) -> None:
    installed.rights.refused = {("GET", "small.detect")}
    assert installed.client.post("/api/drills", json=DRILL, headers=POST).status_code == 403
    assert installed.runs.runs == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},
        {"content-type": "text/plain", **POST},
        {"content-type": "application/x-www-form-urlencoded", **POST},
        {"content-type": "application/json", "sec-fetch-site": "cross-site", **POST},
        {"content-type": "application/json", "sec-fetch-site": "same-site", **POST},
        {"content-type": "application/json", "origin": "https://elsewhere.example", **POST},
        {"content-type": "application/json", "origin": "null", **POST},
    ],
)
def test_another_site_starts_nothing_with_our_cookie(headers: dict[str, str], installed: Installation) -> None:
    for path, body in {"/api/drills": DRILL, "/api/pipelines/small/replay": {}}.items():
        answer = installed.client.post(path, content=json.dumps(body), headers=headers)
        assert (answer.status_code, installed.runs.runs) == (403, [])
        assert answer.json()["detail"].startswith("Nothing was started")


def test_our_own_page_can(installed: Installation) -> None:
    """The control of the test above."""
    headers = {"origin": "http://testserver", "sec-fetch-site": "same-origin", **POST}
    assert installed.client.post("/api/drills", json=DRILL, headers=headers).status_code == 201
    assert installed.client.post("/api/pipelines/small/replay", json={}, headers=headers).status_code == 201


def test_only_two_routes_change_anything(installed: Installation) -> None:
    changing = [(method, path) for method, path in addresses(installed.app) if method != "GET"]
    assert changing == [("POST", "/api/pipelines/small/replay"), ("POST", "/api/drills")]


def test_a_replay_needs_the_right_to_trigger_the_ingest(installed: Installation) -> None:
    installed.rights.refused = {("POST", "small.ingest")}
    answer = installed.client.post("/api/pipelines/small/replay", json={}, headers=POST)
    assert (answer.status_code, installed.runs.runs) == (403, [])
    assert answer.json()["detail"].startswith("You may not trigger the DAG small.ingest, so nothing was started")
    assert not installed.client.get("/api/pipelines/small").json()["may_replay"]


def test_a_replay_needs_the_right_to_read_the_pipeline(installed: Installation) -> None:
    installed.rights.refused = {("GET", "small.detect")}
    assert installed.client.post("/api/pipelines/small/replay", json={}, headers=POST).status_code == 403
    assert installed.runs.runs == []


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fapp.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%5capp.py",
        "/static/index.html",
        "/static/app.js%00.svg",
        "/api/pipelines/..%2fsmall",
        "/api/pipelines/%2e%2e",
        "/api/pipelines/SMALL",
        "/api/pipelines/small%00",
        "/api/pipelines/small/matches/..%2fprobing",
        "/api/pipelines/small/matches/probing/1/..%2f1",
        "/api/pipelines/small/docs/..%2f..%2f_journal%2f000001.jsonl",
        "/api/pipelines/small/docs/%2e%2e/results/one.html",
        "/api/pipelines/small/docs/expectations%2f..%2findex.html",
        "/api/pipelines/small/docs/%2fetc%2fpasswd",
        "/api/pipelines/small/docs/index.html%00",
        "/api/pipelines/small/docs/",
        "/api/drills/..%2f..%2fetc",
        "/api/drills/%2e%2e",
        "/api/drills/%2e%2e/report",
        "/api/drills/..%2fone/report",
        "/api/drills/%2fetc%2fpasswd/report",
        "/api/drills/one%0a/report",
        "/api/drills/one~/report",
    ],
)
def test_no_name_leads_to_another_file(path: str, installed: Installation) -> None:
    finished(installed.drills, "one")
    assert installed.client.get(path).status_code in (404, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/api/pipelines/small/timeline?buckets=0",
        "/api/pipelines/small/timeline?buckets=1000000",
        "/api/pipelines/small/timeline?since=yesterday",
        "/api/pipelines/small/matches/probing?limit=100000",
        "/api/pipelines/small/matches/probing?before=-1",
        f"/api/pipelines/small/matches/probing?text={'x' * 201}",
        "/api/pipelines/small/matches/probing/1/99999999999999999999",
        "/api/pipelines/small/quarantine?limit=100000",
        "/api/pipelines/small/quarantine?offset=-1",
        "/api/drills?limit=100000",
    ],
)
def test_no_request_asks_for_more_than_an_answer_may_hold(path: str, installed: Installation) -> None:
    answer = installed.client.get(path)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("The request cannot be used: '")


def test_a_large_body_is_refused_before_it_is_read(installed: Installation) -> None:
    chunks = installed.client.post("/api/drills", content=iter([b"{}"]), headers={"content-type": "application/json", **POST})
    assert chunks.status_code == 413  # nobody knows how many there are
    body = json.dumps({**DRILL, "faults": "x" * LARGEST_BODY})
    answer = installed.client.post("/api/drills", content=body, headers={"content-type": "application/json", **POST})
    assert (answer.status_code, installed.runs.runs) == (413, [])


def test_every_answer_keeps_scripts_and_other_sites_out(installed: Installation) -> None:
    for path in ("/", "/static/app.js", "/api/pipelines", "/api/pipelines/nobody", "/api/drills?limit=0"):
        headers = installed.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'self'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-store" if "/api/" in path else "no-cache")


def test_a_report_runs_nothing_whatever_is_in_it(installed: Installation) -> None:
    folder = finished(installed.drills, "one")
    (folder / "report.html").write_text("<script>alert(document.cookie)</script>")
    headers = installed.client.get("/api/drills/one/report").headers
    assert headers["content-security-policy"].startswith("sandbox; default-src 'none';")
    assert headers["x-content-type-options"] == "nosniff"
    for path in ("report", "docs/index.html"):
        shown = installed.client.get(f"/api/pipelines/small/{path}").headers
        assert shown["content-security-policy"] == headers["content-security-policy"]
    assert 'sandbox: ""' in (STATIC / "drills.js").read_text()  # and the frame that shows it allows nothing either


def test_data_never_becomes_markup() -> None:
    """What the browser makes of a hostile attribute, tests/page/test_browser.py looks at."""
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser|javascript:"
    for file in STATIC.glob("*.js"):
        assert not re.search(ways, file.read_text()), file
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|https?://", page)


def test_answers_are_json_and_never_html(installed: Installation) -> None:
    paths = [
        path
        for method, path in addresses(installed.app)
        if method == "GET" and path.startswith("/api") and not re.search("/report|/docs/", path)
    ]
    assert len(paths) > 8
    for path in paths:
        assert installed.client.get(path).headers["content-type"] == "application/json", path


def test_looking_changes_nothing(installed: Installation, folders: Path) -> None:
    def files() -> set[tuple[Path, int]]:
        return {(file, file.stat().st_mtime_ns) for folder in (folders, installed.root) for file in folder.rglob("*")}

    finished(installed.drills, "one")
    before = files()
    for method, path in addresses(installed.app):
        if method == "GET":
            installed.client.get(path)
    assert files() == before


def test_nothing_from_outside_is_evaluated() -> None:
    ways = r"\beval\(|\bexec\(|pickle|yaml\.load\(|os\.system|shell=True|subprocess"
    for file in (*PAGE.glob("*.py"), *(ROOT / "spark_jobs" / "views").glob("*.py"), ROOT / "spark_jobs/drills/request.py"):
        assert not re.search(ways, file.read_text()), file


def test_the_repository_holds_no_secret() -> None:
    ways = re.compile(
        rb"BEGIN [A-Z ]*PRIVATE KEY|AKIA[0-9A-Z]{16}|eyJ[\w-]{30,}\.eyJ[\w-]{30,}\.[\w-]{20,}|fernet_key\s*=\s*\S{20,}"
    )
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT).decode().split("\0"):
        file = ROOT / name
        assert not (name and file.is_file() and ways.search(file.read_bytes())), name


def test_every_line_of_the_threat_model_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| threat", "|---"))]
    assert len(lines) > 12
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for line in lines:
        named = re.findall(r"`(test_\w+)`", line.split("|")[3])
        assert named, f"no test: {line}"
        assert all(f"def {name}(" in tests for name in named), line
