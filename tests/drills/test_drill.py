"""Drills as people run them: plan files, refusals, time limits, nothing left behind."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from schemas import quarantine
from spark_jobs.drills.drill import Drill, _outcome, check_drill, run_drill
from spark_jobs.drills.judge import _quarantined
from spark_jobs.drills.processes import MARK, Program, Warm, awaited, leftovers
from spark_jobs.drills.work import Work
from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.script import World, draw, load_plan
from spark_jobs.lake.tables import Lake
from spark_jobs.verify.verdict import Verdict
from tests.conftest import PIPELINE, small_log
from tests.drills.browser import checked_offline
from tests.test_cli import reprise

WORLD = World(operators=("probing",), batches=5)


def drill_of(tmp_path: Path, *faults: str, **more: object) -> Drill:
    (tmp_path / "small.yaml").write_text(PIPELINE)
    chosen = tuple(parse_fault(fault) for fault in faults)
    landing = tmp_path / "landing"
    if not landing.exists():
        small_log(landing)
    drill = Drill(tmp_path / "small.yaml", chosen, 2_000, 400, landing, tmp_path / "drill", "inline")
    return replace(drill, **more)


def test_a_drill_with_faults_of_four_groups_is_valid_and_its_report_says_what_happened(tmp_path: Path) -> None:
    drill = drill_of(
        tmp_path, "kill_driver:detect.saved@3", "lose_answer:detect.saved@4", "flip_output:detect.finished@4", "deliver_twice:1"
    )
    outcome = run_drill(drill)
    assert (outcome.verdict, outcome.why, outcome.leftovers) == (Verdict.VALID, "", [])
    assert outcome.tries["detect"] == 2
    page = checked_offline(tmp_path / "drill" / "report.html")
    for said in (
        "SIGKILL to the driver",
        "delivered twice",
        "Flip a bit",
        "Healed",
        "Nothing: the output can be used",
        "Data Docs",
        "Where the time went",
        "savepoint and commit",
    ):
        assert said in page, said


def test_an_error_of_many_lines_is_shown_and_a_read_only_table_is_survived(tmp_path: Path) -> None:
    """delta-rs says it in several lines and in colours; the drill goes on showing what happens."""
    lines: list[str] = []
    outcome = run_drill(drill_of(tmp_path, "read_only:detect.saved@2"), lines.append)
    assert outcome.verdict is Verdict.VALID, outcome
    assert all(line.partition(" ")[0].replace(".", "").isdigit() for line in lines)
    assert any("healed: made the folders of the tables writable" in line for line in lines)


def test_a_fault_that_the_input_has_no_place_for_ends_the_drill_unknown(tmp_path: Path) -> None:
    outcome = run_drill(drill_of(tmp_path, "drop_partition:1"))
    assert outcome.verdict is Verdict.UNKNOWN
    assert "step deliver ended with exit code 2" in outcome.why
    assert "no source has three hours" in (tmp_path / "drill" / "drill.log").read_text()


def test_a_drill_that_hangs_is_ended_at_its_time_limit_and_unknown(tmp_path: Path) -> None:
    hang = Program((sys.executable, "-c", "import signal; signal.pause()"))  # until somebody ends it
    outcome = run_drill(drill_of(tmp_path, "kill_driver:detect.saved@3", time_limit=1.0, start=hang))
    assert outcome.verdict is Verdict.UNKNOWN
    assert "time limit of 1 s" in outcome.why


def test_what_a_drill_leaves_running_is_found_and_ended() -> None:
    environment = {**os.environ, MARK: "a-test"}
    stray = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    try:
        (found,) = leftovers("a-test", grace=0.2)
        assert "sleep 600" in found
        assert stray.wait(10) == -signal.SIGKILL
    finally:
        stray.kill()
    assert leftovers("a-test") == []


def test_a_process_without_its_mark_is_found_by_its_session() -> None:
    """A forked process shows the environment of the one that it was forked from."""
    stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        assert len(leftovers("another-test", {stray.pid}, grace=0.2)) == 1
        assert stray.wait(10) == -signal.SIGKILL
    finally:
        stray.kill()


def test_who_starts_warm_commands_can_still_use_spark(tmp_path: Path) -> None:
    """The fork server has loaded Great Expectations without it."""
    assert Warm()(["show", "--help"], dict(os.environ), tmp_path / "log").wait(60) == 0
    assert sys.modules.get("pyspark", "not loaded yet") is not None


def test_valid_counts_only_if_the_verification_came_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"verdict": "valid"}')
    work = Work(tmp_path, 0)
    assert _outcome(tmp_path, "", 1.0, work, []).verdict is Verdict.VALID
    work.codes["verify"] = -signal.SIGKILL
    outcome = _outcome(tmp_path, "", 1.0, work, [])
    assert outcome.verdict is Verdict.UNKNOWN
    assert "exit code -9" in outcome.why


def test_rows_of_other_partitions_are_no_trace_of_a_spoiled_one(lake: Lake) -> None:
    row = {"file": "date=1/hour=2/source=s1/part-0.parquet", "row": 1, "reason": "", "digest": "", "ingest": 1}
    at = dt.datetime.now(dt.UTC)
    lake.append("quarantine", pa.Table.from_pylist([{**row, "at": at}] * 5, quarantine.SCHEMA))
    for partition, found in (("date=1/hour=2/source=s1", True), ("date=1/hour=2/source=s2", False)):
        history = [{"kind": "fault", "name": "poison_rows", "detail": {"partition": partition}}]
        assert _quarantined("poison_rows", 3)(history, lake) is found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_a_drill_ends_its_processes(how: signal.Signals, tmp_path: Path) -> None:
    drill = drill_of(tmp_path, "kill_driver:detect.saved@3")
    mark = f"{how.name}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", "drill", str(drill.pipeline), "--out", str(drill.out), "--master", "inline"],
        env={**os.environ, "REPRISE_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(how, signal.SIG_DFL),  # who runs tests in the background may ignore SIGINT
    )
    try:
        assert awaited((tmp_path / "drill" / "progress.log").exists, 60)
        process.send_signal(how)
        process.wait(60)
    finally:
        process.kill()
    mine = f"REPRISE_TEST_MARK={mark}".encode()
    assert not [p for p in Path("/proc").glob("[0-9]*/environ") if os.access(p, os.R_OK) and mine in _bytes(p)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faults: [kill_driver:detect.saved@3, {kind: lose_answer, phase: detect.saved, batch: 2, times: 2}]", ""),
        ("random: {seed: 7, faults: 3}", ""),
        ("faults: [kil_driver:detect.saved@3]", "did you mean 'kill_driver'"),
        ("faults: [{kind: kill_driver, phase: detect.savd}]", "did you mean 'detect.saved'"),
        ("faults: [{kind: kill_driver, phase: detect.saved, batch: 0}]", "faults.0.batch"),
        ("faults: [{kind: kill_driver, phase: detect.saved, when: now}]", "when"),
        ("fault: [kill_driver:detect.saved@3]", "fault: Extra inputs are not permitted"),
        ("faults: []", "names no fault"),
        ("\udcff", "cannot be read"),
        ("just text", "top"),
        ("faults: [", "is not YAML"),
    ],
)
def test_a_plan_file_is_checked_before_anything_starts(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    if message:
        with pytest.raises(RepriseError, match=message):
            load_plan(file, WORLD)
    else:
        assert load_plan(file, WORLD)


def test_the_example_plan_is_fit_to_be_used() -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "faults"
    plans = [load_plan(file, WORLD) for file in sorted(folder.glob("*.yaml"))]
    assert plans
    assert all(plans)


def test_a_drawn_plan_fits_its_world_and_follows_from_its_seed() -> None:
    world = World(operators=("probing",), batches=3, spark=True)
    for seed in range(200):
        (fault,) = draw(seed, world)
        assert draw(seed, world) == [fault]
        check_drill_kind = fault.known
        assert world.has(check_drill_kind)
        assert fault.batch <= 3
        assert parse_fault(str(fault)) == fault, "a fault is what it says"


def test_a_drill_that_cannot_work_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(RepriseError, match="no operator 'probin'"):
        check_drill(drill_of(tmp_path, "kill_driver:detect.saved@3:probin"))
    with pytest.raises(RepriseError, match="needs Spark"):
        run_drill(drill_of(tmp_path, "kill_worker:match.read@3"))
    assert not (tmp_path / "drill").exists()


def test_faults_are_armed_in_other_lakes_only_if_the_pipeline_file_says_so(tmp_path: Path, ingested: Path) -> None:
    import shutil

    shutil.copytree(ingested, tmp_path / "lake")
    pipeline = tmp_path / "small.yaml"
    pipeline.write_text(PIPELINE)
    arm = ["arm", pipeline, "--lake", tmp_path / "lake", "--master", "inline", "--fault", "kill_driver:detect.saved@1"]
    assert "not a drill's own lake" in reprise(*arm, code=2)
    pipeline.write_text(PIPELINE + "allow_faults_in_any_lake: true\n")
    assert "armed: kill_driver:detect.saved@1" in reprise(*arm)
    pipeline.write_text(PIPELINE)
    assert "not a drill's own lake" in reprise(*arm, code=2), "what was allowed once is not allowed for ever"
    assert FaultPlan(Lake(tmp_path / "lake")).waiting() == [], "and what was armed then does not strike"
