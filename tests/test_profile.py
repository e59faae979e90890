"""Where the time of a batch goes: every stage is named, and no second is counted twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.report import gather
from spark_jobs.verify.job import verify
from tests.conftest import PIPELINE, find

STAGES = {"scan", "predicate", "kernel", "sequence", "write", "transfer", "commit"}
TALLIED = "  tallied: {aggregate: heavy_hitters, partition_by: key, threshold: 40, cells: 64}\n"
RUNS = "  falling: {partition_by: key, pattern: A B, define: {A: amount > 5, B: amount < A.amount}}\n"


@pytest.mark.parametrize("more", [TALLIED + RUNS, "ordering: {}\n"], ids=["three kinds", "ordered"])
def test_every_batch_says_what_it_took_stage_by_stage(more: str, ingested: Path, tmp_path: Path) -> None:
    pipeline, lake = parse_pipeline(PIPELINE + more, "small.yaml"), Lake(tmp_path / "lake")
    shutil.copytree(ingested, lake.root)
    found = find(pipeline, lake, 700)
    history = [row for row in read_history(lake) if row["kind"] == "phase"]
    began = {(row["operator"], row["batch"]): row["at"] for row in history if row["name"] == "detect.started"}
    ended = {(row["operator"], row["batch"]): row for row in history if row["name"] == "detect.finished"}
    assert len(ended) == 3 * len(pipeline.operators)
    for place, row in ended.items():
        seconds = row["detail"]["seconds"]
        assert set(seconds) >= STAGES
        assert 0 < sum(seconds.values()) <= (row["at"] - began[place]).total_seconds() + 0.001, "rounded"
    for done in found:
        told = [row["detail"]["seconds"] for (operator, _), row in ended.items() if operator == done.operator]
        assert sum(done.seconds.values()) == pytest.approx(sum(sum(seconds.values()) for seconds in told), abs=0.01)


def test_the_report_shows_the_shares_of_all_stages(ingested: Path, tmp_path: Path) -> None:
    pipeline, lake = parse_pipeline(PIPELINE, "small.yaml"), Lake(tmp_path / "lake")
    shutil.copytree(ingested, lake.root)
    find(pipeline, lake, 700)
    verify(pipeline, lake)
    (profile,) = gather(pipeline, lake)["profile"]
    assert profile["batches"] == 3
    assert {stage["stage"] for stage in profile["stages"]} >= STAGES
    assert sum(stage["share"] for stage in profile["stages"]) == pytest.approx(1)
    assert profile["rate"] == pytest.approx(2_000 / profile["seconds"], rel=0.01)
