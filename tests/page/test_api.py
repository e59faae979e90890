"""The API of the page, without Airflow around it: what it answers, and that errors say what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from reprise_page_app.runs import Run

from spark_jobs.errors import RepriseError
from spark_jobs.lake.tables import Lake
from tests.conftest import output
from tests.page.conftest import POST, Installation
from tests.views.test_drills import finished, running

Get = Callable[..., Any]
DRILL = {"pipeline": "small", "faults": "kill_driver:detect.saved@2", "events": 2_000, "batch_events": 500}


def test_pipelines_are_listed_with_their_lag(get: Get) -> None:
    other, small = get("/api/pipelines")["pipelines"]
    assert (small["name"], small["events"], small["operators"][0]["lag_events"]) == ("small", 2_000, 0)
    assert other["note"].startswith("Nothing was ingested yet. Put files into")


def test_a_file_that_is_no_pipeline_is_named(installed: Installation, get: Get, folders: Any) -> None:
    (folders / "pipelines" / "broken.yaml").write_text("name: [")
    try:
        assert [one["file"] for one in get("/api/pipelines")["misplaced"]] == ["broken.yaml"]
    finally:
        (folders / "pipelines" / "broken.yaml").unlink()


def test_the_time_line_of_a_pipeline_can_be_zoomed(get: Get) -> None:
    seen = get("/api/pipelines/small/timeline")
    assert sum(bucket["batches"] for bucket in seen["buckets"]) == 4
    first, last = seen["batches"][1]["from"], seen["batches"][2]["to"]
    zoomed = get("/api/pipelines/small/timeline", since=first, until=last, buckets=10)
    assert zoomed["range"] == {"from": first, "to": last}
    assert get("/api/pipelines/other/timeline")["note"].startswith("Nothing has happened yet")


def test_matches_are_searched_and_opened(get: Get, folders: Any) -> None:
    rows = output(Lake(folders / "lakes" / "small"))
    page = get("/api/pipelines/small/matches/probing", limit=5)
    assert [row["ordinal"] for row in page["matches"]] == [row["ordinal"] for row in rows[::-1][:5]]
    key = page["matches"][0]["key"]
    assert all(row["key"] == key for row in get("/api/pipelines/small/matches/probing", key=key)["matches"])
    opened = get(f"/api/pipelines/small/matches/probing/1/{page['matches'][0]['ordinal']}")
    assert [event["attributes"].keys() for event in opened["events"]] == [{"amount"}] * 3


def test_what_was_set_aside_is_shown_or_said_to_be_nothing(get: Get) -> None:
    assert get("/api/pipelines/other/quarantine")["note"].startswith("No row was refused")
    assert get("/api/pipelines/small/late")["note"].startswith("No event came too late")


def test_before_anything_was_detected_a_search_says_what_to_run(installed: Installation) -> None:
    answer = installed.client.get("/api/pipelines/other/matches/probing")
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "Nothing was detected yet. Run the DAG other.detect, then look again.",
    )


def test_a_drill_is_started_with_parameters_that_were_checked(installed: Installation) -> None:
    answer = installed.client.post("/api/drills", json=DRILL, headers=POST)
    assert answer.status_code == 201, answer.text
    (run,) = installed.runs.runs
    assert run.drill == run.run_id == answer.json()["drill"]
    assert (run.by, run.pipeline, run.conf["faults"]) == ("ana", "small", "kill_driver:detect.saved@2")
    assert run.conf["folder"] == str(installed.drills / run.run_id)


@pytest.mark.parametrize(
    ("wrong", "code", "why"),
    [
        ({"pipeline": "nobody"}, 404, "There is no such pipeline. Nothing was started."),
        ({"pipeline": "../small"}, 404, "There is no such pipeline. Nothing was started."),
        ({"faults": "kill_driver"}, 400, "does not say where"),
        ({"events": 10**9}, 422, "'events': Input should be less than or equal to 5000000"),
        ({"events": "many"}, 422, "'events': Input should be a valid integer"),
        ({"folder": "/etc"}, 422, "'folder': Extra inputs are not permitted"),
        ({"landing": "/etc"}, 422, "'landing': Extra inputs are not permitted"),
        ({"own_data": True}, 400, "does not exist"),
    ],
)
def test_a_wrong_request_starts_nothing(wrong: dict[str, Any], code: int, why: str, installed: Installation) -> None:
    answer = installed.client.post("/api/drills", json={**DRILL, **wrong}, headers=POST)
    assert answer.status_code == code
    assert why in answer.json()["detail"]
    assert installed.runs.runs == []


def test_what_airflow_says_against_a_drill_reaches_the_user(installed: Installation) -> None:
    installed.runs.problem = RepriseError("the DAG recovery_drill is paused. Nothing was started.")
    answer = installed.client.post("/api/drills", json=DRILL, headers=POST)
    assert (answer.status_code, answer.json()["detail"]) == (400, "The DAG recovery_drill is paused. Nothing was started.")


def test_drills_are_listed_also_before_they_have_a_folder(installed: Installation, get: Get) -> None:
    assert get("/api/drills")["note"].startswith("No drill was made yet")
    installed.client.post("/api/drills", json=DRILL, headers=POST)
    finished(installed.drills, "20260101-000000")
    queued, done = get("/api/drills")["drills"]
    assert (queued["pipeline"], queued["faults"], queued["run"]["state"]) == ("small", ["kill_driver"], "queued")
    assert (done["verdict"], done["run"]) == ("valid", None)


def test_drills_are_paged(installed: Installation, get: Get) -> None:
    for number in range(5):
        finished(installed.drills, f"2026010{number}")
    first = get("/api/drills", limit=3)
    second = get("/api/drills", limit=3, offset=first["next"])
    assert len({drill["drill"] for drill in first["drills"] + second["drills"]}) == 5
    assert second["next"] is None


def test_progress_has_the_tasks_of_airflow_and_what_the_folder_shows(installed: Installation, get: Get) -> None:
    running(installed.drills, "one")
    installed.runs.runs.append(Run("one", "running", {"folder": str(installed.drills / "one")}, None, "ana"))
    installed.runs.states = {"report": (None, 0), "detect": ("up_for_retry", 1), "ingest": ("success", 1)}
    seen = get("/api/drills/one")
    assert seen["steps"] == [
        {"step": "ingest", "state": "done", "tries": 1},
        {"step": "detect", "state": "broken", "tries": 1},
        {"step": "report", "state": "waiting", "tries": 0},
    ]
    assert [strike["fault"] for strike in seen["struck"]] == ["kill_driver:detect.saved@2"]
    assert seen["run"]["state"] == "running"
    assert [mark["kind"] for mark in get("/api/drills/one/timeline")["marks"]] == ["fault", "kill"]


def test_a_drill_that_waits_for_its_first_task_can_be_opened(installed: Installation, get: Get) -> None:
    drill = installed.client.post("/api/drills", json=DRILL, headers=POST).json()["drill"]
    assert get(f"/api/drills/{drill}")["run"]["state"] == "queued"
    assert get(f"/api/drills/{drill}/timeline")["note"] == "Nothing has happened in this drill yet."


def test_a_drill_whose_first_task_has_failed_says_so(installed: Installation, get: Get) -> None:
    installed.runs.runs.append(Run("one", "failed", {"folder": str(installed.drills / "one")}, None, "ana"))
    installed.runs.states = {"generate": ("failed", 1)}
    seen = get("/api/drills/one")
    assert (seen["run"]["state"], seen["steps"]) == ("failed", [{"step": "generate", "state": "failed", "tries": 1}])


def test_a_report_is_a_page(installed: Installation) -> None:
    finished(installed.drills, "one")
    answer = installed.client.get("/api/drills/one/report")
    assert (answer.status_code, answer.text) == (200, "<h1>valid</h1>")


def test_the_report_of_a_pipeline_is_made_when_somebody_asks_for_it(installed: Installation, get: Get) -> None:
    answer = installed.client.get("/api/pipelines/small/report")
    assert (answer.status_code, "probing" in answer.text) == (200, True), answer.text
    assert '<a href="docs/index.html">Data Docs</a>' in answer.text
    assert (get("/api/pipelines/small")["has_report"], get("/api/pipelines/small")["has_docs"]) == (True, True)


def test_data_docs_are_pages_that_lead_to_one_another(installed: Installation) -> None:
    for page, said in {"index.html": "<h1>index</h1>", "expectations/incoming.html": "<h1>incoming</h1>"}.items():
        assert installed.client.get(f"/api/pipelines/small/docs/{page}").text == said


def test_what_is_not_there_yet_says_what_to_run(installed: Installation, get: Get) -> None:
    answer = installed.client.get("/api/pipelines/other/report")
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "There is no verdict on other to report. Run the DAG other.verify, then look again.",
    )
    assert installed.client.get("/api/pipelines/other/docs/index.html").status_code == 404
    assert (get("/api/pipelines/other")["has_report"], get("/api/pipelines/other")["has_docs"]) == (False, False)


def test_a_replay_triggers_the_ingest_and_needs_what_follows_it(installed: Installation, get: Get) -> None:
    assert get("/api/pipelines/small")["may_replay"]
    answer = installed.client.post("/api/pipelines/small/replay", json={}, headers=POST)
    assert answer.status_code == 201, answer.text
    (run,) = installed.runs.runs
    assert (run.run_id, run.by, run.conf) == (answer.json()["run"], "ana", {})
    assert installed.runs.dags == [("small.ingest", "small.detect", "small.verify")]


def test_a_replay_that_would_wait_is_not_started(installed: Installation) -> None:
    installed.runs.problem = RepriseError("the DAG small.detect is paused. Nothing was started.")
    answer = installed.client.post("/api/pipelines/small/replay", json={}, headers=POST)
    assert (answer.status_code, answer.json()["detail"]) == (400, "The DAG small.detect is paused. Nothing was started.")


def test_the_form_knows_what_can_be_broken_here(get: Get) -> None:
    form = get("/api/drills/form")
    kinds = {kind["kind"]: kind for kind in form["kinds"]}
    assert form["may_start"]
    assert form["masters"][-1] == "inline"
    assert "kill_executor" not in kinds  # needs a cluster, which Airflow here does not start
    assert not [phase for phase in kinds["kill_driver"]["phases"] if phase.startswith("trim")]


def test_what_breaks_inside_is_a_sentence_without_paths(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("/secret/path is gone")

    monkeypatch.setattr("reprise_page_app.pipelines.overview", broken)
    answer = installed.client.get("/api/pipelines/small")
    assert answer.status_code == 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "secret" not in json.dumps(answer.json())
    assert answer.json()["detail"].endswith("The log of Airflow's API server says why.")
