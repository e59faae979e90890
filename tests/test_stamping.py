"""Stamping in slices: who writes which part of a batch never shows, and one commit names all parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_jobs import detect
from spark_jobs.lake.scan import STREAM_TS, open_log
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import Runner
from tests.conftest import PIPELINE, events_of, find, output
from tests.test_detect import WINDOWED, copy


@pytest.fixture
def graph() -> Pipeline:
    return parse_pipeline(PIPELINE + WINDOWED, "graph.yaml")


@pytest.mark.parametrize("job_matches", [1, 1_000_000], ids=["by tasks", "by threads of the driver"])
@pytest.mark.parametrize("on_spark", [False, True])
def test_slices_give_the_complex_events_of_one_file(
    on_spark: bool,
    job_matches: int,
    graph: Pipeline,
    ingested: Path,
    tmp_path: Path,
    spark: Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, cut = copy(ingested, tmp_path / "whole"), copy(ingested, tmp_path / "cut")
    find(graph, whole, 900, 3)
    monkeypatch.setattr(detect, "SLICE_MATCHES", 1)
    monkeypatch.setattr(detect, "JOB_MATCHES", job_matches)
    find(graph, cut, 900, 3, spark if on_spark else None)
    assert output(cut) == output(whole)
    files = len(list(Path(cut.path("complex_events")).rglob("*.parquet")))
    assert files > len(list(Path(whole.path("complex_events")).rglob("*.parquet")))


def test_the_log_knows_the_stream_time_of_every_event(graph: Pipeline, ingested: Path, tmp_path: Path) -> None:
    lake = copy(ingested, tmp_path)
    log = open_log(lake, graph.source.schema)
    times = [int(event["stream_ts"].timestamp() * 1e6) for event in events_of(lake)]
    assert [log.stream_ts_at(sn) for sn in (1, 2, 777, 1999, 2000)] == [times[sn - 1] for sn in (1, 2, 777, 1999, 2000)]
    assert log.stream_times(np.array([3, 500, 2000])).tolist() == [times[2], times[499], times[1999]]
    assert log.handle.transaction_version(STREAM_TS) == times[-1]
