"""Saving less often: the output is the same whenever savepoints are written, and a start replays from the last one there is."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed
from spark_jobs.detect import Detected, Settings, detect, detect_versions
from spark_jobs.errors import CommitDamaged
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.outputs import Committed, Named, app_of, committed_of, numbers_of
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.plan import recovery_plan
from spark_jobs.recovery.policy import Since, due
from spark_jobs.runner import InlineRunner
from spark_jobs.simulator.table import Table
from spark_jobs.trim import trim, vacuum
from spark_jobs.versions import resolve
from tests.conftest import PIPELINE, find, output
from tests.graphs import GRAPH
from tests.test_detect import WINDOWED

BATCH = 250  # of 2,000 events
# After 250 events it is not due, after 500, 750 and 1,000 neither: batches 4 and 8 have a savepoint.
SELDOM = "recovery: {save: {events: 1000}}\n"
Rows = list[dict[str, object]]


class Killed(Exception):
    """Stands for a kill: the process is needed to look at what it left."""


class Dying(Attempt):
    """Dies at the end of some batch of some operator."""

    def __init__(self, lake: Lake, batch: int, operator: str | None = None, phase: str = "detect.finished") -> None:
        super().__init__(lake, "detect")
        self.at = (phase, batch, operator)

    def phase(self, name: str, batch: int, operator: str | None = None, *, shard: int | None = None, **detail: Any) -> None:
        super().phase(name, batch, operator, shard=shard, **detail)
        phase, at, of = self.at
        if (name, batch) == (phase, at) and of in (None, operator):
            raise Killed


def copy(ingested: Path, folder: Path, name: str = "lake") -> Lake:
    shutil.copytree(ingested, folder / name)
    return Lake(folder / name)


def killed(pipeline: Pipeline, lake: Lake, attempt: Attempt, shards: int = 3) -> None:
    with pytest.raises(Killed):
        detect(pipeline, lake, InlineRunner(), attempt, Settings(BATCH, shards))


def said(pipeline: Pipeline, lake: Lake, shards: int = 3) -> tuple[list[Detected], str]:
    lines: list[str] = []
    done = detect(pipeline, lake, InlineRunner(), Attempt(lake, "detect", lines.append), Settings(BATCH, shards))
    return done, "\n".join(lines)


def saved(lake: Lake, operator: str = "probing") -> list[int]:
    return sorted(int(file.name.split("-")[2]) for file in Path(lake.path("savepoints")).glob(f"{operator}-1-*.parquet"))


@pytest.fixture
def seldom() -> Pipeline:
    return parse_pipeline(PIPELINE + SELDOM, "small.yaml")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("text", [PIPELINE + WINDOWED, GRAPH], ids=["windows", "graph"])
def test_random_policies_and_kills_never_show_in_the_output(
    text: str, seed: int, ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law: a policy that saves by chance, attempts that end anywhere, and the same complex events with the same numbers."""
    random = Random(seed)  # noqa: S311 - chance that repeats itself
    without = copy(ingested, tmp_path, "without")
    find(parse_pipeline(text, "p.yaml"), without, 2_000)
    pipeline = parse_pipeline(text + "recovery: {save: adaptive}\n", "p.yaml")
    lake = copy(ingested, tmp_path)
    drawn: list[bool] = []

    def by_chance(policy: object, since: Since) -> bool:
        drawn.append(random.random() < 0.3)
        return drawn[-1]

    monkeypatch.setattr("spark_jobs.detect.due", by_chance)
    for _ in range(4):
        phase = random.choice(["detect.matched", "detect.saved", "detect.published"])
        attempt = Dying(lake, random.randint(1, 6), random.choice(pipeline.order), phase)
        try:
            detect(pipeline, lake, InlineRunner(), attempt, Settings(random.choice((200, 450)), random.choice((1, 2, 3))))
        except Killed:
            continue
    find(pipeline, lake, 450)
    assert output(lake) == output(without)
    assert True in drawn
    assert False in drawn
    assert [row for row in read_history(lake) if row["kind"] == "repair"] == [], "not to have saved is no damage"


