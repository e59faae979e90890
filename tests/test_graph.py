"""Operators that feed operators: what is found does not depend on how, where and in how many attempts it was computed."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from spark_jobs.detect import Detection
from spark_jobs.errors import FencedAttempt
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.commit import Claim
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import Runner
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from tests.conftest import find, output, small_log, take_in
from tests.faults.children import detecting, kill_at, run_detection
from tests.graphs import GRAPH, LEVELS
from tests.recovery.strategies import STRATEGIES

PIPELINE = parse_pipeline(GRAPH, "graph.yaml")
TEXT = GRAPH.replace("{of: FIRST(X.type)", "{first: FIRST(X.type)")  # `of` is a column of revised output
Rows = list[dict[str, object]]


def copy(ingested: Path, folder: Path) -> Lake:
    shutil.copytree(ingested, folder / "lake")
    return Lake(folder / "lake")


@pytest.fixture(scope="module")
def expected(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """One batch per operator, one shard; the reference run, which shares none of the recovery code, agrees."""
    lake = copy(ingested, tmp_path_factory.mktemp("graph"))
    find(PIPELINE, lake, 100_000, 1)
    rows = output(lake)
    counts = {name: sum(row["operator"] == name for row in rows) for level in LEVELS for name in level}
    assert min(counts.values()) > 5, f"an operator without matches would prove nothing: {counts}"
    done = verify(PIPELINE, lake)
    assert {verified.operator: verified.verdict for verified in done} == dict.fromkeys(counts, Verdict.VALID)
    return rows


@pytest.mark.parametrize(("batch_events", "shards"), [(97, 2), (300, 5), (701, 1)])
def test_the_cut_into_batches_and_shards_does_not_show(
    batch_events: int, shards: int, ingested: Path, tmp_path: Path, expected: Rows
) -> None:
    lake = copy(ingested, tmp_path)
    find(PIPELINE, lake, batch_events, shards)
    assert output(lake) == expected


def test_spark_gives_the_same(ingested: Path, tmp_path: Path, expected: Rows, spark: Runner) -> None:
    lake = copy(ingested, tmp_path)
    find(PIPELINE, lake, 900, 2, spark)
    assert output(lake) == expected


# Dying together

LATE = [["probing", "pairs"], ["rising", "crowd", "alarm"], ["quiet", "echo", "alarm", "pairs"]]


@pytest.mark.parametrize(
    ("phase", "recovery"),
    [
        ("detect.matched", "savepoint"),
        ("detect.saved", "savepoint"),
        ("detect.published", "savepoint"),
        ("detect.published", "savepoint, seldom"),
        ("detect.published", "checkpoint"),
    ],
)
def test_every_operator_dies_once_at_this_phase(
    phase: str, recovery: str, ingested: Path, tmp_path: Path, expected: Rows
) -> None:
    """One after the other, each in its first batch; what it has not published yet, nobody downstream has seen."""
    lake = copy(ingested, tmp_path)
    FaultPlan(lake).allow()
    names = [name for level in LEVELS for name in level]
    for name in names:
        FaultPlan(lake).arm(kill_at(phase, 1, name))
    codes = [run_detection(GRAPH + STRATEGIES[recovery], lake.root, 700) for _ in range(len(names) + 1)]
    assert codes == [-signal.SIGKILL] * len(names) + [0]
    assert output(lake) == expected


@pytest.mark.parametrize("dying", LATE, ids=" ".join)
def test_neighbours_die_together_and_again_while_they_recover(
    dying: list[str], ingested: Path, tmp_path: Path, expected: Rows
) -> None:
    lake = copy(ingested, tmp_path)
    FaultPlan(lake).allow()
    for name in dying:
        for phase in ("detect.matched", "detect.saved", "detect.published"):
            FaultPlan(lake).arm(kill_at(phase, 1, name))
    for _ in range(3 * len(dying)):
        assert run_detection(GRAPH, lake.root, 600) == -signal.SIGKILL
    assert run_detection(GRAPH, lake.root, 600) == 0
    assert output(lake) == expected


def test_rivals_on_a_graph_publish_every_batch_once(ingested: Path, tmp_path: Path, expected: Rows) -> None:
    lake = copy(ingested, tmp_path)
    rivals = [detecting(GRAPH, lake.root, 150) for _ in range(2)]
    for rival in rivals:
        rival.join(240)
    assert {rival.exitcode for rival in rivals} <= {0, FencedAttempt.exit_code}
    assert run_detection(GRAPH, lake.root, 150) == 0
    assert output(lake) == expected


@pytest.mark.parametrize("more", [STRATEGIES["savepoint, seldom"], "ordering: {speculation: 0.3}\n"])
def test_who_was_overtaken_goes_on_from_what_the_other_one_has_committed(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events come and a rival takes them all the way down, when this attempt has begun and not yet claimed its place."""
    pipeline, lake, landing = (
        parse_pipeline(TEXT + more, "graph.yaml"),
        Lake(tmp_path / "lake"),
        small_log(tmp_path / "landing"),
    )
    first, *rest = sorted({file.parent for file in landing.rglob("*.parquet")})
    arrive(first, landing, tmp_path / "arrived")
    take_in(pipeline, tmp_path / "arrived", lake)
    claimed, begun = Detection.claimed, []

    def overtaken(self: Detection) -> Claim:
        if self.operator.name == "alarm" and not begun:
            begun.append(self)
            for partition in rest:
                arrive(partition, landing, tmp_path / "arrived")
            take_in(pipeline, tmp_path / "arrived", lake)
            find(pipeline, lake, 300)
        return claimed(self)

    monkeypatch.setattr(Detection, "claimed", overtaken)
    for _ in range(2):
        find(pipeline, lake, 300)
    assert begun
    assert {verified.verdict for verified in verify(pipeline, lake)} == {Verdict.VALID}


def arrive(partition: Path, landing: Path, arrived: Path) -> None:
    shutil.copytree(partition, arrived / partition.relative_to(landing))


def test_a_log_that_grows_partition_by_partition_is_valid_in_the_end(tmp_path: Path) -> None:
    """Detection follows ingest; operators further down go on with what is new, also when that is only time passing."""
    lake, landing = Lake(tmp_path / "lake"), small_log(tmp_path / "landing")
    partitions = sorted({file.parent for file in landing.rglob("*.parquet")})
    for partition in partitions:
        arrive(partition, landing, tmp_path / "arrived")
        take_in(PIPELINE, tmp_path / "arrived", lake)
        find(PIPELINE, lake, 500)
    assert len(partitions) > 1
    done = verify(PIPELINE, lake)
    assert {verified.verdict for verified in done} == {Verdict.VALID}
