"""The links of tasks: to the page, the report, the Data Docs and Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / ".local" / "airflow"))  # otherwise Airflow makes one outside of the project

SPARK = {"conn_type": "spark", "host": "spark://here", "extra": {"ui": "http://here:8080"}}


def links_of(**arguments: object) -> dict[str, str]:
    """As the task runner asks for them, when templates are rendered."""
    from reprise_operator import RepriseOperator

    task = RepriseOperator(task_id="one", arguments=["detect"], **arguments)
    return {link.name: link.get_link(task, ti_key=None) for link in task.operator_extra_links}


@pytest.fixture(autouse=True)
def _installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_DRILLS", str(tmp_path / "drills"))
    monkeypatch.setenv("AIRFLOW_CONN_REPRISE_SPARK", json.dumps(SPARK))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/here")


def test_a_task_of_a_pipeline_leads_to_its_pages() -> None:
    assert links_of(pipeline="small", master="") == {
        "Reprise page": "/here/reprise/#/p/small",
        "Report": "/here/reprise/api/pipelines/small/report",
        "Data Docs": "/here/reprise/api/pipelines/small/docs/index.html",
        "Spark UI": "http://here:8080",
    }


def test_a_step_of_a_drill_leads_to_the_drill(tmp_path: Path) -> None:
    links = links_of(drill=str(tmp_path / "drills" / "manual__a&b"))
    assert (links["Reprise page"], links["Report"]) == (
        "/here/reprise/#/drills/manual__a%26b",
        "/here/reprise/api/drills/manual__a%26b/report",
    )
    assert (links["Data Docs"], links["Spark UI"]) == ("", "")


@pytest.mark.parametrize("arguments", [{}, {"master": None}, {"drill": "/elsewhere/one"}, {"master": "local[2]"}])
def test_what_is_not_there_is_no_link(arguments: dict[str, object]) -> None:
    assert set(links_of(**arguments).values()) == {""}
