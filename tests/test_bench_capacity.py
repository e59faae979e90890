"""The capacity page is what its script makes of the measured costs, and the simulation keeps the laws of what it simulates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import capacity_costs, scale
from bench.capacity import (
    EXECUTORS,
    PAGE,
    SERIAL,
    TASK_EVENTS,
    WORK,
    Costs,
    Plan,
    after_driver,
    after_executor,
    in_groups,
    load,
    page,
    simulated,
)
from spark_jobs.runner import INLINE


@pytest.fixture(scope="module")
def costs() -> Costs:
    return load()


def test_the_page_is_that_of_the_measured_costs(costs: Costs) -> None:
    assert page(costs) == PAGE.read_text(), "make capacity"


def test_one_executor_takes_what_was_measured(costs: Costs) -> None:
    """Within what equal tasks differ by: of 400 batches the mean is known to a twentieth of that."""
    found = simulated(costs, Plan(1), batches=400)
    assert found.seconds == pytest.approx(costs.wall, rel=0.01 + costs.spread / 10)


def test_the_stages_add_up(costs: Costs) -> None:
    for count in EXECUTORS:
        found = simulated(costs, Plan(count))
        assert sum(found.spent.values()) == pytest.approx(found.seconds)


def test_more_executors_are_never_slower_than_linear_promises_nor_faster(costs: Costs) -> None:
    one = simulated(costs, Plan(1)).rate
    rates = [simulated(costs, Plan(count)).rate for count in EXECUTORS]
    assert all(rate <= one * count * 1.05 for rate, count in zip(rates, EXECUTORS, strict=True))


def test_without_costs_of_the_driver_it_is_linear(costs: Costs) -> None:
    """The control: what keeps it from being so is what the driver does alone, and nothing else."""
    free = replace(costs, batch=0.0, match=0.0, task=0.0, shard=0.0, commit=0.0, commit_file=0.0, held=0.0, spread=0.0)
    one, many = (simulated(free, Plan(count), batches=2) for count in (1, 1_000))
    assert many.rate == pytest.approx(1_000 * one.rate)
    assert many.spent[WORK] == pytest.approx(many.seconds)


@pytest.mark.parametrize("cost", ["task", "shard", "commit_file", "held"])
def test_what_costs_the_driver_more_makes_a_large_cluster_slower(costs: Costs, cost: str) -> None:
    more = replace(costs, **{cost: getattr(costs, cost) * 2 + 1e-6})
    assert simulated(more, Plan(100)).rate < simulated(costs, Plan(100)).rate


def test_the_slowest_task_is_waited_for(costs: Costs) -> None:
    even, uneven = (simulated(replace(costs, task=0.0, spread=spread), Plan(100)) for spread in (0.0, 0.2))
    assert even.spent[WORK] == pytest.approx(costs.event * TASK_EVENTS)
    assert uneven.spent[WORK] > 1.3 * even.spent[WORK], "of 100 tasks one is two standard deviations late"


def test_files_that_are_small_cost_time(costs: Costs) -> None:
    costs = replace(costs, file=costs.file + 1e-4, table_file=costs.table_file + 1e-8)
    plain = simulated(costs, Plan(10))
    assert simulated(costs, Plan(10, files=100)).rate < plain.rate
    assert simulated(costs, Plan(10, table_files=1_000_000)).rate < plain.rate


def test_what_breaks_first_is_the_largest_cost_that_nobody_shares(costs: Costs) -> None:
    for what, changed in (
        ("starting tasks", {"task": 1.0}),
        ("skip bitmaps", {"held": 1.0}),
        ("savepoint and commit", {"shard": 9.0}),
    ):
        assert simulated(replace(costs, **changed), Plan(100), batches=2).breaks == what
    assert set(SERIAL) >= {simulated(costs, Plan(1_000)).breaks}


def test_groups_of_executors_are_linear_and_recover_like_one(costs: Costs) -> None:
    one, ten = in_groups(costs, 100), in_groups(costs, 1_000)
    assert ten.rate == pytest.approx(10 * one.rate)
    assert ten.seconds == one.seconds


def test_recovery_takes_at_least_the_start_and_the_batch(costs: Costs) -> None:
    times = [after_driver(costs, simulated(costs, Plan(count))) for count in EXECUTORS]
    assert times == sorted(times)
    assert times[0] > costs.start + costs.wall * 0.9
    assert after_executor(costs, simulated(costs, Plan(10))) < times[0], "Spark is quicker than a new driver"


def test_every_cost_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On so few events that only whether they are there can be looked at."""
    few = {"TASK_EVENTS": 5_000, "KEYS": 10, "BATCHES": 3, "ROUNDS": 1}
    few |= {"HELD_KEYS": 100, "HELD_EVENTS": 1_000, "COMMITS": 2, "SCATTERED": 2}
    for name, value in few.items():
        monkeypatch.setattr(capacity_costs, name, value)
    monkeypatch.setattr(scale, "TINY_BATCHES", 12)
    found = capacity_costs.measure(INLINE)
    assert found.event > 0
    assert found.match > 0
    assert found.commit > 0
    assert found.wall > 5_000 * found.event + found.commit
