"""The pages of a pipeline: made without writing anything, and no name leads out of the Data Docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.errors import RepriseError
from spark_jobs.lake.tables import Lake
from spark_jobs.places import Place
from spark_jobs.verify.expectations import docs_index
from spark_jobs.views import reports
from spark_jobs.views.reports import NoSuchPage, docs_file, pages_of, pipeline_report
from tests.views.lakes import detected, judged


@pytest.fixture
def place(ingested: Path, tmp_path: Path) -> Place:
    found = detected(ingested, tmp_path)
    judged(found)
    return found


def test_a_report_is_made_of_what_is_there_and_nothing_is_written(place: Place) -> None:
    before = {(file, file.stat().st_mtime_ns) for file in place.lake.rglob("*")}
    page = pipeline_report(place, "docs/index.html")
    assert "small" in page
    assert page.count("<tr") > 4, "four batches"
    assert {(file, file.stat().st_mtime_ns) for file in place.lake.rglob("*")} == before


def test_without_a_verdict_there_is_no_report(ingested: Path, tmp_path: Path) -> None:
    place = detected(ingested, tmp_path)
    with pytest.raises(NoSuchPage, match=r"Run the DAG small\.verify"):
        pipeline_report(place, "")
    assert pages_of(place) == {"has_report": False, "has_docs": True}, "of what came in"


def test_a_report_that_would_take_minutes_is_left_to_the_command(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_BATCHES", 3)
    with pytest.raises(RepriseError, match="has published 4 batches, and a page can report 3"):
        pipeline_report(place, "")


def test_a_link_is_no_page_of_the_data_docs(place: Place, tmp_path: Path) -> None:
    docs = docs_index(Lake(place.lake)).parent
    (tmp_path / "secret.html").write_text("secret")
    (docs / "out.html").symlink_to(tmp_path / "secret.html")
    (docs / "folder").symlink_to(tmp_path)
    (docs / "in.html").symlink_to(docs / "index.html")
    (docs / "notes.txt").write_text("no page")
    assert docs_file(place, "index.html").read_text() == "<h1>index</h1>"
    for page in ("out.html", "folder/secret.html", "in.html", "notes.txt", "expectations", "../docs/index.html", "", "a\0b"):
        with pytest.raises(NoSuchPage):
            docs_file(place, page)


def test_data_docs_that_lie_elsewhere_are_not_shown(place: Place, tmp_path: Path) -> None:
    docs = docs_index(Lake(place.lake)).parent
    docs.rename(tmp_path / "elsewhere")
    docs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoSuchPage):
        docs_file(place, "index.html")
