"""Operators with shared state in the product: detection, recovery, verification and what reads them."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs import stateful, stateful_tasks
from spark_jobs.errors import PipelineError, RepriseError
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.phases import DETECT_PHASES, TASK_PHASES
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.strike import InjectedFailure
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.scan import read_events
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.plan import recovery_plan
from spark_jobs.runner import Runner
from spark_jobs.transactions import predictor
from spark_jobs.transactions.predictor import Predictor
from spark_jobs.trim import trim
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from spark_jobs.versions import registry
from tests.conftest import events_of, find, output, take_in
from tests.faults.children import kill_at, run_detection
from tests.transactions import oracle

PIPELINE = """
name: accounts
source:
  columns: {ts: ts, type: type, key: key}
  attributes: {amount: "decimal(12,2)"}
  buckets: 3
operators:
  hitters: {aggregate: heavy_hitters, partition_by: key, threshold: 40, cells: 64}
  overdrawn:
    aggregate: balance
    partition_by: key
    amount: amount
    where: type <> 'c'
    measures: {wanted: amount}
  in_trouble:
    from: [hitters, overdrawn]
    partition_by: key
    pattern: H -> O{3}
    define: {H: type = 'hitters', O: type = 'overdrawn' AND wanted < 0}
"""
EVENTS, KEYS = 1_500, 12


@pytest.fixture
def pipeline() -> Pipeline:
    return parse_pipeline(PIPELINE, "accounts.yaml")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a batch of some hundred events has several."""
    monkeypatch.setattr(stateful, "SMALLEST_CHUNK", 20)


def landing(folder: Path, seed: int = 3, hour: int = 7) -> Path:
    """Accounts that are often about empty, one of them used more than all others."""
    target = folder / "date=2026-01-31" / f"hour={hour:02}" / "source=bank"
    target.mkdir(parents=True)
    random = np.random.default_rng(seed)
    cents = random.integers(-9_000, 8_000, EVENTS)
    amounts = [None if c % 50 == 0 else f"{c / 100:.2f}" for c in cents]
    begin = 1_770_000_000_000_000 + hour * 3_600_000_000
    table = pa.table({
        "ts": pa.array(begin + np.arange(EVENTS) * 1_000_000, pa.timestamp("us", "UTC")),
        "type": [("a", "b", "c")[k] for k in random.integers(0, 3, EVENTS)],
        "key": [f"k{k}" for k in (random.pareto(1, EVENTS) * 2).astype(int) % KEYS],
        "amount": pa.array(amounts).cast(pa.decimal128(12, 2)),
    })
    pq.write_table(table, target / "part-0.parquet")
    return folder


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accounts")
    take_in(parse_pipeline(PIPELINE, "accounts.yaml"), landing(folder / "landing"), Lake(folder / "lake"))
    return folder / "lake"


