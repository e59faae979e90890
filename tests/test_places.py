"""The pipelines folder: a file dropped into it is a pipeline, and one that is wrong spoils no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.errors import PipelineError
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.places import misplaced, place_of, places
from tests.conftest import PIPELINE


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPRISE_PIPELINES", str(tmp_path / "pipelines"))
    monkeypatch.setenv("REPRISE_LAKES", str(tmp_path / "lakes"))
    (tmp_path / "pipelines").mkdir()
    return tmp_path / "pipelines"


def test_a_file_is_enough(folder: Path) -> None:
    assert places() == []
    (folder / "any.yaml").write_text(PIPELINE + "schedule: '*/10 * * * *'\n")
    (place,) = places()
    assert (place.name, place.schedule, place.lake) == ("small", "*/10 * * * *", folder.parent / "lakes" / "small")
    assert place_of("small") == place


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name: [", "while parsing"),
        ("- 1", "no 'name' of small letters"),
        ("name: ../etc", "no 'name' of small letters"),
        ("name: other\nschedule: every day", "no cron expression"),
        ("name: small", "as is a.yaml. Give one of them another name."),
        ("x" * 1_000_001, "larger than 1,000,000 bytes"),
    ],
)
def test_one_that_is_wrong_is_said_and_spoils_no_other(folder: Path, text: str, why: str) -> None:
    (folder / "a.yaml").write_text(PIPELINE)
    (folder / "b.yml").write_text(text)
    assert [place.name for place in places()] == ["small"]
    (wrong,) = misplaced()
    assert wrong.file.name == "b.yml"
    assert why in wrong.problem


def test_a_name_that_is_none_is_a_sentence(folder: Path) -> None:
    (folder / "a.yaml").write_text(PIPELINE)
    with pytest.raises(PipelineError, match=r"no pipeline '../small'.* There are: small"):
        place_of("../small")


def test_the_schedule_is_checked_with_the_rest(folder: Path) -> None:
    assert parse_pipeline(PIPELINE + "schedule: '@daily'\n", "small.yaml").schedule == "@daily"
    with pytest.raises(PipelineError, match="no cron expression"):
        parse_pipeline(PIPELINE + "schedule: now and then\n", "small.yaml")
