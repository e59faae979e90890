"""A changed operator is a new version, computed beside the old one and cut over to in one commit."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from spark_jobs.cutover import cut_over
from spark_jobs.detect import Detected, Settings, detect_versions
from spark_jobs.errors import RepriseError, TrimmedEventNeeded
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import InlineRunner
from spark_jobs.trim import acknowledged, trim
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from spark_jobs.versions import registry, retire, upgrade
from tests.conftest import find, output
from tests.faults.children import kill_at, run_detection
from tests.graphs import GRAPH

OLD = parse_pipeline(GRAPH, "graph.yaml")
# `probing` and what reads it, down to the end; rising, quiet and echo are not touched.
NEW_TEXT = GRAPH.replace("B: type = 'b' AND amount > 5", "B: type = 'b' AND amount > 9").replace(
    "loss: C.amount,", "loss: C.amount, paid: B.amount,"
)
NEW = parse_pipeline(NEW_TEXT, "graph.yaml")
CHANGED = {"probing", "pairs", "crowd", "alarm"}
Rows = list[dict[str, object]]


def upgraded(pipeline: Pipeline, lake: Lake, after_sn: int | None = None, batch_events: int = 500) -> list[Detected]:
    graph = Graph(pipeline, lake)
    versions = upgrade(lake, pipeline, graph.admit, after_sn)
    return detect_versions(graph, versions, InlineRunner(), Attempt(lake, "detect"), Settings(batch_events))


@pytest.fixture(scope="module")
def detected(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detected") / "lake"
    shutil.copytree(ingested, folder)
    find(OLD, Lake(folder), 500)
    return folder


@pytest.fixture
def lake(detected: Path, tmp_path: Path) -> Lake:
    shutil.copytree(detected, tmp_path / "lake")
    return Lake(tmp_path / "lake")


def of_version(rows: Rows, version: int) -> Rows:
    return [row for row in rows if row["version"] == version]


def current(lake: Lake) -> dict[str, int]:
    return {version.operator: version.number for version in registry(lake).versions if version.current}


def test_the_new_version_is_what_a_new_lake_would_hold_and_the_old_one_stays(
    lake: Lake, ingested: Path, tmp_path: Path
) -> None:
    before = output(lake)
    with pytest.raises(RepriseError, match=r"operators 'probing', 'pairs', 'crowd', 'alarm' were changed since"):
        find(NEW, lake)
    assert output(lake) == before
    done = {d.operator: d for d in upgraded(NEW, lake)}
    assert {name for name, d in done.items() if d.batches} == CHANGED, "unchanged operators are not touched"
    shutil.copytree(ingested, tmp_path / "new")
    find(NEW, Lake(tmp_path / "new"), 500)
    new = [{**row, "version": 1} for row in of_version(output(lake), 2)]
    assert new == [row for row in output(Lake(tmp_path / "new")) if row["operator"] in CHANGED]
    # A new column is NULL in what was published before it.
    assert of_version(output(lake), 1) == [{**row, "paid": None} for row in before]


def test_both_are_current_never_and_one_always(lake: Lake) -> None:
    upgraded(NEW, lake)
    assert set(current(lake).values()) == {1}
    find(OLD, lake)  # the old pipeline file goes on with the old version until then
    assert {version.operator for version in cut_over(NEW, lake)} == CHANGED
    assert current(lake) == {name: 2 if name in CHANGED else 1 for name in OLD.operators}
    assert cut_over(NEW, lake) == []
    assert {verified.verdict for verified in verify(NEW, lake)} == {Verdict.VALID}
    cut_over(OLD, lake)  # and back
    assert set(current(lake).values()) == {1}


def test_a_version_that_lags_behind_is_not_cut_over_to(lake: Lake) -> None:
    upgrade(lake, NEW, Graph(NEW, lake).admit, 0)
    with pytest.raises(RepriseError, match=r"version 2 has come to event 0 of the log, and version 1"):
        cut_over(NEW, lake)
    assert set(current(lake).values()) == {1}


def test_an_unknown_version_is_not_cut_over_to(lake: Lake) -> None:
    with pytest.raises(RepriseError, match="is not in this lake yet"):
        cut_over(NEW, lake)


@pytest.mark.parametrize("after_sn", [1, 777, 1_999, 2_000])
def test_a_version_may_begin_at_any_point_of_the_log(after_sn: int, lake: Lake) -> None:
    upgraded(NEW, lake, after_sn, 300)
    rows = of_version(output(lake), 2)
    assert all(min(row["sns"]) > after_sn for row in rows if row["operator"] == "probing")
    assert {verified.verdict for verified in verify(NEW, lake)} == {Verdict.VALID}


def test_a_point_outside_of_the_log_is_refused(lake: Lake) -> None:
    with pytest.raises(TrimmedEventNeeded, match="cannot begin after event 2,001"):
        upgraded(NEW, lake, 2_001)


def test_a_trimmed_log_can_only_be_replayed_from_where_it_begins(lake: Lake) -> None:
    mark = trim(OLD, lake, Attempt(lake, "trim"))[0].upto
    assert mark > 1_000
    with pytest.raises(TrimmedEventNeeded, match="operator 'probing'"):
        upgraded(NEW, lake)
    assert {version.number for version in registry(lake).versions} == {1}
    upgraded(NEW, lake, mark)
    assert of_version(output(lake), 2)


def test_a_trim_waits_for_the_version_that_is_being_computed(lake: Lake) -> None:
    upgrade(lake, NEW, Graph(NEW, lake).admit, 100)
    (done,) = trim(OLD, lake, Attempt(lake, "trim"))
    assert (done.upto, done.held_by) == (100, "probing (version 2)")
    upgraded(NEW, lake)
    assert of_version(output(lake), 2)


def test_an_upgrade_that_is_killed_goes_on(lake: Lake, tmp_path: Path) -> None:
    undisturbed = Lake(tmp_path / "undisturbed")
    shutil.copytree(lake.root, undisturbed.root)
    upgraded(NEW, undisturbed)
    upgrade(lake, NEW, Graph(NEW, lake).admit, 0)
    FaultPlan(lake).allow()
    for name in CHANGED:
        FaultPlan(lake).arm(kill_at("detect.saved", 1, name))
    codes = [run_detection(NEW_TEXT, lake.root, 500) for _ in range(len(CHANGED) + 1)]
    assert codes == [-signal.SIGKILL] * len(CHANGED) + [0]
    assert output(lake) == output(undisturbed)


def test_an_unchanged_operator_can_begin_again_and_takes_its_readers_along(lake: Lake) -> None:
    """The way out of a wrong beginning, or of savepoints that are lost for good."""
    with pytest.raises(RepriseError, match="none begins after event 500"):
        upgraded(OLD, lake, 500)
    graph = Graph(OLD, lake)
    versions = upgrade(lake, OLD, graph.admit, 500, ["probing"])
    assert {name for name, version in versions.items() if version.number == 2} == CHANGED
    detect_versions(graph, versions, InlineRunner(), Attempt(lake, "detect"), Settings(500))
    cut_over(OLD, lake)
    assert current(lake) == {name: 2 if name in CHANGED else 1 for name in OLD.operators}
    assert {verified.verdict for verified in verify(OLD, lake)} == {Verdict.VALID}


def test_a_version_that_was_left_again_holds_no_trim(lake: Lake) -> None:
    upgraded(NEW, lake, 100)
    cut_over(NEW, lake)
    cut_over(OLD, lake)
    assert trim(OLD, lake, Attempt(lake, "trim"))[0].upto > 1_000


def test_a_trim_waits_for_a_version_that_the_file_names_again(lake: Lake) -> None:
    """Rolled back in the file, and not yet cut over to: the old version goes on where it was."""
    upgraded(NEW, lake, 100)
    cut_over(NEW, lake)
    handle = Graph(OLD, lake).open_outputs()
    named = [a.consumer for a in acknowledged(Graph(OLD, lake), handle, "event_log")]
    assert {"probing (version 1)", "probing (version 2)"} <= set(named)


def test_a_version_never_cut_over_to_can_be_let_go(lake: Lake) -> None:
    upgrade(lake, NEW, Graph(NEW, lake).admit, 100)
    assert trim(OLD, lake, Attempt(lake, "trim"))[0].upto == 100
    for name in ("alarm", "crowd", "pairs", "probing"):
        retire(lake, OLD, f"{name}:2")
    assert trim(OLD, lake, Attempt(lake, "trim"))[0].upto > 1_000
    with pytest.raises(RepriseError, match="the pipeline file defines operator 'probing'"):
        retire(lake, OLD, "probing:1")


def test_a_measure_may_not_change_its_type(lake: Lake) -> None:
    other = parse_pipeline(
        GRAPH.replace("loss: C.amount", "loss: C.type").replace(
            "define: {P: loss > 1, Q: loss < P.loss}", "define: {P: loss > 'a', Q: loss < P.loss}"
        ),
        "graph.yaml",
    )
    with pytest.raises(RepriseError, match=r"'loss' is string, was double.*Give the measure a new name"):
        upgraded(other, lake)
