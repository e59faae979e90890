"""Random schedules: any settings, up to three attempts, crashes, lost and late commits, pauses, damage, a log that grows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jobs.lake.commit import Claim
from spark_jobs.simulator.schedules import Simulated, simulate

# With the first 1,500 in test_simulator_exhaustive.py, 5,000: `make test` has two workers, and each takes a file.
SEEDS = range(1500, 5000)


@pytest.fixture(scope="module")
def tried_again() -> list[int]:
    return []


@pytest.fixture(scope="module")
def all_of_them(tried_again: list[int]) -> Iterator[list[Simulated]]:
    renewed = Claim._renewed

    def watched(self: Claim, step: int, attempt: int) -> bool:
        mine = renewed(self, step, attempt)
        if not mine and self.step == step - 1:
            tried_again.append(step)
        return mine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Claim, "_renewed", watched)
        yield [simulate(seed) for seed in SEEDS]


def test_random_schedules_lead_to_no_anomaly(all_of_them: list[Simulated]) -> None:
    assert [str(done) for done in all_of_them if done.anomalies] == []
    assert all(done.complex_events for done in all_of_them)


@pytest.mark.parametrize("met", ["fenced", "unknown", "crashed", "raised", "orphan", "late", "deny", "damaged"])
def test_they_meet_what_they_are_meant_to_meet(met: str, all_of_them: list[Simulated]) -> None:
    assert sum(met in done.said for done in all_of_them) > 50


@pytest.mark.parametrize("pipeline", ["keyed", "count", "time", "two", "chain"])
def test_they_run_every_pipeline(pipeline: str, all_of_them: list[Simulated]) -> None:
    assert any(done.said.startswith(f"{pipeline} ") for done in all_of_them)


def test_a_commit_is_tried_again_when_another_operator_has_committed(
    all_of_them: list[Simulated], tried_again: list[int]
) -> None:
    assert all_of_them
    assert tried_again
