"""The verification job over a lake."""

from __future__ import annotations

import shutil
from pathlib import Path

from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from tests.conftest import PIPELINE, find, take_in

# Measures of one operator are NULL in the rows of the others; some have the names of the engine's own columns.
TWO = """
  both:
    partition_by: key
    pattern: A | B
    define: {A: amount > 10, B: amount > 20}
    select: all runs
    after_match: none
    measures: {first_sn: A.sn, at_ts: A.ts, sn2: LAST(sn)}
  none:
    partition_by: key
    pattern: A -> B
    define: {A: type = 'zebra', B: "TRUE"}
    within: 5 min
"""


def test_operators_with_different_measures_are_valid_together(ingested: Path, tmp_path: Path) -> None:
    shutil.copytree(ingested, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    pipeline = parse_pipeline(PIPELINE + TWO, "two.yaml")
    # More shards than the keys can fill: some have no rows.
    find(pipeline, lake, 500, 60)
    done = {verified.operator: verified for verified in verify(pipeline, lake)}
    assert {verified.verdict for verified in done.values()} == {Verdict.VALID}
    assert done["both"].matches > done["probing"].matches > done["none"].matches == 0
    rows = [row for row in lake.read("complex_events").to_pylist() if row["operator"] == "both"]
    assert {row["first_sn"] == row["sns"][0] for row in rows if row["symbols"] == ["A"]} == {True}


def test_a_log_that_is_gone_is_not_valid_even_where_nothing_of_it_has_to_be_read(
    pipeline: Pipeline, landing: Path, lake: Lake
) -> None:
    take_in(pipeline, landing, lake)
    find(pipeline, lake)
    assert verify(pipeline, lake)[0].verdict is Verdict.VALID
    for file in Path(lake.path("event_log")).glob("bucket=*/*.parquet"):
        file.unlink()
    (again,) = verify(pipeline, lake)
    assert again.verdict is Verdict.UNKNOWN
    assert "files of the event log are gone" in again.findings[0].note
