"""Killed at every phase of every batch, the output equals the reference, numbers included."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.errors import FencedAttempt, RepriseError
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.phases import DETECT_PHASES, INGEST_PHASES
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.verify.checkers import Evidence, run_checkers
from spark_jobs.verify.comparison import Comparison
from spark_jobs.verify.verdict import Verdict
from tests.conftest import PIPELINE, events_of, find, output, small_log, take_in
from tests.faults.children import await_stop, detecting, kill_at, run_detection
from tests.recovery.strategies import STRATEGIES, every_strategy

BATCHES = 10
BATCH_EVENTS = 200  # of 2,000 events


def drill_copy(ingested: Path, tmp_path: Path) -> Lake:
    shutil.copytree(ingested, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    FaultPlan(lake).allow()
    return lake


@pytest.fixture(scope="session")
def undisturbed(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """The reference run: whole log, one pass, none of the engine."""
    from spark_jobs.lake.scan import open_log
    from spark_jobs.pipeline_file import parse_pipeline
    from spark_jobs.verify.job import make_reference

    pipeline = parse_pipeline(PIPELINE, "small.yaml")
    lake = drill_copy(ingested, tmp_path_factory.mktemp("reference"))
    log = open_log(lake, pipeline.source.schema)
    rows = make_reference(pipeline, "probing", lake, log, log.last_sn).table().drop(["batch"]).to_pylist()
    assert len(rows) > 50, "a reference without matches would prove nothing"
    return [{**row, "version": 1, "inputs": None} for row in rows]


@pytest.mark.parametrize("phase", DETECT_PHASES)
# The batches in between are the simulator's. Every strategy is killed at every phase, one of them in all batches.
@pytest.mark.parametrize(
    ("recovery", "batch"),
    [
        *(("savepoint", batch) for batch in (1, BATCHES // 2, BATCHES)),
        ("savepoint, seldom", 3),
        ("checkpoint", 3),
        ("checkpoint, seldom", 5),
    ],
)
def test_killed_here_the_output_equals_the_reference(
    phase: str, recovery: str, batch: int, ingested: Path, undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    lake, pipeline = drill_copy(ingested, tmp_path), PIPELINE + STRATEGIES[recovery]
    FaultPlan(lake).arm(kill_at(phase, batch))
    assert run_detection(pipeline, lake.root, BATCH_EVENTS) == -signal.SIGKILL
    assert run_detection(pipeline, lake.root, BATCH_EVENTS) == 0
    assert output(lake) == undisturbed
    assert FaultPlan(lake).fired() == [kill_at(phase, batch)]


@every_strategy
def test_killed_once_in_every_batch_and_recovered_ten_times(
    recovery: str, ingested: Path, undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    lake, pipeline = drill_copy(ingested, tmp_path), PIPELINE + recovery
    for batch in range(1, BATCHES + 1):
        FaultPlan(lake).arm(kill_at(DETECT_PHASES[batch % len(DETECT_PHASES)], batch))
    codes = [run_detection(pipeline, lake.root, BATCH_EVENTS) for _ in range(BATCHES + 1)]
    assert codes == [-signal.SIGKILL] * BATCHES + [0]
    assert output(lake) == undisturbed


@pytest.mark.parametrize(
    ("phase", "recovery"),
    [
        ("detect.started", "savepoint"),
        ("detect.written", "savepoint"),
        ("detect.saved", "savepoint"),
        ("detect.saved", "checkpoint"),
        ("detect.saved", "checkpoint, seldom"),
    ],
)
def test_a_zombie_that_wakes_after_its_retry_has_published_changes_nothing(
    phase: str, recovery: str, ingested: Path, undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    lake, pipeline = drill_copy(ingested, tmp_path), PIPELINE + STRATEGIES[recovery]
    zombie = detecting(pipeline, lake.root, BATCH_EVENTS, stop_at=(phase, 4))
    await_stop(zombie.pid)
    assert run_detection(pipeline, lake.root, BATCH_EVENTS) == 0
    assert output(lake) == undisturbed
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(60)
    assert zombie.exitcode == FencedAttempt.exit_code
    assert output(lake) == undisturbed
    assert [row for row in read_history(lake) if row["kind"] == "fence"]


@pytest.mark.parametrize("recovery", ["savepoint", "checkpoint, seldom"])
def test_two_drivers_at_once_publish_every_batch_once(
    recovery: str, ingested: Path, undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    lake, pipeline = drill_copy(ingested, tmp_path), PIPELINE + STRATEGIES[recovery]
    rivals = [detecting(pipeline, lake.root, 50) for _ in range(3)]
    for rival in rivals:
        rival.join(120)
    assert {rival.exitcode for rival in rivals} <= {0, FencedAttempt.exit_code}
    assert run_detection(pipeline, lake.root, 50) == 0
    assert output(lake) == undisturbed


def test_history_survives_the_kill_and_names_it(ingested: Path, tmp_path: Path) -> None:
    lake = drill_copy(ingested, tmp_path)
    FaultPlan(lake).arm(kill_at("detect.saved", 3))
    run_detection(PIPELINE, lake.root, BATCH_EVENTS)
    run_detection(PIPELINE, lake.root, BATCH_EVENTS)
    history = read_history(lake)
    (fault,) = [row for row in history if row["kind"] == "fault"]
    assert (fault["name"], fault["batch"], fault["detail"]["phase"]) == ("kill_driver", 3, "detect.saved")
    replays = [row["detail"] for row in history if row["kind"] == "replay"]
    assert replays[0]["processed"] == 0
    assert replays[1]["processed"] == 2 * BATCH_EVENTS
    assert 0 < replays[1]["events"] < replays[1]["processed"]
    again = read_history(lake)
    assert len(again) == len(history), "folding twice must not double a record"


def test_damaged_and_missing_journals_stop_nobody_and_no_attempt_number_is_used_twice(ingested: Path, tmp_path: Path) -> None:
    lake = drill_copy(ingested, tmp_path)
    with next((lake.root / "_journal").glob("*.jsonl")).open("a") as journal:
        journal.write("garbage\n")
    assert run_detection(PIPELINE, lake.root, BATCH_EVENTS) == 0
    assert [row["kind"] for row in read_history(lake)].count("damaged") == 1
    last = max(row["attempt"] for row in read_history(lake))
    shutil.rmtree(lake.root / "_journal")
    assert run_detection(PIPELINE, lake.root, BATCH_EVENTS) == 0
    assert max(row["attempt"] for row in read_history(lake)) == last + 1


def test_scratch_files_of_killed_attempts_are_swept(ingested: Path, tmp_path: Path) -> None:
    lake = drill_copy(ingested, tmp_path)
    FaultPlan(lake).arm(kill_at("detect.matched", 1))
    run_detection(PIPELINE, lake.root, BATCH_EVENTS)
    assert list((lake.root / "_scratch").iterdir())
    run_detection(PIPELINE, lake.root, BATCH_EVENTS)
    assert not list((lake.root / "_scratch").iterdir())


@pytest.mark.parametrize("phase", INGEST_PHASES)
def test_killed_during_ingest_every_event_is_there_once(phase: str, pipeline: Pipeline, tmp_path: Path) -> None:
    landing = small_log(tmp_path / "landing", 500)
    lake = Lake(tmp_path / "lake")
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(kill_at(phase, 1))
    pipeline_file = tmp_path / "small.yaml"
    pipeline_file.write_text(PIPELINE)
    command = [sys.executable, "-m", "spark_jobs", "ingest", str(pipeline_file), "--landing", str(landing)]
    command += ["--lake", str(lake.root), "--master", "inline"]
    codes = [subprocess.run(command, capture_output=True, check=False).returncode for _ in range(2)]
    assert codes == [-signal.SIGKILL, 0]
    undisturbed = Lake(tmp_path / "undisturbed")
    take_in(pipeline, landing, undisturbed)
    assert events_of(lake) == events_of(undisturbed)


def test_a_fault_that_did_not_fire_makes_the_verdict_unknown(pipeline: Pipeline, ingested: Path, tmp_path: Path) -> None:
    lake = drill_copy(ingested, tmp_path)
    FaultPlan(lake).arm(kill_at("detect.saved", 99))
    find(pipeline, lake)
    evidence = Evidence(Comparison(), 2000, 2000, 2000, faults_armed=1, faults_fired=len(FaultPlan(lake).fired()))
    verdicts = {finding.property: finding.verdict for finding in run_checkers(evidence)}
    assert verdicts["faults fired"] is Verdict.UNKNOWN


def test_faults_are_refused_outside_a_drills_own_lake(ingested: Path, tmp_path: Path) -> None:
    shutil.copytree(ingested, tmp_path / "production")
    with pytest.raises(RepriseError, match="not a drill's own lake"):
        FaultPlan(Lake(tmp_path / "production")).arm(kill_at("detect.saved", 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kil_driver:detect.saved@3", "did you mean 'kill_driver'"),
        ("kill_driver:detect.savd@3", "did you mean 'detect.saved'"),
        ("kill_driver", "does not say where"),
        ("kill_driver:detect.saved@0", "names no batch"),
        ("kill_driver:detect.saved@x", "names no batch"),
        ("kill_driver:detect.saved", "is not a fault"),
        ("kill_driver:detect.saved@3:NO", "names no operator"),
        ("kill_driver:detect.saved@3/1", "only the tasks of shards"),
        ("kill_driver:match.read@3", "cannot strike there"),
        ("lose_answer:detect.started@3", "cannot strike there"),
        ("kill_driver:detect.saved@3*0", "names no number of times"),
        ("kill_driver:detect.saved@3*99", "1 to 20 times"),
        ("kill_driver:detect.published@3*2", "is reached once"),
        ("kill_driver:99s", "at most 60 s"),
        ("zombie:2s", "at a phase, not at a time"),
        ("deliver_twice:detect.saved@3", "before it is ingested"),
        ("what is this", "is not a fault"),
    ],
)
def test_a_wrong_fault_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(RepriseError, match=message):
        parse_fault(text)
