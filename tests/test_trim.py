"""Trimming: what every consumer has acknowledged goes, what one of them needs stays, and nothing that is found changes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.errors import RepriseError, TrimmedEventNeeded
from spark_jobs.faults.phases import TRIM_PHASES
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.generate import Recipe, generate
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.scan import open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.trim import Trimmed, trim, vacuum
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from spark_jobs.versions import retire
from tests.conftest import PIPELINE, events_of, find, output, take_in
from tests.faults.children import await_stop, detecting, kill_at, run_detection
from tests.graphs import GRAPH

Rows = list[dict[str, object]]


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The partitions of one log, in order."""
    landing = tmp_path_factory.mktemp("landing") / "log"
    generate(Recipe(3_000, types=4, keys=20, rate=0.2, sources=1), landing)
    found = sorted({file.parent for file in landing.rglob("*.parquet")})
    assert len(found) == 5
    return found


def deliver(partitions: list[Path], folder: Path) -> Path:
    for partition in partitions:
        target = folder / Path(*partition.parts[-3:])
        if not target.exists():
            shutil.copytree(partition, target)
    return folder


def trimmed(pipeline: Pipeline, lake: Lake, hours: int = 0, **options: bool) -> list[Trimmed]:
    done = trim(pipeline, lake, Attempt(lake, "trim"), **options)
    vacuum(lake, hours)
    return done


@pytest.mark.parametrize("text", [PIPELINE, GRAPH], ids=["one operator", "graph"])
def test_trimming_after_every_partition_changes_nothing_that_is_found(
    text: str, partitions: list[Path], tmp_path: Path
) -> None:
    pipeline = parse_pipeline(text, "p.yaml")
    untouched, lake = Lake(tmp_path / "untouched"), Lake(tmp_path / "lake")
    for end in range(1, len(partitions) + 1):
        for target in (untouched, lake):
            take_in(pipeline, deliver(partitions[:end], tmp_path / "landing"), target)
            find(pipeline, target, 300)
        trimmed(pipeline, lake)
        trimmed(pipeline, lake)  # twice is once
    assert output(lake) == output(untouched)
    kept, all_events = events_of(lake), events_of(untouched)
    assert len(kept) < len(all_events) / 2
    assert kept == [event for event in all_events if event["sn"] in {k["sn"] for k in kept}]


