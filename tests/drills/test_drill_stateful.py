"""Recovery drills of operators with shared state, and of one that reads them: the same faults, the same verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.drills.processes import Warm
from spark_jobs.drills.trial import prepare
from spark_jobs.generate import Recipe
from spark_jobs.verify.job import open_suites
from tests.drills.grounds import Grounds, drilled

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "busy_cards.yaml"
# 150 charges per card and more, so that all of them become busy, and stay so for a while.
BUSY = Recipe(2_000, types=4, keys=12, rate=1)


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    with open_suites() as suite:
        yield Grounds(prepare(EXAMPLE, tmp_path_factory.mktemp("grounds"), BUSY), suite)


@pytest.fixture(scope="module")
def warm() -> Warm:
    return Warm()


@pytest.mark.parametrize(
    "faults",
    [
        ["kill_driver:detect.matched@3:busy", "kill_driver:detect.written@4:spree"],
        ["kill_driver:detect.saved@3"],
        ["kill_driver:detect.published@3", "kill_driver:detect.published@4"],
        ["lose_answer:detect.saved@2"],
        ["zombie:detect.saved@3"],
        ["rival:detect.written@2"],
        ["truncate_savepoint:detect.published@3"],
        ["flip_savepoint:detect.published@3:busy"],
        ["delete_savepoint:detect.published@4:busy"],
        ["flip_output:detect.published@3"],
        ["deliver_twice:1", "kill_driver:detect.saved@4"],
    ],
    ids=", ".join,
)
def test_it_recovers_and_the_output_is_right(faults: list[str], grounds: Grounds, warm: Warm, tmp_path: Path) -> None:
    done = drilled(grounds, tmp_path, warm, *faults)
    assert not done.why
    assert done.fired == faults
    assert done.verdicts == ["valid", "valid"], done.verifications