def test_a_start_replays_from_the_last_savepoint_and_says_so(seldom: Pipeline, ingested: Path, tmp_path: Path) -> None:
    whole, lake = copy(ingested, tmp_path, "whole"), copy(ingested, tmp_path)
    find(seldom, whole, BATCH)
    assert saved(whole) == [4, 8]
    killed(seldom, lake, Dying(lake, 6))
    (done,), told = said(seldom, lake)
    assert "probing: last savepoint is of batch 4, replays batches 5 to 6" in told
    assert "damaged" not in told
    assert done.replayed >= 500
    assert saved(lake) == [4, 6], "what the start had to make is saved; 500 events later none is due"
    assert output(lake) == output(whole)
    assert [row["kind"] for row in read_history(lake)].count("repair") == 0


def test_before_the_first_savepoint_it_replays_from_the_beginning(seldom: Pipeline, ingested: Path, tmp_path: Path) -> None:
    whole, lake = copy(ingested, tmp_path, "whole"), copy(ingested, tmp_path)
    find(seldom, whole, BATCH)
    killed(seldom, lake, Dying(lake, 1))
    assert "there is no savepoint yet, replays batch 1" in said(seldom, lake)[1]
    assert output(lake) == output(whole)


@pytest.mark.parametrize("text", [PIPELINE, GRAPH], ids=["one operator", "graph"])
def test_the_plan_says_what_is_then_replayed(text: str, ingested: Path, tmp_path: Path) -> None:
    pipeline, lake = parse_pipeline(text + SELDOM, "p.yaml"), copy(ingested, tmp_path)
    killed(pipeline, lake, Dying(lake, 6) if text is PIPELINE else Dying(lake, 2, "crowd"))
    graph = Graph(pipeline, lake)
    versions = resolve(lake, pipeline, graph.admit)
    plan = {operator.operator: operator for operator in recovery_plan(graph, versions)}
    done = detect_versions(graph, versions, InlineRunner(), Attempt(lake, "detect"), Settings(BATCH, 3))
    again = {d.operator: d.replayed for d in done}
    behind = [name for name in plan if "replays batch" in plan[name].note]
    assert behind == (["probing"] if text is PIPELINE else ["pairs", "crowd"])
    assert {name: again[name] for name in behind} == {name: plan[name].replay for name in behind}


def test_trimming_keeps_what_the_last_savepoints_need(seldom: Pipeline, ingested: Path, tmp_path: Path) -> None:
    whole, lake = copy(ingested, tmp_path, "whole"), copy(ingested, tmp_path)
    find(seldom, whole, BATCH)
    killed(seldom, lake, Dying(lake, 3))
    (begin,) = trim(seldom, lake, Attempt(lake, "trim"))
    assert (begin.upto, begin.removed) == (0, 0), "nothing was acknowledged yet"
    for batch in (5, 7, 8):  # none is due so soon: each start saves where the one before it has ended
        killed(seldom, lake, Dying(lake, batch))
    assert saved(lake) == [3, 5, 7]
    (done,) = trim(seldom, lake, Attempt(lake, "trim"))
    assert done.upto == 5 * BATCH
    assert done.removed > 0
    vacuum(lake, 0)
    for file in Path(lake.path("savepoints")).glob("probing-1-00000007-*.parquet"):
        file.unlink()
    assert "from the savepoint of batch 5" in said(seldom, lake)[1]
    assert output(lake) == output(whole)


