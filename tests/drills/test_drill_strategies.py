"""Recovery drills with checkpoints and few savepoints: real processes, the same faults, the same verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.drills.processes import Warm
from spark_jobs.lake.history import read_history
from spark_jobs.verify.job import open_suites
from tests.drills.grounds import BATCH_EVENTS, Grounds, drilled, new_ground

# A savepoint after every second batch of five.
RECOVERY = f"recovery: {{strategy: checkpoint, save: {{events: {2 * BATCH_EVENTS}}}}}\n"


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    with open_suites() as suite:
        yield new_ground(tmp_path_factory.mktemp("grounds"), suite, RECOVERY)


@pytest.fixture(scope="module")
def warm() -> Warm:
    return Warm()


@pytest.mark.parametrize(
    "faults",
    [
        ["kill_driver:detect.saved@3"],
        ["kill_driver:detect.published@3", "kill_driver:detect.matched@4", "kill_driver:detect.finished@4"],
        ["zombie:detect.saved@4"],
        ["lose_answer:detect.saved@3"],
        ["truncate_savepoint:detect.published@4"],
    ],
    ids=", ".join,
)
def test_it_recovers_and_the_verdict_is_valid(faults: list[str], grounds: Grounds, warm: Warm, tmp_path: Path) -> None:
    done = drilled(grounds, tmp_path, warm, *faults)
    assert not done.why
    assert done.fired == faults
    assert done.verdicts == ["valid"], done.verifications
    restored = [sum(row["detail"]["restored"]) for row in read_history(done.lake) if row["name"] == "detect.matched"]
    assert sum(restored) > 0, "checkpoints were of use"
