"""Small logs, event by event, at the edges of matching in order of time: ties, other cuts, corrections that come too late."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_jobs.errors import TrimmedEventNeeded
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.strike import InjectedFailure
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.ordering.revisions import net
from spark_jobs.ordering.states import State, forward
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.trim import trim
from tests.conftest import PIPELINE, find, small_log, take_in

SOURCE = PIPELINE[: PIPELINE.index("  probing:")]
PAIR = "  up: {partition_by: key, pattern: A -> B, define: {A: type = 'a', B: type = 'b'}}\n"
BEGIN = dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)

# Sequence number, second, type, when it was seen, amount.
Row = tuple[int, float, str, float] | tuple[int, float, str, float, float]


def pipeline_of(operators: str, ordering: str) -> Pipeline:
    return parse_pipeline(f"{SOURCE}{operators}ordering: {{{ordering}}}\n", "edges.yaml")


class World:
    """Deliveries one after the other, each ingested as it comes."""

    def __init__(self, folder: Path, pipeline: Pipeline) -> None:
        self.folder, self.pipeline, self.lake, self._files = folder, pipeline, Lake(folder / "lake"), 0

    def land(self, rows: Sequence[Row], *others: Lake) -> None:
        self._files += 1
        file = self.folder / "landing/date=2026-01-01/hour=05/source=s0" / f"part-{self._files}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        names = ("seq", "time", "kind", "seen", "amount")
        full = [dict(zip(names, (*row, 1.0)[:5], strict=True)) for row in rows]
        said = [{**row, "card": "k", "time": _moment(row["time"]), "seen": _moment(row["seen"])} for row in full]
        file.write_text("".join(json.dumps(row) + "\n" for row in said))
        for lake in (self.lake, *others):
            take_in(self.pipeline, self.folder / "landing", lake)

    def copy(self, name: str) -> Lake:
        shutil.copytree(self.lake.root, self.folder / name)
        return Lake(self.folder / name)


def _moment(seconds: Any) -> str:
    return (BEGIN + dt.timedelta(seconds=seconds)).isoformat()


def stands(lake: Lake, operator: str = "up") -> list[list[int]]:
    return [row["sns"] for row in net(lake.read("complex_events")).to_pylist() if row["operator"] == operator]


@pytest.mark.parametrize(
    ("first", "then", "batch", "right"),
    [
        # The second and the third event have the same time, and a batch ends between them.
        (
            [(1, 10, "z", 10), (2, 20, "z", 20), (3, 20, "a", 20.5), (4, 30, "b", 30)],
            [(5, 25, "z", 31), (6, 40, "z", 40), (7, 100, "z", 100)],
            2,
            [[3, 4]],
        ),
        # A whole batch has the time at which the one before it ends.
        (
            [(1, 20, "z", 10), (2, 20, "a", 20)],
            [(5, 25, "z", 31), (6, 40, "z", 40), (7, 30, "z", 41), (8, 50, "b", 50), (9, 90, "z", 90)],
            1,
            [[2, 6]],
        ),
    ],
)
def test_a_batch_may_end_between_events_of_the_same_time(
    first: list[Row], then: list[Row], batch: int, right: list[list[int]], tmp_path: Path
) -> None:
    world = World(tmp_path, pipeline_of(PAIR, ""))
    world.land(first)
    find(world.pipeline, world.lake, batch)
    world.land(then)
    find(world.pipeline, world.lake, batch)
    assert stands(world.lake) == right


def test_who_goes_on_with_fewer_shards_than_there_were_doubles_nothing(tmp_path: Path) -> None:
    """States belong to shards, so their number stays, also where the key is not that of the buckets."""
    operator = "  up: {partition_by: type, pattern: A -> B, define: {A: amount > 20, B: amount > A.amount}, within: 1 min}\n"
    pipeline, lakes = pipeline_of(operator, "speculation: 0"), [Lake(tmp_path / name) for name in ("one", "other")]
    for lake in lakes:
        take_in(pipeline, small_log(tmp_path / "landing" / lake.root.name, 600, jitter=3_000_000), lake)
    find(pipeline, lakes[0], 150, 2)
    with failing(lakes[1], "raise_error:detect.published@2"):
        find(pipeline, lakes[1], 150, 2)
    find(pipeline, lakes[1], 150, 1)
    said = [Counter(tuple(sns) for sns in stands(lake)) for lake in lakes]
    assert said[0] == said[1]
    assert said[0].total() > 20


@contextmanager
def failing(lake: Lake, fault: str) -> Iterator[None]:
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault(fault))
    with pytest.raises(InjectedFailure):
        yield


def test_a_late_event_whose_correction_comes_too_late_counts_however_the_log_is_cut(tmp_path: Path) -> None:
    world = World(tmp_path, pipeline_of(PAIR, "speculation: 0, revise: 60 s"))
    world.land([(1, 0, "z", 0), (2, 100, "b", 100)])
    find(world.pipeline, world.lake, 100)
    world.land([(3, 50, "a", 101), (4, 1000, "z", 1000), (5, 2000, "z", 2000)])
    world.land([(3, 50, "a", 2001, 2.0)])
    for batch, lake in ((3, world.copy("small")), (100, world.lake)):
        find(world.pipeline, lake, batch)
        assert stands(lake) == [[3, 2]], batch
        assert lake.read("late_events")["sn"].to_pylist() == [6]


def test_numbers_of_the_log_that_came_too_late_are_not_those_of_an_operator(tmp_path: Path) -> None:
    """Event 11 is too late; complex event 11 takes something back that is held."""
    operators = """
  every: {partition_by: key, pattern: A, define: {A: type = 'a'}}
  echo:
    from: [event_log, every]
    partition_by: key
    pattern: P -> Q -> E
    define: {P: type = 'every', Q: type = 'every', E: type = 'q'}
