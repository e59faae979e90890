"""Operators over operators in order of time: what late events change goes down the graph, and no further than it has to."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark_jobs.delays import parse_delay
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.strike import InjectedFailure
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.ordering.revisions import net
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from tests.conftest import PIPELINE, find, small_log, take_in
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


@pytest.mark.parametrize("phase", ["detect.matched", "detect.saved", "detect.published"])
def test_neighbours_that_die_together_change_nothing(
    phase: str, logs: dict[str, Path], right: dict[str, Counter[Any]], tmp_path: Path
) -> None:
    lake, pipeline = copy(logs["late"], tmp_path), pipeline_of("speculation: 0")
    FaultPlan(lake).allow()
    for operator, batch in (("quiet", 3), ("echo", 2), ("crowd", 1), ("alarm", 1)):
        FaultPlan(lake).arm(parse_fault(f"raise_error:{phase}@{batch}:{operator}"))
    failures = 0
    while True:
        try:
            find(pipeline, lake, 300)
            break
        except InjectedFailure:
            failures += 1
    assert failures == 4
    check(lake, right)


def test_a_lost_savepoint_is_made_anew_from_what_was_read_then(logs: dict[str, Path], tmp_path: Path) -> None:
    """Those that are read go on meanwhile: what came of them since must not slip into the savepoint unpublished."""
    lake, pipeline = copy(logs["late"], tmp_path), pipeline_of("speculation: 0")
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault("raise_error:detect.published@1:alarm"))
    with pytest.raises(InjectedFailure):
        find(pipeline, lake, 150)
    shutil.copytree(logs["late"].parent / "late", tmp_path / "landing")
    correct(tmp_path / "landing", "amount", lambda rows: pc.add(rows["amount"], 5))
    take_in(pipeline, tmp_path / "landing", lake)
    saved = Path(lake.path("savepoints"))
    for file in [*saved.glob("alarm-1-00000001-*.parquet"), *saved.glob("echo-1-*.parquet")]:
        file.unlink()
    find(pipeline, lake, 150)
    assert {done.verdict for done in verify(pipeline, lake)} == {Verdict.VALID}
    assert any("is damaged" in row["detail"].get("reason", "") for row in read_history(lake))


def correct(landing: Path, column: str, values: Callable[[pa.Table], Any], where: pc.Expression | None = None) -> None:
    """Deliver some events again, with other values of a column."""
    for file in list(landing.rglob("*.parquet")):
        rows = pq.read_table(file, partitioning=None)
        rows = rows.filter(where) if where is not None else rows
        pq.write_table(
            rows.set_column(rows.schema.get_field_index(column), column, values(rows)), file.with_name("again.parquet")
        )


def test_what_did_not_change_stops_the_cascade(tmp_path: Path) -> None:
    """Small amounts are corrected; further down only large ones count, so that nothing is taken back there."""
    operators = """
  top:
    partition_by: key
    pattern: A -> C
    define: {A: type = 'a', C: type = 'c'}
    measures: {last: C.amount}
  level:
    from: top
    window: {time: 1 min}
    pattern: T -> T
    define: {T: last > 40}
"""
    text = PIPELINE.split("  probing:")[0] + operators.lstrip("\n")
    pipeline = parse_pipeline(f"{text}ordering: {{speculation: 0}}\n", "cascade.yaml")
    lake, landing = Lake(tmp_path / "lake"), small_log(tmp_path / "landing", 800)
    take_in(pipeline, landing, lake)
    find(pipeline, lake)
    small = (pc.field("kind") == "c") & (pc.field("amount") < 30)
    correct(landing, "amount", lambda rows: pc.add(rows["amount"], 5), small)
    take_in(pipeline, landing, lake)
    find(pipeline, lake)
    rows = lake.read("complex_events")
    back = Counter(rows.filter(pc.field("revision") == "retract")["operator"].to_pylist())
    assert back["top"] > 20
    assert back["level"] == 0
    assert rows.filter(pc.field("operator") == "level").num_rows > 2
    assert {done.verdict for done in verify(pipeline, lake)} == {Verdict.VALID}


def test_who_has_read_all_and_is_behind_in_time_is_not_complete(logs: dict[str, Path], tmp_path: Path) -> None:
    """Batches of an operator that reads operators are cut by time: after the first of several it knows the whole log."""
    pipeline, lake = pipeline_of("speculation: 0.3"), copy(logs["late"], tmp_path)
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault("raise_error:detect.published@1:pairs"))
    with pytest.raises(InjectedFailure):
        find(pipeline, lake, 20)
    found = {done.operator: done for done in verify(pipeline, lake)}
    (complete,) = [f for f in found["pairs"].findings if f.property == "completeness"]
    assert complete.verdict is Verdict.UNKNOWN
    assert "not matched yet" in complete.note
