"""Detection: how the work is cut and where it runs never shows in the output."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_jobs.errors import RepriseError
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import Runner
from tests.conftest import PIPELINE, events_of, find, output, small_log, take_in
from tests.recovery.strategies import STRATEGIES

WINDOWED = """
  sliding:
    pattern: A -> B
    window: {count: 40, slide: 10}
    define: {A: type = 'a', B: type = 'b'}
  timed:
    partition_by: key
    window: {time: 5 min, slide: 1 min}
    pattern: A -> B
    define: {A: type = 'a', B: type = 'b'}
    after_match: to next row
  by_kind:
    partition_by: type
    pattern: S -> L
    define: {S: amount < 1, L: amount > 40}
    within: 10 min
  v_shape:
    partition_by: key
    pattern: D+ U+
    define: {D: amount < PREV(amount), U: amount > PREV(amount)}
    measures: {depth: FIRST(D.amount) - LAST(D.amount)}
  quiet:
    partition_by: key
    pattern: A -> B+ -> !C
    define: {A: type = 'a', B: type = 'b', C: type = 'c'}
    within: 3 min
    timed_out: true
  longest:
    pattern: A -> B*
    window: {count: 40, slide: 10}
    define: {A: type = 'a', B: "type = 'b' AND amount > LAST(amount, 1)"}
  clock:
    pattern: A -> !C -> B
    window: {time: 30 s, slide: 10 s}
    define: {A: type = 'a', B: type = 'b', C: amount > PREV(amount)}
    after_match: to next row
  pairs:
    partition_by: key
    pattern: A ->> B
    window: {count: 9, slide: 4, per: key}
    define: {A: type = 'a', B: type = 'b'}
    select: all runs
    after_match: none
  opened:
    partition_by: key
    pattern: B -> C?
    window: {open_when: type = 'a', close_when: type = 'd', rows: 6}
    define: {B: type = 'b', C: type = 'c'}
