"""Replicas as real processes that are killed, stopped and continued: the output is that of detection alone, each batch once."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.drills.processes import Warm
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from tests.conftest import PIPELINE, find
from tests.replication.processes import RECOVERY, F, Replicas, replicas_of

BATCHES = 50
BATCH_EVENTS = 2_000 // BATCHES


@pytest.fixture(scope="module")
def start() -> Warm:
    return Warm()


@pytest.fixture
def replicas(ingested: Path, tmp_path: Path, start: Warm) -> Iterator[Replicas]:
    with replicas_of(PIPELINE + RECOVERY, ingested, tmp_path, start, BATCH_EVENTS) as group:
        yield group


@pytest.fixture(scope="module")
def expected(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What detection alone publishes."""
    lake = Lake(tmp_path_factory.mktemp("alone") / "lake")
    shutil.copytree(ingested, lake.root)
    find(parse_pipeline(PIPELINE, "small.yaml"), lake, batch_events=BATCH_EVENTS)
    return output(lake)


def output(lake: Lake) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.read("complex_events").sort_by("ordinal").to_pylist()
    return rows


def check(replicas: Replicas, expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same output, every batch once, no file too many, and nothing computed twice by the same replica; the history."""
    assert output(replicas.lake) == expected
    history = read_history(replicas.lake)
    commits = [row["batch"] for row in history if row["kind"] == "commit" and row["name"] == "complex_events"]
    assert len(set(commits)) == len(commits)
    started = [(row["attempt"], row["batch"]) for row in history if row["name"] == "detect.started"]
    assert len(set(started)) == len(started), "a survivor publishes what it holds"
    return history


def files(lake: Lake) -> int:
    return len(list(Path(lake.path("complex_events")).rglob("ce-*.parquet")))


def test_replicas_publish_what_one_would_and_leave_no_file_behind(replicas: Replicas, expected: list[dict[str, Any]]) -> None:
    replicas.begin(*range(F + 1))
    assert [replicas.ended(number) for number in range(F + 1)] == [0, 0, 0], replicas.log()
    history = check(replicas, expected)
    assert files(replicas.lake) == len({row["batch"] for row in expected}), "the others have pruned theirs"
    assert any(row["kind"] == "prune" for row in history)
    assert any(row["kind"] == "leader" for row in history)


def test_all_but_one_are_killed_one_leader_after_the_other(replicas: Replicas, expected: list[dict[str, Any]]) -> None:
    replicas.begin(*range(F + 1))
    alive = set(range(F + 1))
    for done in (5, 12):
        leader = replicas.led_by(*alive, after=done)
        replicas.signal(leader, signal.SIGKILL)
        assert replicas.ended(leader) == -signal.SIGKILL
        alive.remove(leader)
    (last,) = alive
    assert replicas.ended(last) == 0, replicas.log()
    check(replicas, expected)


def test_the_next_leader_is_killed_while_it_is_being_elected(replicas: Replicas, expected: list[dict[str, Any]]) -> None:
    """The leader dies, then, before anybody can have noticed, the one that would follow."""
    replicas.begin(*range(F + 1))
    leader = replicas.led_by(*range(F + 1), after=5)
    latencies = sorted((beat.latency, beat.replica) for beat in replicas.beats() if beat.replica != leader)
    replicas.signal(leader, signal.SIGKILL)
    replicas.signal(latencies[0][1], signal.SIGKILL)
    assert replicas.ended(latencies[1][1]) == 0, replicas.log()
    check(replicas, expected)


def test_a_leader_that_was_stopped_finds_another_one_and_follows(replicas: Replicas, expected: list[dict[str, Any]]) -> None:
    replicas.begin(*range(F + 1))
    leader = replicas.led_by(*range(F + 1), after=5)
    replicas.signal(leader, signal.SIGSTOP)
    others = set(range(F + 1)) - {leader}
    replicas.led_by(*others, after=10)
    replicas.signal(leader, signal.SIGCONT)
    assert [replicas.ended(number) for number in range(F + 1)] == [0, 0, 0], replicas.log()
    history = check(replicas, expected)
    assert any("for dead" in row["name"] for row in history if row["kind"] == "suspicion")


def test_a_replica_that_returns_takes_the_committed_state(replicas: Replicas, expected: list[dict[str, Any]]) -> None:
    replicas.begin(*range(F + 1))
    leader = replicas.led_by(*range(F + 1), after=5)
    replicas.signal(leader, signal.SIGKILL)
    assert replicas.ended(leader) == -signal.SIGKILL
    replicas.begin(leader)
    assert [replicas.ended(number) for number in range(F + 1)] == [0, 0, 0], replicas.log()
    history = check(replicas, expected)
    returned = max(row["attempt"] for row in history if row["kind"] == "attempt" and row["name"] == "detect")
    began = [row["batch"] for row in history if row["attempt"] == returned and row["name"] == "detect.started"]
    assert not began or min(began) > 5, "what was published is not computed again"


def test_replicas_that_have_all_died_are_recovered_by_the_next_start(
    replicas: Replicas, expected: list[dict[str, Any]]
) -> None:
    replicas.begin(*range(F + 1))
    replicas.led_by(*range(F + 1), after=5)
    for number in range(F + 1):
        replicas.signal(number, signal.SIGKILL)
        replicas.ended(number)
    assert len(output(replicas.lake)) < len(expected), "the negative control: with f + 1 failures the output stops"
    replicas.begin(0)
    assert replicas.ended(0) == 0, replicas.log()
    check(replicas, expected)
