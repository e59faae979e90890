"""The command line as a person meets it: in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from spark_jobs import cli
from spark_jobs.pipeline import Pipeline
from tests.conftest import PIPELINE, small_log

ROOT = Path(__file__).resolve().parents[1]


def reprise(*arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-m", "spark_jobs", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    return said


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(PIPELINE)
    return tmp_path / "small.yaml"


def test_help_names_every_command_and_every_option_is_explained() -> None:
    said = reprise("--help")
    commands = ["generate", "ingest", "detect", "run", "reference", "verify", "drill", "report", "show", "bench"]
    assert all(command in said for command in commands)
    for command in commands:
        assert "Usage: reprise" in reprise(command, "--help").replace("python -m spark_jobs", "reprise")


def test_the_whole_way_by_hand(file: Path, tmp_path: Path) -> None:
    lake, landing = tmp_path / "lake", tmp_path / "landing"
    reprise("generate", "--out", landing, "--events", 1000, "--types", 3, "--keys", 5, "--format", "csv", "--poison", 3)
    said = reprise("run", file, "--landing", landing, "--lake", lake, "--batch-events", 300, "--master", "inline")
    assert "ingested 997 of 1,000 rows" in said
    assert "3 quarantined" in said
    verdict = json.loads(reprise("verify", file, "--lake", lake, "--json"))
    assert verdict["verdict"] == "valid"
    assert verdict["matches"] == verdict["reference_matches"] > 0
    assert "dead letter" not in reprise("show", "savepoints", "--lake", lake)
    assert "time is missing" in reprise("show", "quarantine", "--lake", lake)
    assert "detect.published" in reprise("show", "history", "--lake", lake, "--limit", 200)
    (match,) = [json.loads(line) for line in reprise("show", "matches", "--lake", lake, "--limit", 1, "--json").splitlines()]
    assert match["ordinal"] == verdict["matches"]
    reprise("report", file, "--lake", lake, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "came out exactly once" in page
    assert "http://" not in page
    assert "https://" not in page


def test_a_damaged_output_is_invalid_and_exits_with_1(file: Path, tmp_path: Path, pipeline: Pipeline) -> None:
    from deltalake import DeltaTable

    lake = tmp_path / "lake"
    small_log(tmp_path / "landing")
    reprise("run", file, "--landing", tmp_path / "landing", "--lake", lake, "--master", "inline")
    DeltaTable(str(lake / "complex_events")).delete("ordinal = 3")
    said = reprise("verify", file, "--lake", lake, code=1)
    assert "no false negatives" in said
    reprise("report", file, "--lake", lake, "--out", tmp_path / "report.html", code=1)
    page = (tmp_path / "report.html").read_text()
    assert "is not what the reference run says" in page


def test_an_unfinished_output_is_unknown_and_exits_with_2(file: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_log(tmp_path / "landing", 300)
    reprise("ingest", file, "--landing", tmp_path / "landing", "--lake", lake, "--master", "inline")
    assert "300 of 300 events are not processed yet" in reprise("verify", file, "--lake", lake, code=2)


def test_what_cannot_be_read_is_unknown_and_never_a_stack_trace(file: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_log(tmp_path / "landing", 300)
    reprise("run", file, "--landing", tmp_path / "landing", "--lake", lake, "--master", "inline")
    damaged = next((lake / "complex_events").glob("operator=*/**/*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:20])
    assert "do not fit the checksum in its name" in reprise("verify", file, "--lake", lake, code=2)
    assert "A file or a table could not be read" in reprise("show", "matches", "--lake", lake, code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.yaml", "--landing", "x", "--lake", "x"], "no such file"),
        (["verify", "FILE", "--lake", "nowhere"], "does not exist"),
        (["show", "savepoint", "--lake", "."], "did you mean 'savepoints'"),
        (["detect", "FILE", "--lake", "TMP/nowhere", "--master", "inline"], "does not exist"),
        (["show", "matches"], "--lake DIR"),
        (["bench", "lop"], "did you mean 'loop'"),
        (["drill", "FILE", "--fault", "kill_jvm:detect.saved@3", "--master", "inline"], "needs Spark"),
        (["drill", "FILE", "--fault", "kill_executor:match.read@3"], "needs a Spark cluster"),
        (["drill", "FILE", "--fault", "kill_task:detect.saved@3"], "needs an Airflow"),
        (["drill", "FILE", "--fault", "kill_driver:trim.written@1"], "a drill does not trim"),
        (["drill", "FILE", "--plan", "nowhere.yaml"], "does not exist"),
        (["drill", "FILE", "--fault", " "], "names no fault"),
        (["arm", "FILE", "--lake", "L", "--seed", "abc"], "takes a whole number"),
        (["drill", "FILE", "--fault", "kill_driver:detect.savd@3"], "did you mean 'detect.saved'"),
        (["drill", "FILE", "--fault", "kill_driver:detect.saved@3:probin"], "did you mean 'probing'"),
        (["drill", "FILE", "--fault", "kill_driver:ingest.staged@1:probing"], "only phases of detection belong to an operator"),
        (["generate", "--out", "TMP/new", "--events", "5", "--format", "xml"], "unknown format"),
        (["generate", "--out", ".", "--events", "5"], "is not empty"),
        (["generate", "--out", "TMP/new", "--events", "-5"], "must not be negative"),
        (["ingest", "FILE", "--landing", "nowhere", "--lake", "TMP/lake", "--master", "inline"], "nothing was ingested"),
    ],
)
def test_a_mistake_is_a_sentence_and_never_a_stack_trace(
    arguments: list[str], message: str, file: Path, tmp_path: Path
) -> None:
    given = [word.replace("FILE", str(file)).replace("TMP", str(tmp_path)) for word in arguments]
    assert message in reprise(*given, code=2)


def said_at_the_end(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """The exit code and the words of a command that is ended by an error."""

    def ended_by() -> None:
        raise error

    app = typer.Typer()
    app.command()(ended_by)
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["reprise"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return ended.value.code, " ".join(capsys.readouterr().err.split())


def test_ctrl_c_says_what_stands_and_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = said_at_the_end(KeyboardInterrupt(), monkeypatch, capsys)
    assert code == 130
    assert "interrupted. What was committed before stands" in said


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (PermissionError(13, "Permission denied", "lake"), "Give this user the right to read and write there"),
        (OSError(30, "Read-only file system", "lake"), "Give this user the right to read and write there"),
        (OSError(28, "No space left on device", "lake"), "Make room on that disk"),
        (OSError(5, "Input/output error", "lake"), "'reprise verify' says what of the output is whole"),
    ],
)
def test_trouble_with_files_comes_with_a_next_step(
    error: OSError, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = said_at_the_end(error, monkeypatch, capsys)
    assert code == 1
    assert "What was committed before stands" in said
    assert step in said


def test_an_empty_landing_folder_is_said_to_be_empty(file: Path, tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    said = reprise("run", file, "--landing", tmp_path / "landing", "--lake", tmp_path / "lake", "--master", "inline")
    assert "there is no landing file below" in said


def test_names_of_files_cannot_inject_markup_into_the_report(tmp_path: Path, file: Path) -> None:
    landing = tmp_path / "landing" / "date=2026-01-01" / "hour=00" / "source=s0"
    landing.mkdir(parents=True)
    (landing / "<script>alert(1)<!--.jsonl").write_text('{"broken\n')
    file.write_text(PIPELINE.replace("quarantine_limit: 0.5", "quarantine_limit: 1.0"))
    lake = tmp_path / "lake"
    reprise("run", file, "--landing", tmp_path / "landing", "--lake", lake, "--master", "inline")
    reprise("verify", file, "--lake", lake)
    reprise("report", file, "--lake", lake, "--out", tmp_path / "report.html")
    assert "<script>" not in (tmp_path / "report.html").read_text()