"""
NAMES = {"probing", "sliding", "timed", "by_kind", "v_shape", "quiet", "longest", "clock", "pairs", "opened"}


@pytest.fixture
def graph() -> Pipeline:
    return parse_pipeline(PIPELINE + WINDOWED, "graph.yaml")


@pytest.fixture(scope="module")
def expected(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    lake = copy(ingested, tmp_path_factory.mktemp("one"))
    find(parse_pipeline(PIPELINE + WINDOWED, "graph.yaml"), lake, 2000, 1)
    rows = output(lake)
    assert {row["operator"] for row in rows} == NAMES
    return rows


def copy(ingested: Path, folder: Path) -> Lake:
    shutil.copytree(ingested, folder / "lake")
    return Lake(folder / "lake")


@pytest.mark.parametrize(
    ("batches", "recovery"),
    [
        *((batches, "savepoint") for batches in (1, 2, 7, 50)),
        (7, "savepoint, seldom"),
        (7, "checkpoint"),
        (7, "checkpoint, adaptive"),
    ],
)
def test_any_number_of_batches_gives_the_same_complex_events(
    batches: int, recovery: str, ingested: Path, tmp_path: Path, expected: list[dict[str, object]]
) -> None:
    lake = copy(ingested, tmp_path)
    graph = parse_pipeline(PIPELINE + WINDOWED + STRATEGIES[recovery], "graph.yaml")
    done = find(graph, lake, -(-2000 // batches))
    assert done[0].batches == batches
    assert output(lake) == expected


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_any_number_of_shards_gives_the_same_complex_events(
    shards: int, graph: Pipeline, ingested: Path, tmp_path: Path, expected: list[dict[str, object]]
) -> None:
    lake = copy(ingested, tmp_path)
    find(graph, lake, 300, shards)
    assert output(lake) == expected


@pytest.mark.parametrize("recovery", ["savepoint", "checkpoint, seldom"])
def test_the_number_of_shards_may_change_between_attempts(
    recovery: str, ingested: Path, tmp_path: Path, expected: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = copy(ingested, tmp_path)
    graph = parse_pipeline(PIPELINE + WINDOWED + STRATEGIES[recovery], "graph.yaml")

    class Interrupted(Exception):
        pass

    from spark_jobs.lake.commit import Claim

    real = Claim.publish

    def third_fails(self: Claim, *args: object, **kwargs: object) -> None:
        if self.step == 2:
            raise Interrupted
        real(self, *args, **kwargs)

    monkeypatch.setattr(Claim, "publish", third_fails)
    with pytest.raises(Interrupted):
        find(graph, lake, 300, 5)
    monkeypatch.setattr(Claim, "publish", real)
    find(graph, lake, 700, 2)
    assert output(lake) == expected


@pytest.mark.parametrize("recovery", ["savepoint", "checkpoint, seldom"])
def test_spark_gives_the_same_complex_events(
    recovery: str, ingested: Path, tmp_path: Path, expected: list[dict[str, object]], spark: Runner
) -> None:
    lake = copy(ingested, tmp_path)
    find(parse_pipeline(PIPELINE + WINDOWED + STRATEGIES[recovery], "graph.yaml"), lake, 700, 5, spark)
    assert output(lake) == expected


def test_detecting_again_finds_nothing_new(pipeline: Pipeline, ingested: Path, tmp_path: Path) -> None:
    lake = copy(ingested, tmp_path)
    find(pipeline, lake)
    rows = output(lake)
    (again,) = find(pipeline, lake)
    assert (again.batches, again.resumed_at) == (0, 2000)
    assert output(lake) == rows


def test_a_savepoint_is_small_and_its_residual_smaller_than_what_was_processed(
    pipeline: Pipeline, ingested: Path, tmp_path: Path
) -> None:
    lake = copy(ingested, tmp_path)
    find(pipeline, lake, 500)
    for row in lake.read("savepoints").to_pylist():
        assert row["bytes"] < 1000
        assert row["trim_sn"] <= row["end_sn"]


def test_a_changed_measure_is_a_changed_operator(ingested: Path, tmp_path: Path, pipeline: Pipeline) -> None:
    lake = copy(ingested, tmp_path)
    find(pipeline, lake)
    other = parse_pipeline(PIPELINE.replace("loss: C.amount", "gain: C.amount"), "other.yaml")
    with pytest.raises(RepriseError, match="'probing' was changed since"):
        find(other, lake)


def test_an_attribute_of_another_type_is_refused(ingested: Path, tmp_path: Path) -> None:
    other = parse_pipeline(PIPELINE.replace("amount: double", "amount: int"), "other.yaml")
    with pytest.raises(RepriseError, match="'amount' is int64, was double"):
        find(other, copy(ingested, tmp_path))


def test_a_changed_pattern_does_not_go_on_from_the_savepoint_of_another(
    ingested: Path, tmp_path: Path, pipeline: Pipeline
) -> None:
    lake = copy(ingested, tmp_path)
    find(pipeline, lake)
    changed = parse_pipeline(PIPELINE.replace("within: 5 min", "within: 50 min"), "small.yaml")
    with pytest.raises(RepriseError, match="operator 'probing' was changed since"):
        find(changed, lake)


def test_measures_come_from_the_events_that_were_bound(pipeline: Pipeline, ingested: Path, tmp_path: Path) -> None:
    lake = copy(ingested, tmp_path)
    find(pipeline, lake)
    events = {event["sn"]: event for event in events_of(lake)}
    rows = output(lake)
    assert rows
    for row in rows:
        a, b, c = (events[sn] for sn in row["sns"])
        assert [a["type"], b["type"], c["type"]] == ["a", "b", "c"]
        assert (row["loss"], row["opened"], row["key"]) == (c["amount"], a["ts"], a["key"])


def test_a_predicate_that_overflows_is_a_sentence_also_from_a_spark_task(ingested: Path, tmp_path: Path, spark: Runner) -> None:
    lake = copy(ingested, tmp_path)
    hopeless = PIPELINE.replace("type = 'a'", "sn * 9223372036854775807 > 1")
    with pytest.raises(RepriseError, match="cannot be evaluated: overflow"):
        find(parse_pipeline(hopeless, "small.yaml"), lake, runner=spark)


def test_a_master_that_does_not_exist_is_a_sentence(pipeline: Pipeline, ingested: Path, tmp_path: Path) -> None:
    from tests.test_cli import reprise

    (tmp_path / "small.yaml").write_text(PIPELINE)
    lake = copy(ingested, tmp_path)
    said = reprise("detect", tmp_path / "small.yaml", "--lake", lake.root, "--master", "nonsense", code=2)
    assert "Spark did not start with master 'nonsense'" in said


def test_with_fewer_windows_than_shards_a_savepoint_is_whole(lake: Lake, tmp_path: Path) -> None:
    """The simulator found it: such a savepoint claimed shards that never were, and everything was replayed."""
    text = PIPELINE.replace("    partition_by: key\n", "").replace("within: 5 min", "window: {count: 1000, slide: 1000}")
    pipeline = parse_pipeline(text, "small.yaml")
    take_in(pipeline, small_log(tmp_path / "landing", 900), lake)
    find(pipeline, lake, batch_events=300)
    find(pipeline, lake, batch_events=300)
    assert [row for row in read_history(lake) if row["kind"] == "repair"] == []
