"""Operators over operators in order of time: what late events change goes down the graph, and no further than it has to."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark_jobs.delays import parse_delay
from spark_jobs.lake.tables import Lake
from spark_jobs.ordering.revisions import net
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from tests.conftest import find, small_log, take_in
from tests.graphs import GRAPH, LEVELS

EVENTS = 900
# `of` is a column of revised output.
TEXT = GRAPH.replace("{of: FIRST(X.type)", "{first: FIRST(X.type)")


def pipeline_of(ordering: str) -> Pipeline:
    return parse_pipeline(f"{TEXT}ordering: {{{ordering}}}\n", "graph.yaml")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same events twice: late and jittering, and in the order in which they happened."""
    folder = tmp_path_factory.mktemp("graph")
    delays = (parse_delay("s1 from 60 s for 300 s by 8 s every 60 s"),)
    small_log(folder / "late", EVENTS, delays=delays, jitter=3_000_000)
    for file in (folder / "late").rglob("*.parquet"):
        seen_at_once = pq.read_table(file, partitioning=None)
        seen_at_once = seen_at_once.set_column(seen_at_once.schema.get_field_index("seen"), "seen", seen_at_once["time"])
        target = folder / "sorted" / file.relative_to(folder / "late")
        target.parent.mkdir(parents=True)
        pq.write_table(seen_at_once, target)
    for name in ("late", "sorted"):
        take_in(pipeline_of(""), folder / name, Lake(folder / f"{name}-lake"))
    return {name: folder / f"{name}-lake" for name in ("late", "sorted")}


@pytest.fixture(scope="module")
def right(logs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[Any]]:
    """What plain detection finds in the sorted log."""
    lake = copy(logs["sorted"], tmp_path_factory.mktemp("right"))
    find(parse_pipeline(TEXT, "plain.yaml"), lake, 10_000)
    return said(lake)


def copy(ingested: Path, folder: Path) -> Lake:
    shutil.copytree(ingested, folder / "lake")
    return Lake(folder / "lake")


def said(lake: Lake) -> dict[str, Counter[Any]]:
    """What stands of each operator; neither numbers nor SNs, which depend on when something came."""
    rows = lake.read("complex_events")
    hidden = {"x", "ordinal", "sns", "batch", "decided_sn", "inputs", "revision", "of", "speculative", "operator", "version"}
    found = {}
    for name in [name for level in LEVELS for name in level]:
        mine = net(rows.filter(pc.field("operator") == name)).to_pylist()
        found[name] = Counter(tuple((k, str(v)) for k, v in sorted(row.items()) if k not in hidden) for row in mine)
    return found


def check(lake: Lake, right: dict[str, Counter[Any]]) -> None:
    found = said(lake)
    for name, rows in right.items():
        assert found[name] == rows, (name, list((found[name] - rows).items())[:2], list((rows - found[name]).items())[:2])


# The clock stands at the last event, so that everything is let go.
@pytest.mark.parametrize(
    ("ordering", "batch", "shards"),
    [
        ("speculation: 0", 90, 2),
        ("speculation: 0, retraction: full", 200, 1),
        ("speculation: 0, checkpoint: {events: 20}", 130, 3),
    ],
)
def test_every_level_comes_to_what_plain_detection_finds_in_the_sorted_log(
    ordering: str, batch: int, shards: int, logs: dict[str, Path], right: dict[str, Counter[Any]], tmp_path: Path
) -> None:
    lake, pipeline = copy(logs["late"], tmp_path), pipeline_of(ordering)
    find(pipeline, lake, batch, shards)
    check(lake, right)
    for done in verify(pipeline, lake):
        assert done.verdict is Verdict.VALID, done
        assert done.matches == done.reference_matches == right[done.operator].total() > 0