@pytest.fixture
def lake(ingested: Path, tmp_path: Path) -> Lake:
    shutil.copytree(ingested, tmp_path / "lake")
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="module")
def expected(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """In one batch and one chunk."""
    lake = Lake(shutil.copytree(ingested, tmp_path_factory.mktemp("one") / "lake"))
    find(parse_pipeline(PIPELINE, "accounts.yaml"), lake, EVENTS, 1)
    return output(lake)


def test_the_output_is_what_the_oracle_says(ingested: Path, expected: list[dict[str, Any]]) -> None:
    events = events_of(Lake(ingested))
    assert len(events) == EVENTS
    hits = oracle.heavy([(event["key"], 0) for event in events], 40, 16)
    assert [row["sns"] for row in expected if row["operator"] == "hitters"] == [[events[place]["sn"]] for place in hits]
    moving = [event for event in events if event["type"] != "c" and event["amount"] is not None]
    places = oracle.overdrawn([(event["key"], event["amount"]) for event in moving])
    rows = [row for row in expected if row["operator"] == "overdrawn"]
    assert [row["sns"] for row in rows] == [[moving[place]["sn"]] for place in places]
    assert [(row["key"], row["wanted"]) for row in rows] == [(moving[p]["key"], moving[p]["amount"]) for p in places]
    assert [row["ordinal"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["operator"] for row in expected} == {"hitters", "overdrawn", "in_trouble"}


@pytest.mark.parametrize(("batches", "cores"), [(1, 2), (1, 5), (4, 1), (7, 2), (50, 2)])
def test_batches_chunks_and_what_ran_ahead_never_show(
    batches: int, cores: int, pipeline: Pipeline, lake: Lake, expected: list[dict[str, Any]]
) -> None:
    find(pipeline, lake, -(-EVENTS // batches), cores)
    assert output(lake) == expected


def test_chunks_did_run_ahead_and_some_ran_again(pipeline: Pipeline, lake: Lake) -> None:
    find(pipeline, lake, 100)
    said = [row for row in read_history(lake) if row["kind"] == "transactions"]
    assert 0 < sum(row["detail"]["again"] for row in said) < sum(row["detail"]["ahead"] for row in said)


def test_where_conflicts_are_expected_a_chunk_that_runs_again_is_not_read_again(
    pipeline: Pipeline, lake: Lake, monkeypatch: pytest.MonkeyPatch, expected: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(predictor, "FEW", -1.0)  # never so few that all run ahead
    monkeypatch.setattr(Predictor, "beginning", lambda limit: Predictor(limit, limit // 2))
    reads: list[tuple[int, int]] = []

    def counted(files: Any, schema: Any, columns: Any, sns: Any, after: int, end: int, **how: Any) -> Any:
        reads.append((after, end))
        return read_events(files, schema, columns, sns, after, end, **how)

    monkeypatch.setattr("spark_jobs.stateful_tasks.read_events", counted)
    find(pipeline, lake, 500)
    assert output(lake) == expected
    said = [row["detail"] for row in read_history(lake) if row["kind"] == "transactions"]
    assert sum(detail["again"] for detail in said) > 0
    assert len(reads) == sum(detail["chunks"] for detail in said)


def test_spark_gives_the_same(pipeline: Pipeline, lake: Lake, expected: list[dict[str, Any]], spark: Runner) -> None:
    find(pipeline, lake, 700, 2, spark)
    assert output(lake) == expected


@pytest.mark.parametrize("operator", ["hitters", "overdrawn"])
@pytest.mark.parametrize("phase", DETECT_PHASES)
def test_killed_here_the_output_is_the_same(phase: str, operator: str, lake: Lake, expected: list[dict[str, Any]]) -> None:
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(kill_at(phase, 2, operator))
    assert run_detection(PIPELINE, lake.root, 400) == -signal.SIGKILL
    assert run_detection(PIPELINE, lake.root, 400) == 0
    assert output(lake) == expected


@pytest.mark.parametrize("phase", TASK_PHASES)
def test_a_worker_that_is_killed_changes_nothing(
    phase: str, pipeline: Pipeline, lake: Lake, expected: list[dict[str, Any]], spark: Runner
) -> None:
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault(f"kill_worker:{phase}@2:overdrawn/0"))
    find(pipeline, lake, 700, 2, spark)
    assert len(FaultPlan(lake).fired()) == 1
    assert output(lake) == expected


@pytest.mark.parametrize("left", [0, 1, 2], ids=["none left", "the first is left", "two are left"])
def test_a_damaged_savepoint_is_made_anew_from_an_older_state(
    left: int, pipeline: Pipeline, lake: Lake, expected: list[dict[str, Any]]
) -> None:
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault("raise_error:detect.published@3:overdrawn"))
    with pytest.raises(InjectedFailure):
        find(pipeline, lake, 400)
    for file in sorted(Path(lake.path("savepoints")).glob("overdrawn-*.parquet"))[left:]:
        file.write_bytes(file.read_bytes()[:-100])
    find(pipeline, lake, 400)
    assert output(lake) == expected
    assert [row for row in read_history(lake) if row["kind"] == "repair"]


def test_the_plan_of_a_recovery_replays_nothing(pipeline: Pipeline, lake: Lake) -> None:
    find(pipeline, lake, 400)
    graph = Graph(pipeline, lake)
    plans = {plan.operator: plan for plan in recovery_plan(graph, registry(lake).matching(pipeline))}
    assert (plans["overdrawn"].replay, plans["overdrawn"].processed) == (0, EVENTS)


def test_verdicts_are_valid_and_go_on_over_a_trimmed_log(pipeline: Pipeline, lake: Lake, tmp_path: Path) -> None:
    find(pipeline, lake, 400)
    assert {v.verdict for v in verify(pipeline, lake)} == {Verdict.VALID}
    assert trim(pipeline, lake, Attempt(lake, "trim"))[0].removed > 0
    take_in(pipeline, landing(tmp_path / "more", seed=4, hour=8), lake)
    find(pipeline, lake, 400)
    again = verify(pipeline, lake)
    assert {(v.verdict, v.mode, v.events) for v in again} == {(Verdict.VALID, "incremental", 2 * EVENTS)}


def test_an_amount_that_cannot_be_added_exactly_is_a_sentence(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateful_tasks, "LARGEST_AMOUNT", 8_900)
    with pytest.raises(RepriseError, match=r"event [\d,]+ moves -8\d\.\d\d, which is more than 8,900 of the smallest unit"):
        find(parse_pipeline(PIPELINE, "accounts.yaml"), lake)


def test_the_smallest_number_which_has_no_absolute_value_is_too_large() -> None:
    pipeline = parse_pipeline(PIPELINE.replace('"decimal(12,2)"', "int"), "accounts.yaml")
    events = pa.table({"sn": [1], "amount": [-(2**63)]})
    with pytest.raises(RepriseError, match="event 1 moves -9223372036854775808"):
        stateful_tasks._amounts(pipeline, pipeline.built["overdrawn"], events, np.array([0]))


MISTAKES = {
    ("heavy_hitters,", "heavy_hiters,"): r"8: .*unknown aggregate 'heavy_hiters'; did you mean 'heavy_hitters'\?",
    ("threshold:", "treshold:"): r"unknown key 'treshold'; did you mean 'threshold'\?",
    ("threshold: 40, ", ""): r"8: operators.hitters: 'threshold' is missing",
    ("threshold: 40", "threshold: 40, within: 5 min"): "unknown key 'within'",
    (
        '"decimal(12,2)"',
        "double",
    ): r"'amount' is double, whose sums depend on the order of adding; declare it as int or decimal",
    ("amount: amount", "amount: amont"): r"unknown column 'amont'; did you mean 'amount'\?",
    ("partition_by: key, thr", "partition_by: amount, thr"): r"'amount' is decimal128\(12, 2\); a text is needed",
    ("aggregate: balance", "aggregate: balance\n    from: hitters"): "an operator with 'aggregate' reads the event log only",
    ("type <> 'c'", "typ <> 'c'"): r"overdrawn.where: unknown column 'typ'; did you mean 'type'\?",
    ("wanted: amount", "wanted: X.amount"): "unknown symbol 'X'",
    ("operators:", "ordering: {}\noperators:"): "with 'ordering', operators are patterns",
}


@pytest.mark.parametrize(("change", "message"), MISTAKES.items(), ids=[right for _, right in MISTAKES])
def test_a_mistake_is_told_with_its_line(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PipelineError) as told:
        parse_pipeline(PIPELINE.replace(*change), "accounts.yaml")
    assert any(re.search(message, line) for line in str(told.value).splitlines()), told.value
