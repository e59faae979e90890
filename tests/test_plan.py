"""The plan of a recovery and what then happens agree in every event."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.detect import Settings, detect, detect_versions
from spark_jobs.generate import Recipe, generate
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.plan import recovery_plan
from spark_jobs.runner import InlineRunner
from spark_jobs.versions import resolve
from tests.conftest import take_in
from tests.graphs import GRAPH

PIPELINE = parse_pipeline(GRAPH, "graph.yaml")


class Killed(Exception):
    """Stands for a kill: the process is needed to look at what it left."""


class Dying(Attempt):
    def phase(self, name: str, batch: int, operator: str | None = None, **detail: Any) -> None:
        super().phase(name, batch, operator, **detail)
        if (name, batch, operator) == ("detect.saved", 4, "rising"):
            raise Killed


@pytest.mark.parametrize("shards", [1, 3])
def test_plan_and_fact_agree_in_every_event_of_every_shard(shards: int, tmp_path: Path) -> None:
    lake, settings = Lake(tmp_path / "lake"), Settings(300, shards)
    generate(Recipe(2_600, types=4, keys=20, rate=0.5, sources=1), tmp_path / "log")
    first, *more = sorted((tmp_path / "log").glob("*/hour=*"))
    shutil.copytree(first, tmp_path / "landing" / first.parent.name / first.name)
    take_in(PIPELINE, tmp_path / "landing", lake)
    with pytest.raises(Killed):
        detect(PIPELINE, lake, InlineRunner(), Dying(lake, "detect"), settings)
    # More has come meanwhile, so that every operator has something to go on with.
    assert more
    take_in(PIPELINE, tmp_path / "log", lake)
    graph = Graph(PIPELINE, lake)
    versions = resolve(lake, PIPELINE, graph.admit)
    plan = {operator.operator: operator for operator in recovery_plan(graph, versions)}
    done = {d.operator: d for d in detect_versions(graph, versions, InlineRunner(), Attempt(lake, "detect"), settings)}
    assert plan["probing"].replay > 0
    assert plan["rising"].replay > 0
    assert plan["alarm"].note.startswith("begins")
    for name in PIPELINE.order:
        assert done[name].replayed == plan[name].replay, name
        if plan[name].shards:
            assert [shard.replay for shard in plan[name].shards] == done[name].by_shard, name
            assert plan[name].read_bytes > 0
            assert plan[name].seconds > 0


def test_a_damaged_savepoint_is_in_the_plan(ingested: Path, tmp_path: Path) -> None:
    shutil.copytree(ingested, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    detect(PIPELINE, lake, InlineRunner(), Attempt(lake, "detect"), Settings(700))
    for file in Path(lake.path("savepoints")).glob("probing-1-00000003-*.parquet"):
        file.write_bytes(b"")
    graph = Graph(PIPELINE, lake)
    (probing, *_) = recovery_plan(graph, resolve(lake, PIPELINE, graph.admit))
    assert "cannot be read" in probing.note
    assert "made anew from batch 2" in probing.note
