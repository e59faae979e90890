"""Recovery drills where events come late, are speculated on and corrected: the same faults, the same verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.delays import parse_delay
from spark_jobs.drills.processes import Warm
from spark_jobs.drills.trial import prepare
from spark_jobs.generate import Recipe
from spark_jobs.lake.history import read_history
from spark_jobs.verify.job import open_suites
from tests.drills.grounds import Grounds, drilled

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "late_cards.yaml"
LATE = Recipe(
    2_000, types=4, keys=8, rate=1, delays=(parse_delay("s1 from 60 s for 30 min by 30 s every 2 min"),), jitter=4_000_000
)


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    with open_suites() as suite:
        yield Grounds(prepare(EXAMPLE, tmp_path_factory.mktemp("grounds"), LATE), suite)


@pytest.fixture(scope="module")
def warm() -> Warm:
    return Warm()


@pytest.mark.parametrize(
    "faults",
    [
        ["kill_driver:detect.started@2"],
        ["kill_driver:detect.matched@3:probing", "kill_driver:detect.written@4:bursts"],
        ["kill_driver:detect.saved@3"],
        ["kill_driver:detect.published@3", "kill_driver:detect.published@4"],
        ["lose_answer:detect.saved@2"],
        ["lose_request:detect.saved@3"],
        ["zombie:detect.saved@3"],
        ["rival:detect.written@2"],
        ["truncate_savepoint:detect.published@3"],
        ["delete_savepoint:detect.published@4:bursts"],
        ["flip_output:detect.published@3"],
        ["deliver_out_of_order:1"],
        ["deliver_twice:1", "kill_driver:detect.saved@4"],
    ],
    ids=", ".join,
)
def test_it_recovers_and_the_net_of_all_revisions_is_right(
    faults: list[str], grounds: Grounds, warm: Warm, tmp_path: Path
) -> None:
    done = drilled(grounds, tmp_path, warm, *faults)
    assert not done.why
    assert done.fired == faults
    assert done.verdicts == ["valid", "valid"], done.verifications
    rows = done.lake.read("complex_events")
    assert "retract" in rows["revision"].to_pylist(), "late events have changed something"
    assert any(row["kind"] == "fault" for row in read_history(done.lake))
