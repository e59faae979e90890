"""What the tests share: small pipelines, lakes without Spark, and one Spark session where Spark is the point."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_jobs.detect import Detected, Settings, detect
from spark_jobs.generate import Recipe, generate
from spark_jobs.ingest import Ingested, ingest
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import InlineRunner, Runner, open_runner
from spark_jobs.verify.expectations import Suite

PIPELINE = """
name: small
source:
  columns: {ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}
  attributes: {amount: double}
  quarantine_limit: 0.5
  buckets: 7
operators:
  probing:
    partition_by: key
    pattern: A -> B -> C
    define: {A: type = 'a', B: type = 'b' AND amount > 5, C: type = 'c'}
    within: 5 min
    measures: {loss: C.amount, opened: A.ts}
"""


# Files that take minutes begin first, so that at the end no worker waits for one of them.
SLOW = ("test_campaign_spark", "test_catalogue", "test_airflow_bars", "test_up", "test_dags", "test_campaign",
        "test_simulator_random", "test_graph", "test_browser")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


class _Kept(Suite):
    """A suite whose process goes on when a job is done with it."""

    @property
    def ended(self) -> bool:
        assert isinstance(self._process, subprocess.Popen)
        return self._process.poll() is not None

    def close(self) -> None:
        if self.ended:
            self.end()

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session", autouse=True)
def _suites() -> Iterator[None]:
    """Loading Great Expectations takes ten seconds of CPU: the jobs of a test process share the process that has done it."""
    kept: dict[tuple[object, ...], _Kept] = {}

    def shared(*files: Path) -> _Kept:
        key = (os.getpid(), *((file, file.stat().st_mtime_ns) for file in files))  # a forked process needs its own
        if key not in kept or kept[key].ended:
            kept[key] = _Kept(*files)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_jobs.ingest.Suite", shared)
        patch.setattr("spark_jobs.verify.job.Suite", shared)
        yield
    for suite in kept.values():
        suite.end()


@pytest.fixture
def pipeline() -> Pipeline:
    return parse_pipeline(PIPELINE, "small.yaml")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One Spark application for all tests that need one."""
    with open_runner("local[2]", Lake(tmp_path_factory.mktemp("spark")), "tests") as runner:
        yield runner


def take_in(pipeline: Pipeline, landing: Path, lake: Lake, runner: Runner | None = None) -> Ingested:
    return ingest(pipeline, landing, lake, runner or InlineRunner(), Attempt(lake, "ingest"))


def find(
    pipeline: Pipeline, lake: Lake, batch_events: int = 10_000, shards: int = 2, runner: Runner | None = None
) -> list[Detected]:
    return detect(pipeline, lake, runner or InlineRunner(), Attempt(lake, "detect"), Settings(batch_events, shards))


def small_log(folder: Path, events: int = 2_000, **recipe: object) -> Path:
    generate(Recipe(events, types=4, keys=20, rate=2, **recipe), folder)
    return folder


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    return small_log(tmp_path / "landing")


@pytest.fixture(scope="session")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with 2,000 events and nothing detected; copy it before writing to it."""
    folder = tmp_path_factory.mktemp("ingested")
    take_in(parse_pipeline(PIPELINE, "small.yaml"), small_log(folder / "landing"), Lake(folder / "lake"))
    return folder / "lake"


def output(lake: Lake) -> list[dict[str, object]]:
    """The complex events in order, without the batch: how the log was cut must not show."""
    rows = lake.read("complex_events").drop(["batch"]).to_pylist()
    return sorted(rows, key=lambda row: (row["operator"], row["version"], row["ordinal"]))


def events_of(lake: Lake) -> list[dict[str, object]]:
    rows = []
    for uri in DeltaTable(lake.path("event_log")).file_uris():
        bucket = int(uri.split("bucket=")[1].split("/")[0])
        rows += [{**row, "bucket": bucket} for row in pq.read_table(uri, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: row["sn"])