def test_what_is_trimmed_is_gone_from_the_disk(pipeline: Pipeline, partitions: list[Path], tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    take_in(pipeline, deliver(partitions, tmp_path / "landing"), lake)
    find(pipeline, lake, 300)
    before = sum(file.stat().st_size for file in Path(lake.path("event_log")).rglob("*.parquet"))
    (done,) = trimmed(pipeline, lake)
    after = sum(file.stat().st_size for file in Path(lake.path("event_log")).rglob("*.parquet"))
    assert done.events == 3_000
    assert done.removed > 2_000
    assert after < before / 2
    (again,) = trimmed(pipeline, lake)
    assert (again.removed, again.files) == (0, 0)


def test_a_plan_of_a_trim_says_what_the_trim_then_does(pipeline: Pipeline, partitions: list[Path], tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    take_in(pipeline, deliver(partitions, tmp_path / "landing"), lake)
    find(pipeline, lake, 300)
    files = sorted(Path(lake.path("event_log")).rglob("*.parquet"))
    planned = trimmed(pipeline, lake, dry_run=True)
    assert sorted(Path(lake.path("event_log")).rglob("*.parquet")) == files
    assert trimmed(pipeline, lake) == planned


def test_an_operator_that_is_only_a_queue_is_trimmed_too(partitions: list[Path], tmp_path: Path) -> None:
    pipeline = parse_pipeline(GRAPH.replace("  rising:\n", "  rising:\n    keep: false\n"), "p.yaml")
    untouched, lake = Lake(tmp_path / "untouched"), Lake(tmp_path / "lake")
    for end in (len(partitions) // 2, len(partitions)):
        for target in (untouched, lake):
            take_in(pipeline, deliver(partitions[:end], tmp_path / "landing"), target)
            find(pipeline, target, 300)
        done = {queue.queue: queue for queue in trimmed(pipeline, lake)}
        assert done["rising"].removed > 0
    rest, everything = output(lake), output(untouched)
    assert [row for row in rest if row["operator"] != "rising"] == [row for row in everything if row["operator"] != "rising"]
    rising = [row for row in rest if row["operator"] == "rising"]
    assert 0 < len(rising) < sum(row["operator"] == "rising" for row in everything) / 2
    assert all(row in everything for row in rising)


def test_numbers_go_on_when_everything_was_trimmed(pipeline: Pipeline, partitions: list[Path], tmp_path: Path) -> None:
    """A pattern that holds nothing lets the whole log go; the next event still has the next number."""
    never = parse_pipeline(PIPELINE.replace("A: type = 'a'", "A: type = 'zebra'"), "p.yaml")
    lake = Lake(tmp_path / "lake")
    take_in(never, deliver(partitions[:2], tmp_path / "landing"), lake)
    find(never, lake, 100)
    last = open_log(lake, never.source.schema).last_sn
    trimmed(never, lake)
    take_in(never, deliver(partitions[:3], tmp_path / "landing"), lake)
    assert min(event["sn"] for event in events_of(lake) if event["sn"] > last) == last + 1
    find(never, lake, 100)


def test_a_partition_delivered_again_after_it_was_trimmed_changes_nothing(
    pipeline: Pipeline, partitions: list[Path], tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    take_in(pipeline, deliver(partitions, tmp_path / "landing"), lake)
    find(pipeline, lake, 300)
    trimmed(pipeline, lake)
    first = next(partitions[0].glob("*.parquet"))
    again = tmp_path / "landing" / Path(*partitions[0].parts[-3:]) / "again.parquet"
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(first, partitioning=None), again, compression="gzip")  # other bytes, same events
    done = take_in(pipeline, tmp_path / "landing", lake)
    assert (done.accepted, done.quarantined) == (0, 0)
    assert done.duplicates == pq.read_metadata(first).num_rows


def test_a_consumer_added_later_is_told_what_it_misses(partitions: list[Path], tmp_path: Path) -> None:
    first, both = parse_pipeline(PIPELINE, "p.yaml"), parse_pipeline(PIPELINE + LATER, "p.yaml")
    lake = Lake(tmp_path / "lake")
    take_in(first, deliver(partitions, tmp_path / "landing"), lake)
    find(first, lake, 300)
    before = output(lake)
    mark = trimmed(first, lake)[0].upto
    with pytest.raises(TrimmedEventNeeded, match=rf"operator 'later' .* was trimmed up to {mark:,}"):
        find(both, lake, 300)
    assert output(lake) == before
    find(first, lake, 300)  # the others are not in the way of each other


LATER = """
  later:
    partition_by: key
    pattern: A -> D
    define: {A: type = 'a', D: type = 'd'}
"""


def test_a_consumer_that_has_not_begun_holds_the_log(partitions: list[Path], tmp_path: Path) -> None:
    """It is known to the lake from the moment it was admitted, before it has published anything."""
    both = parse_pipeline(PIPELINE + LATER, "p.yaml")
    lake = Lake(tmp_path / "lake")
    take_in(both, deliver(partitions, tmp_path / "landing"), lake)
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(kill_at("detect.started", 1, "later"))
    assert run_detection(PIPELINE + LATER, lake.root, 300) == -signal.SIGKILL
    (done,) = trimmed(both, lake)
    assert (done.upto, done.removed, done.held_by) == (0, 0, "later (version 1)")
    find(both, lake, 300)
    assert {v.verdict for v in verify(both, lake)} == {Verdict.VALID}


def test_a_retired_operator_holds_nothing(partitions: list[Path], tmp_path: Path) -> None:
    both, first = parse_pipeline(PIPELINE + LATER, "p.yaml"), parse_pipeline(PIPELINE, "p.yaml")
    lake = Lake(tmp_path / "lake")
    take_in(both, deliver(partitions[:2], tmp_path / "landing"), lake)
    find(both, lake, 300)
    take_in(both, deliver(partitions, tmp_path / "landing"), lake)
    find(first, lake, 300)
    assert trimmed(first, lake)[0].held_by == "later (version 1)"
    held = len(events_of(lake))
    with pytest.raises(RepriseError, match="the pipeline file defines operator 'later'"):
        retire(lake, both, "later")
    retire(lake, first, "later")
    assert trimmed(first, lake)[0].held_by == "probing (version 1)"
    assert len(events_of(lake)) < held
    with pytest.raises(RepriseError, match="no version of operator 'later' is alive"):
        retire(lake, first, "later")
    with pytest.raises(RepriseError, match="operator 'later' was retired: the output stays"):
        find(both, lake, 300)


def test_what_others_read_is_not_retired(partitions: list[Path], tmp_path: Path) -> None:
    graph, lake = parse_pipeline(GRAPH, "p.yaml"), Lake(tmp_path / "lake")
    take_in(graph, deliver(partitions[:1], tmp_path / "landing"), lake)
    find(graph, lake)
    without = parse_pipeline(PIPELINE + LATER, "p.yaml")  # a file that knows nothing of the others
    with pytest.raises(RepriseError, match=r"'rising' is read by crowd \(version 1\), so it is not retired"):
        retire(lake, without, "rising")
    for name in ("alarm", "crowd", "rising"):
        retire(lake, without, name)


def test_an_operator_of_the_file_that_has_not_run_yet_holds_the_log(partitions: list[Path], tmp_path: Path) -> None:
    first, both = parse_pipeline(PIPELINE, "p.yaml"), parse_pipeline(PIPELINE + LATER, "p.yaml")
    lake = Lake(tmp_path / "lake")
    take_in(first, deliver(partitions, tmp_path / "landing"), lake)
    find(first, lake, 300)
    (done,) = trimmed(both, lake)
    assert (done.removed, done.held_by) == (0, "later (as the file has it, it has not run yet)")
    find(both, lake, 300)


def test_a_damaged_savepoint_stops_the_trim(pipeline: Pipeline, partitions: list[Path], tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    take_in(pipeline, deliver(partitions, tmp_path / "landing"), lake)
    find(pipeline, lake, 1_000)
    for file in Path(lake.path("savepoints")).glob("probing-1-00000003-*.parquet"):
        file.write_bytes(b"")
    with pytest.raises(RepriseError, match=r"batch 3, is damaged, so what it still needs is not known\. Nothing was trimmed"):
        trimmed(pipeline, lake)
    assert len(events_of(lake)) == 3_000


def test_trimming_while_detecting(partitions: list[Path], tmp_path: Path) -> None:
    """A detection is stopped in the middle; its files go; it wakes, finds what it needs elsewhere, and goes on."""
    pipeline = parse_pipeline(PIPELINE, "p.yaml")
    undisturbed, lake = Lake(tmp_path / "undisturbed"), Lake(tmp_path / "lake")
    for end in range(1, len(partitions) + 1):
        for target in (undisturbed, lake):
            take_in(pipeline, deliver(partitions[:end], tmp_path / "landing"), target)
    find(pipeline, undisturbed, 300)
    sleeper = detecting(PIPELINE, lake.root, 300, stop_at=("detect.started", 6))
    await_stop(sleeper.pid)
    done = trimmed(pipeline, lake)
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.join(60)
    assert sleeper.exitcode == 0
    assert done[0].files > 0, "without a file that is gone, nothing was tried"
    assert output(lake) == output(undisturbed)


@pytest.mark.parametrize("phase", TRIM_PHASES)
def test_killed_while_trimming_nothing_is_lost(phase: str, pipeline: Pipeline, partitions: list[Path], tmp_path: Path) -> None:
    lake, undisturbed = Lake(tmp_path / "lake"), Lake(tmp_path / "undisturbed")
    for target in (lake, undisturbed):
        take_in(pipeline, deliver(partitions[:2], tmp_path / "landing"), target)
        find(pipeline, target, 300)
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(kill_at(phase, 1))
    (tmp_path / "p.yaml").write_text(PIPELINE)
    command = [
        sys.executable,
        "-m",
        "spark_jobs",
        "trim",
        str(tmp_path / "p.yaml"),
        "--lake",
        str(lake.root),
        "--keep-hours",
        "0",
    ]
    codes = [subprocess.run(command, capture_output=True, check=False).returncode for _ in range(2)]
    assert codes == [-signal.SIGKILL, 0]
    for target in (lake, undisturbed):
        take_in(pipeline, deliver(partitions, tmp_path / "landing"), target)
        find(pipeline, target, 300)
    assert output(lake) == output(undisturbed)
    assert len(events_of(lake)) < 3_000


def test_the_verdict_on_a_trimmed_log_is_unknown(pipeline: Pipeline, partitions: list[Path], tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    take_in(pipeline, deliver(partitions, tmp_path / "landing"), lake)
    find(pipeline, lake, 300)
    trimmed(pipeline, lake)
    (verified,) = verify(pipeline, lake)
    assert verified.verdict is Verdict.UNKNOWN
    assert "the log was trimmed up to event" in verified.findings[0].note