def test_the_savepoint_that_is_named_may_be_damaged(seldom: Pipeline, ingested: Path, tmp_path: Path) -> None:
    whole, lake = copy(ingested, tmp_path, "whole"), copy(ingested, tmp_path)
    find(seldom, whole, BATCH)
    killed(seldom, lake, Dying(lake, 6))
    for file in Path(lake.path("savepoints")).glob("probing-1-00000004-*.parquet"):
        file.write_bytes(b"")
    graph = Graph(seldom, lake)
    (plan,) = recovery_plan(graph, resolve(lake, seldom, graph.admit))
    assert "cannot be read" in plan.note
    assert "made anew from the beginning" in plan.note
    told = said(seldom, lake)[1]
    assert "cannot be read" in told
    assert "the savepoint of batch 4 is damaged; all shards replayed from the beginning, as no savepoint is left" in told
    assert output(lake) == output(whole)


def test_dead_letters_are_not_what_a_commit_names(pipeline: Pipeline, ingested: Path, tmp_path: Path) -> None:
    """An attempt with large batches dies before its commit; what it saved stands further on than later, smaller batches."""
    whole, lake = copy(ingested, tmp_path, "whole"), copy(ingested, tmp_path)
    find(pipeline, whole, BATCH)
    with pytest.raises(Killed):
        detect(pipeline, lake, InlineRunner(), Dying(lake, 2, phase="detect.saved"), Settings(900, 3))
    killed(pipeline, lake, Dying(lake, 3))
    for file in Path(lake.path("savepoints")).glob("probing-1-00000003-*.parquet"):
        file.unlink()
    find(pipeline, lake, BATCH)
    assert output(lake) == output(whole)


def test_adaptive_saves_at_first_and_then_when_it_pays(ingested: Path, tmp_path: Path) -> None:
    pipeline = parse_pipeline(PIPELINE + "recovery: {save: adaptive}\n", "small.yaml")
    whole, lake = copy(ingested, tmp_path, "whole"), copy(ingested, tmp_path)
    find(parse_pipeline(PIPELINE, "small.yaml"), whole, 100)
    find(pipeline, lake, 100)
    assert output(lake) == output(whole)
    assert 2 in saved(lake), "an event has been timed, a save has not"


# What a commit says of savepoints


def test_commits_of_earlier_releases_mean_their_own_savepoint() -> None:
    app, said = app_of("probing", 1), (7, 9)
    numbers = numbers_of("probing", 1, 3, 2, Instant(50, 40), Seed(*said), Named(3, 2))
    old = {name: number for name, number in numbers.items() if "#saved" not in name}
    old[f"{app}#check"] = 0  # they had another one, or none
    assert _committed({**numbers, app: 3, f"{app}#attempt": 2}) == _committed({**old, app: 3, f"{app}#attempt": 2})


def test_a_changed_name_of_a_savepoint_is_noticed() -> None:
    app = app_of("probing", 1)
    numbers = {**numbers_of("probing", 1, 3, 2, Instant(50, 40), Seed(7, 9), Named(1, 2)), app: 3, f"{app}#attempt": 2}
    committed = _committed(numbers)
    assert committed is not None
    assert committed.savepoint == Named(1, 2)
    with pytest.raises(CommitDamaged):
        _committed({**numbers, f"{app}#saved": 2})


def _committed(numbers: dict[str, int]) -> Committed | None:
    pipeline = parse_pipeline(PIPELINE, "small.yaml")
    return committed_of(cast(DeltaTable, Table(pipeline.output_schema, numbers=numbers).open()), "probing", 1)


def test_a_save_is_due_where_a_policy_would_save_before_the_next_event() -> None:
    from spark_jobs.recovery.policy import CAP, Adaptive, EveryEvents, EverySpeculative

    assert [due(EveryEvents(3), Since(events=n)) for n in (2, 3, 9)] == [False, True, True]
    assert [due(EverySpeculative(2), Since(CAP - 1, n)) for n in (1, 2)] == [False, True]
    assert due(EverySpeculative(2), Since(CAP))
    assert [due(Adaptive(1e-3, 5e-3), Since(events=n)) for n in (5, 6)] == [False, True]
