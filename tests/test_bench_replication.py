"""The simulation of seed 003's evaluation, in small: its numbers, its shapes, and that whatever fails the output is right."""

from __future__ import annotations

import pytest

from bench.replication import _line
from bench.replication_simulation import DOWN, LEVELS, Measured, simulated
from spark_jobs.replication.duplicates import DuplicateFilter

# As many steps as the whole evaluation has, with a twentieth of the events.
EVENTS, PER_STEP = 2_000, 10
# Five times as often as at most in the paper, so that little is left to chance.
FAILURE = 0.005


@pytest.fixture(scope="module")
def calm() -> list[Measured]:
    return [simulated(f, 0.0, EVENTS, PER_STEP) for f in range(3)]


@pytest.fixture(scope="module")
def failing() -> list[Measured]:
    return [simulated(f, FAILURE, EVENTS, PER_STEP) for f in range(3)]


def test_the_network_is_that_of_the_paper(calm: list[Measured]) -> None:
    """Of 40,000 primary events, about 13,000 situations and 170,000 messages; all levels share the same rule."""
    assert sum(LEVELS) == 70
    scale = 40_000 / EVENTS
    assert calm[0].messages * scale == pytest.approx(170_000, rel=0.06)
    assert len(calm[0].latencies) * scale == pytest.approx(13_000, rel=0.15), (
        "few events of a type, and the last five of six all count"
    )


def test_messages_grow_linearly_with_f_and_without_failures_none_comes_twice(calm: list[Measured]) -> None:
    assert all(run.right for run in calm)
    _, _, fit = _line([run.f for run in calm], [run.messages for run in calm])
    assert fit > 0.99
    assert calm[0].duplicates == 0


def test_whatever_fails_the_management_receives_every_situation_once_and_in_order(failing: list[Measured]) -> None:
    assert all(run.right for run in failing)
    assert all(run.failures for run in failing)


def test_failures_bring_duplicates_and_elections_and_about_one_leader(calm: list[Measured], failing: list[Measured]) -> None:
    for f in (1, 2):
        assert failing[f].duplicates > calm[f].duplicates
        assert failing[f].leader_messages > calm[f].leader_messages
        assert failing[f].leaders == pytest.approx(1, abs=0.2)
    assert failing[0].leaders < 1, "while the only one is down nobody leads"


def test_replicas_keep_the_latency_low_where_nodes_fail(failing: list[Measured]) -> None:
    """Seed 003, figure 8: without replicas, what comes waits until the node returns."""
    assert failing[0].latency > 2 * failing[2].latency
    assert failing[0].latency > DOWN / 10


def test_without_the_filter_the_simulation_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same run, and everything passes."""
    passes = DuplicateFilter.passes

    def everything(self: DuplicateFilter, type_: str, number: int) -> bool:
        return passes(self, type_, number) or True

    monkeypatch.setattr(DuplicateFilter, "passes", everything)
    assert not simulated(2, FAILURE, 400, PER_STEP).right
