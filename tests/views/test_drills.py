"""Drills as their folders show them; a name that comes from a request leads nowhere else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.drills.request import DrillRequest, conf_of
from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.places import Place
from spark_jobs.views.drills import NoSuchDrill, drill_folder, drill_names, progress, report_file, summary
from tests.conftest import PIPELINE

FACTS = {
    "pipeline": "small",
    "verdict": "valid",
    "faults": [{"kind": "kill_driver"}],
    "missed": [],
    "made": "2026-01-01 00:00:00 UTC",
    "operators": [{"events": 2000, "matches": 12, "replayed": 5, "processed_before": 900}],
    "next": ["Nothing: the output can be used."],
}


def finished(drills: Path, name: str, facts: object = FACTS) -> Path:
    folder = drills / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(facts))
    (folder / "report.html").write_text("<h1>valid</h1>")
    return folder


def running(drills: Path, name: str) -> Path:
    """Killed in its second batch, and about to detect again."""
    lake = Lake(drills / name / "lake")
    plan = FaultPlan(lake)
    plan.allow()
    plan.arm(fault := parse_fault("kill_driver:detect.saved@2"))
    Attempt(lake, "deliver").record("end", "done")
    Attempt(lake, "ingest").record("end", "done")
    first = Attempt(lake, "detect")
    first.record("commit", "complex_events", 1, "probing", matches=3, events=500)
    plan.take(fault, first.number)
    first.record("fault", "kill_driver", 2, "probing", phase="detect.saved", fault=str(fault))
    Attempt(lake, "detect").phase("detect.started", 2, "probing", start_sn=500, end_sn=1000, carried=4)
    return drills / name


def test_drills_are_listed_the_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(["20260103-000000", "manual__2026-01-02T00-00-00.1-00-00", "20260101-000000"]):
        os.utime(finished(tmp_path, name), (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "a file").write_text("")
    (tmp_path / ".hidden").mkdir()
    assert drill_names(tmp_path) == ["20260103-000000", "manual__2026-01-02T00-00-00.1-00-00", "20260101-000000"]
    assert drill_names(tmp_path / "nowhere") == []


def test_a_finished_drill_has_its_verdict(tmp_path: Path) -> None:
    seen = summary(finished(tmp_path, "one"))
    assert (seen["verdict"], seen["pipeline"], seen["faults"], seen["replayed"]) == ("valid", "small", ["kill_driver"], 5)


@pytest.mark.parametrize("facts", [[], {"verdict": "valid"}, "text"])
def test_a_report_that_cannot_be_read_is_unknown_and_never_valid(facts: object, tmp_path: Path) -> None:
    assert summary(finished(tmp_path, "one", facts))["verdict"] == "unknown"


def test_progress_says_which_step_runs_and_what_has_struck(tmp_path: Path) -> None:
    seen = progress(running(tmp_path, "one"), time.time_ns() // 1000)
    assert {step["step"]: step["state"] for step in seen["steps"]} == {
        "generate": "done",
        "arm": "done",
        "deliver": "done",
        "ingest": "done",
        "detect": "running",
        "verify": "waiting",
        "report": "waiting",
    }
    assert next(step["tries"] for step in seen["steps"] if step["step"] == "detect") == 2
    assert seen["operators"] == [{"operator": "probing", "batches": 1, "matches": 3, "events": 500}]
    assert (seen["armed"], [strike["fault"] for strike in seen["struck"]]) == (
        ["kill_driver:detect.saved@2"],
        ["kill_driver:detect.saved@2"],
    )
    assert (seen["now"]["name"], seen["now"]["batch"]) == ("detect.started", 2)
    assert [mark["kind"] for mark in seen["marks"]] == ["fault", "kill"]
    assert not seen["finished"]


@pytest.mark.parametrize(
    "name", ["..", ".", "", "../drills/one", "one/../one", "/etc", "one%2f..", "a" * 300, "one\x00", "one\n", "-", "nope"]
)
def test_a_name_cannot_lead_out_of_the_drills_folder(name: str, tmp_path: Path) -> None:
    finished(tmp_path / "drills", "one")
    with pytest.raises(NoSuchDrill, match="there is no drill"):
        drill_folder(tmp_path / "drills", name)


def test_a_link_is_no_drill_and_no_report(tmp_path: Path) -> None:
    outside = finished(tmp_path / "outside", "one")
    (tmp_path / "drills").mkdir()
    (tmp_path / "drills" / "two").symlink_to(outside)
    assert drill_names(tmp_path / "drills") == []
    with pytest.raises(NoSuchDrill):
        drill_folder(tmp_path / "drills", "two")
    three = tmp_path / "drills" / "three"
    three.mkdir()
    (three / "report.html").symlink_to(outside / "report.html")
    with pytest.raises(NoSuchDrill, match="no report yet"):
        report_file(three)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "small.yaml").write_text(PIPELINE)
    return Place("small", tmp_path / "small.yaml", tmp_path / "landing", tmp_path / "lake", None)


def test_a_request_becomes_the_parameters_of_a_dag_run(place: Place, tmp_path: Path) -> None:
    request = DrillRequest("small", "kill_driver:detect.saved@3, kill_task:detect.written@1", events=5_000, batch_events=1_000)
    assert conf_of(request, place, tmp_path / "drill") == {
        "pipeline": str(place.file),
        "folder": str(tmp_path / "drill"),
        "landing": "",
        "faults": "kill_driver:detect.saved@3, kill_task:detect.written@1",
        "seed": None,
        "events": 5_000,
        "batch_events": 1_000,
        "master": "inline",
    }


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"faults": ""}, "at least one fault"),
        ({"faults": "kill_everything:detect.saved@3"}, "unknown fault"),
        ({"faults": "kill_driver:detect.saved@3:nobody"}, "no operator 'nobody'"),
        ({"faults": "kill_driver:detect.saved@3; rm -rf /"}, "is not a fault"),
        ({"faults": "kill_driver:trim.written@1"}, "does not trim"),
        ({"faults": "kill_jvm:detect.saved@1"}, "needs Spark"),
        ({"faults": ",".join(["kill_driver:detect.saved@3"] * 11)}, "at most 10 faults"),
        ({"faults": "k" * 1_001}, "longer than"),
        ({"events": 0}, "1 to 5,000,000 events"),
        ({"events": 5_000_001}, "1 to 5,000,000 events"),
        ({"batch_events": 0}, "at most 1,000 batches"),
        ({"batch_events": 1}, "at most 1,000 batches"),
        ({"master": "spark://elsewhere:7077"}, "a drill runs on"),
        ({"seed": -1}, "a seed is"),
        ({"own_data": True}, "does not exist"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong: dict[str, Any], why: str, place: Place, tmp_path: Path) -> None:
    request = DrillRequest(**{"pipeline": "small", "faults": "kill_driver:detect.saved@3", **wrong})
    with pytest.raises(RepriseError, match=why):
        conf_of(request, place, tmp_path / "drill")
