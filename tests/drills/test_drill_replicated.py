"""Recovery drills of replicated detection, as `reprise detect` starts it: the same faults, the same verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.drills.processes import Program, Warm
from spark_jobs.drills.trial import prepare
from spark_jobs.generate import Recipe
from spark_jobs.lake.history import read_history
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.report import write_report
from spark_jobs.verify.job import open_suites
from tests.conftest import PIPELINE
from tests.drills.grounds import Drilled, Grounds, drilled

REPLICATED = (
    PIPELINE
    + """
  losses:
    from: probing
    pattern: L -> M
    define: {L: loss > 10, M: loss > L.loss}
recovery: {strategy: replication, f: 2, heartbeat: 300 ms}
"""
)


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    folder = tmp_path_factory.mktemp("grounds")
    (folder / "small.yaml").write_text(REPLICATED)
    with open_suites() as suite:
        yield Grounds(prepare(folder / "small.yaml", folder, Recipe(2_000, types=4, keys=20, rate=2)), suite)


@pytest.fixture(scope="module")
def warm() -> Warm:
    return Warm()


@pytest.mark.parametrize(
    "faults",
    [
        ["kill_driver:detect.saved@2:probing", "kill_driver:detect.written@3:probing"],
        ["stop_driver:detect.saved@3:probing", "kill_driver:detect.published@1:losses"],
        ["lose_request:detect.saved@2:probing", "lose_answer:detect.saved@3:probing"],
        ["zombie:detect.saved@2:probing"],
        ["delete_savepoint:detect.published@3:probing"],
        ["truncate_commit:detect.published@2:probing"],
        ["flip_commit:detect.published@3:probing"],
    ],
    ids=", ".join,
)
def test_replicas_are_broken_and_the_output_is_right(faults: list[str], grounds: Grounds, warm: Warm, tmp_path: Path) -> None:
    check(drilled(grounds, tmp_path, warm, *faults), faults, tmp_path)


def test_a_replica_that_is_a_spark_application_is_killed_with_its_jvm(grounds: Grounds, tmp_path: Path) -> None:
    faults = ["kill_group:detect.saved@2:probing"]  # whoever leads
    check(drilled(grounds, tmp_path, Program(), *faults, master="local[1]"), faults, tmp_path)


def check(done: Drilled, faults: list[str], tmp_path: Path) -> None:
    assert not done.why, (tmp_path / "drill.log").read_text()[-3000:]
    assert sorted(done.fired) == sorted(faults)
    assert done.verdicts == ["valid", "valid"], done.verifications
    assert not done.left
    assert done.tries == {"detect": 1}, "replicas recover by themselves"
    assert any(row["kind"] == "leader" for row in read_history(done.lake))
    facts = write_report(parse_pipeline(REPLICATED, "small.yaml"), done.lake, tmp_path / "report.html")
    assert "leads" in (tmp_path / "report.html").read_text()
    assert facts["replicas"]["attempts"] >= 3
    assert not facts["fenced"], "a peer that was faster is no fault"
