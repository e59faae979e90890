"""One replica at work, in this process: what it does when others have published, or have cut their batches elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_jobs.detect import Computed, Detected, Detection, Settings, detect
from spark_jobs.drills.processes import awaited
from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import Fault, parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.feeds import Reach
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.tables import Lake, file_names
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.recovery.savepoint import Savepoint
from spark_jobs.replication.outgoing import Outgoing
from spark_jobs.replication.protocol import Beat, Group, Output, Publish, Send
from spark_jobs.runner import InlineRunner
from spark_jobs.versions import resolve
from tests.conftest import PIPELINE, find

BATCH_EVENTS = 400


@pytest.fixture
def mine(ingested: Path, tmp_path: Path) -> Lake:
    shutil.copytree(ingested, tmp_path / "mine")
    return Lake(tmp_path / "mine")


@pytest.fixture(scope="module")
def expected(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    lake = Lake(tmp_path_factory.mktemp("alone") / "lake")
    shutil.copytree(ingested, lake.root)
    find(parse_pipeline(PIPELINE, "small.yaml"), lake)
    return output(lake)


def output(lake: Lake) -> list[dict[str, Any]]:
    """Without the number of the batch, which depends on who has cut it."""
    rows = lake.read("complex_events").sort_by("ordinal").drop_columns(["batch"]).to_pylist()
    return [dict(row) for row in rows]


def replicate(pipeline: Pipeline, lake: Lake) -> list[Detected]:
    """Be the only replica of a group."""
    attempt = Attempt(lake, "detect", replica=0)
    with Outgoing(0, Group(1, 0.2), pipeline.name, lake, attempt) as outgoing:
        return detect(pipeline, lake, InlineRunner(), attempt, Settings(BATCH_EVENTS, 2), outgoing.run)


def one_batch(pipeline: Pipeline, lake: Lake, events: int) -> None:
    """A peer with batches of another size, or a log of another length, publishes one."""
    graph = Graph(pipeline, lake)
    (version,) = resolve(lake, pipeline, graph.admit).values()
    attempt = Attempt(lake, "detect")
    detection = Detection(graph, version, InlineRunner(), attempt, Settings(events, 2), lake.scratch(f"peer-{attempt.number}"))
    place = detection.claimed()
    savepoint = detection.resumed(place.handle).savepoint
    reach = detection.next(savepoint)
    assert reach is not None
    detection._batch(place, savepoint, reach, Detected("probing", 0))


def while_computing(patch: pytest.MonkeyPatch, batch: int, happens: Callable[[], object]) -> None:
    """Let something happen when the replica has computed a batch and does not hold it yet."""
    compute, waiting = Detection.compute, [happens]

    def computed(self: Detection, savepoint: Savepoint, reach: Reach, done: Detected) -> Computed:
        found = compute(self, savepoint, reach, done)
        if self.attempt.replica is not None and found.batch == batch and waiting:
            # What it held before is published by then, so that its other thread does not come between.
            assert awaited(lambda: self.claimed().step == batch - 1, 60)
            waiting.pop()()
        return found

    patch.setattr(Detection, "compute", computed)


def files(lake: Lake) -> set[str]:
    return {file.name for file in Path(lake.path("complex_events")).rglob("ce-*.parquet")}


def check(lake: Lake, expected: list[dict[str, Any]]) -> list[str]:
    """The right output, and no file that no table names; the reasons why the replica went elsewhere."""
    assert output(lake) == expected
    assert files(lake) == {Path(name).name for name in file_names(DeltaTable(lake.path("complex_events")))}
    return [row["detail"]["reason"] for row in read_history(lake) if row["kind"] == "fence"]


def test_a_replica_alone_publishes_all(pipeline: Pipeline, mine: Lake, expected: list[dict[str, Any]]) -> None:
    (done,) = replicate(pipeline, mine)
    assert (done.batches, done.events) == (5, 2_000)
    assert check(mine, expected) == []


def test_a_replica_that_was_overtaken_takes_the_committed_state(
    pipeline: Pipeline, mine: Lake, expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    while_computing(monkeypatch, 2, lambda: find(pipeline, mine, batch_events=BATCH_EVENTS))
    (done,) = replicate(pipeline, mine)
    assert done.batches < 5
    assert any("goes on from there" in reason for reason in check(mine, expected))


def test_what_was_computed_from_another_cut_is_not_published(
    pipeline: Pipeline, mine: Lake, expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer's batch 1 ends elsewhere, so this replica's batch 2 does not follow from it, whatever its number says."""
    while_computing(monkeypatch, 1, lambda: one_batch(pipeline, mine, 250))
    replicate(pipeline, mine)
    check(mine, expected)
    commits = [
        row["detail"]["events"] for row in read_history(mine) if (row["kind"], row["name"]) == ("commit", "complex_events")
    ]
    assert commits[:2] == [250, 400]
    assert sum(commits) == 2_000


def test_a_last_batch_that_a_peer_has_cut_shorter_is_not_the_end(
    pipeline: Pipeline, mine: Lake, expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the peer began, the log was shorter; what came since is not lost."""
    while_computing(monkeypatch, 5, lambda: one_batch(pipeline, mine, 100))
    replicate(pipeline, mine)
    check(mine, expected)


@pytest.mark.parametrize("fault", ["raise_error:detect.saved@2", "lose_request:detect.saved@2"])
def test_an_error_while_publishing_ends_the_replica(
    fault: str, pipeline: Pipeline, mine: Lake, expected: list[dict[str, Any]]
) -> None:
    plan = FaultPlan(mine)
    plan.allow()
    plan.arm(parse_fault(fault))
    with pytest.raises(RepriseError):
        replicate(pipeline, mine)
    replicate(pipeline, mine)
    assert output(mine) == expected


def test_a_lost_answer_is_looked_up(pipeline: Pipeline, mine: Lake, expected: list[dict[str, Any]]) -> None:
    plan = FaultPlan(mine)
    plan.allow()
    plan.arm(parse_fault("lose_answer:detect.saved@2"))
    replicate(pipeline, mine)
    check(mine, expected)


def test_heartbeats_do_not_wait_behind_what_is_to_be_published(mine: Lake) -> None:
    """A new leader with a full queue would be taken for dead; and of two heartbeats the later one says it all."""
    outgoing = Outgoing(0, Group(1, 0.2), "small", mine, Attempt(mine, "detect", replica=0))
    held = [Publish(Output("probing/1", number)) for number in (1, 2)]
    beats = [Send(Beat(0, count, True, 0.1), election=False) for count in (1, 2)]
    with outgoing._changed:
        outgoing._add([*held, beats[0]])
        outgoing._add([beats[1]])
    assert list(outgoing._actions) == [beats[1], *held]


def test_a_fault_may_be_meant_for_one_replica(mine: Lake) -> None:
    fault = parse_fault("kill_driver:detect.saved@3#1*2")
    assert fault == Fault("kill_driver", "detect.saved", 3, replica=1, times=2)
    assert parse_fault(str(fault)) == fault
    plan = FaultPlan(mine)
    plan.allow()
    plan.arm(fault)
    assert [len(Attempt(mine, "detect", replica=number).waiting) for number in (None, 0, 1)] == [0, 0, 1]