"""
    world = World(tmp_path, pipeline_of(operators, "speculation: 0, revise: 1000 s"))
    world.land([(k, 10 * k, "a", 10 * k) for k in range(1, 11)])
    find(world.pipeline, world.lake, 2, 1)
    world.land([(11, -5000, "z", 105), (12, 110, "z", 110), (1, 10, "z", 115), (14, 120, "q", 120)])
    for batch, lake in ((100, world.copy("whole")), (2, world.lake)):
        find(world.pipeline, lake, batch, 1)
        assert stands(lake, "echo") == stands(Lake(tmp_path / "whole"), "echo")


def test_a_correction_of_a_correction_is_as_late_as_the_first_also_after_a_trim(tmp_path: Path) -> None:
    operator = "  up: {partition_by: key, pattern: A, define: {A: type = 'a'}, measures: {m: A.amount}}\n"
    world = World(tmp_path, pipeline_of(operator, "speculation: 0, revise: 60 s"))
    deliveries: list[list[Row]] = [
        [(1, 100, "a", 100), *((k, 1000 * k, "z", 1000 * k) for k in range(2, 11))],
        [(1, 9990, "a", 10_001, 2.0)],
        [(11, 10_002, "z", 10_002)],
        [(12, 10_003, "z", 10_003)],
    ]
    for rows in deliveries:
        world.land(rows)
        find(world.pipeline, world.lake, 2)
    trimmed = world.copy("trimmed")
    assert trim(world.pipeline, trimmed, Attempt(trimmed, "trim"))[0].removed > 0
    world.land([(1, 9991, "a", 10_004, 3.0)], trimmed)
    for lake in (world.lake, trimmed):
        find(world.pipeline, lake)
        assert stands(lake) == [[1]]


def test_a_savepoint_that_was_never_committed_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    """Two attempts cut batch 3 elsewhere; only the first one's savepoint, of a batch that was never published, is sound."""
    operator = """
  up:
    partition_by: key
    pattern: A -> !C -> B
    define: {A: amount > 20, B: amount > A.amount, C: amount < 3}
    within: 1 min
"""
    pipeline = pipeline_of(operator, "speculation: 0, revise: 10 min, checkpoint: {events: 10}")
    lake, right = Lake(tmp_path / "lake"), Lake(tmp_path / "right")
    for each in (lake, right):
        take_in(pipeline, small_log(tmp_path / "landing" / each.root.name, 900, jitter=20_000_000), each)
    find(pipeline, right)
    for fault, batch in (("published@2", 200), ("saved@3", 200), ("published@4", 100)):
        with failing(lake, f"raise_error:detect.{fault}"):
            find(pipeline, lake, batch)
    last = max(int(file.stem.split("-")[3]) for file in Path(lake.path("savepoints")).glob("up-1-00000004-*.parquet"))
    for file in Path(lake.path("savepoints")).glob(f"up-1-*-{last:06}.parquet"):
        file.write_bytes(b"gone")
    find(pipeline, lake, 100)
    assert Counter(map(tuple, stands(lake))) == Counter(map(tuple, stands(right)))


def test_a_needed_event_that_is_gone_is_an_error_and_never_less_output() -> None:
    operator = pipeline_of(PAIR, "").built["up"]
    state = State(10, 1, np.array([1]), np.array([1]))
    events = pipeline_of(PAIR, "").source.schema.empty_table()
    with pytest.raises(TrimmedEventNeeded, match="needs 1 earlier events to go on, but 0 are there"):
        forward(operator, state, events, 20)
