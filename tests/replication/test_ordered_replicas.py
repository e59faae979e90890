"""Replicas that start on the order they see (seed 002): speculative results of the lowest one, corrected, then final."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from spark_jobs.delays import parse_delay
from spark_jobs.detect import Computed, Settings, detect
from spark_jobs.drills.processes import Warm
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.scan import open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.late import set_aside
from spark_jobs.ordered import OrderedDetection
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.replication.outgoing import HELD, Outgoing
from spark_jobs.replication.protocol import Beat, Group, lowest_number
from spark_jobs.runner import InlineRunner
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from tests.conftest import PIPELINE, find, output, small_log, take_in
from tests.replication.processes import RECOVERY, F, Replicas, replicas_of

ORDERED = PIPELINE.replace("A -> B -> C", "A -> !B -> C") + "ordering: {speculation: 0, revise: 1 min}\n"
EVENTS, BATCH_EVENTS = 1_200, 150
# Batches enough that leaders change hands before the work is done, however busy the machine is.
SMALL = 20


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, one of which falls behind by up to 40 s."""
    folder = tmp_path_factory.mktemp("late")
    delay = parse_delay("s1 from 60 s for 400 s by 8 s every 60 s")
    take_in(ordered(), small_log(folder / "landing", EVENTS, delays=(delay,), jitter=3_000_000), Lake(folder / "lake"))
    return folder / "lake"


@pytest.fixture(scope="module")
def expected(late: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """What detection alone publishes: all assertions and retractions."""
    lake = copied(late, tmp_path_factory.mktemp("alone"))
    find(ordered(), lake, batch_events=BATCH_EVENTS)
    assert {"assert", "retract"} == {row["revision"] for row in output(lake)}
    return lake


def ordered() -> Pipeline:
    return parse_pipeline(ORDERED, "small.yaml")


def copied(late: Path, folder: Path) -> Lake:
    shutil.copytree(late, folder / "lake")
    return Lake(folder / "lake")


def test_what_is_held_is_corrected_before_it_is_published(
    late: Path, expected: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that computes ahead takes back what only it has; whoever publishes it, the output is the same."""
    lake, ahead = copied(late, tmp_path), Event()
    compute, publish = OrderedDetection.compute, OrderedDetection.publish

    def computed(self: OrderedDetection, *args: Any) -> Computed:
        found = compute(self, *args)
        if found.batch == HELD:
            ahead.set()
        return found

    def published(self: OrderedDetection, *args: Any) -> None:
        assert ahead.wait(60)
        publish(self, *args)

    monkeypatch.setattr(OrderedDetection, "compute", computed)
    monkeypatch.setattr(OrderedDetection, "publish", published)
    attempt = Attempt(lake, "detect", replica=0)
    with Outgoing(0, Group(1, 0.2, lowest_number), "small", lake, attempt) as outgoing:
        detect(ordered(), lake, InlineRunner(), attempt, Settings(BATCH_EVENTS, 2), outgoing.run)
    assert output(lake) == output(expected)


@pytest.fixture
def replicas(late: Path, tmp_path: Path) -> Iterator[Replicas]:
    with replicas_of(ORDERED + RECOVERY, late, tmp_path, Warm(), SMALL) as group:
        yield group


def test_leaders_die_one_after_the_other_and_always_the_lowest_leads(replicas: Replicas, late: Path, tmp_path: Path) -> None:
    replicas.begin(*range(F + 1))
    for number, done in ((0, 8), (1, 16)):
        replicas.led_by(number, after=done)
        replicas.signal(number, signal.SIGKILL)
        assert replicas.ended(number) == -signal.SIGKILL
    assert replicas.ended(F) == 0, replicas.log()
    lake = replicas.lake
    (alone := tmp_path / "alone").mkdir()
    find(ordered(), copied(late, alone), batch_events=SMALL)
    assert output(lake) == output(Lake(alone / "lake"))
    rows = lake.read("complex_events")
    assert any(rows["speculative"].to_pylist())
    assert {done.verdict for done in verify(ordered(), lake)} == {Verdict.VALID}
    history = read_history(lake)
    commits = [row["batch"] for row in history if (row["kind"], row["name"]) == ("commit", "complex_events")]
    assert sorted(set(commits)) == sorted(commits)
    began = [(row["attempt"], row["batch"]) for row in history if row["name"] == "detect.started"]
    assert len(set(began)) == len(began), "a survivor publishes what it holds"


def test_of_those_that_live_the_lowest_leads_however_slow() -> None:
    beats = [Beat(number, 1, False, latency) for number, latency in ((2, 0.1), (1, 9.0), (3, 0.2))]
    assert lowest_number(beats) == 1


def test_what_comes_too_late_is_set_aside_once_however_many_find_it(
    late: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer sets the same events aside between this one's look and its write."""
    from spark_jobs import late as module

    lake = copied(late, tmp_path)
    log, rows, peers = open_log(lake, ordered().source.schema), module._rows, [1]

    def meanwhile(*args: Any) -> Any:
        found = rows(*args)
        if peers.pop(0) if peers else 0:
            assert set_aside(lake, log, [3, 5]) == 2
        return found

    monkeypatch.setattr(module, "_rows", meanwhile)
    assert set_aside(lake, log, [3, 5, 7]) == 1
    assert sorted(lake.read("late_events")["sn"].to_pylist()) == [3, 5, 7]
