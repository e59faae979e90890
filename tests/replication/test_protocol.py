"""The protocol of replicas: whatever fails, everything is received once and in order; as long as one lives, all of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.replication.duplicates import DuplicateFilter
from spark_jobs.replication.protocol import (
    MORE_PATIENCE,
    PATIENCE,
    STALL,
    Beat,
    Follow,
    Group,
    Lead,
    Output,
    Prune,
    Publish,
    Replica,
    Send,
    Suspect,
    Trust,
    lowest_latency,
)
from tests.replication.world import PERIOD, TYPES, World

number = st.integers(0, 4)
STEP = st.one_of(
    st.tuples(st.just("compute"), number, st.sampled_from(TYPES)),
    st.tuples(st.just("deliver"), st.integers(0, 100)),
    st.tuples(st.just("deliver"), st.integers(0, 100)),
    # A fraction of a period, or long enough that everybody is suspected.
    st.tuples(st.just("tick"), number, st.sampled_from([0.1, 0.5, 1.0, 5.0])),
    st.tuples(st.just("crash"), number, st.booleans()),
    st.tuples(st.just("come_back"), number),
)


def happen(world: World, step: tuple[Any, ...]) -> None:
    name, *rest = step
    if name != "deliver":
        rest[0] %= world.f + 1
    getattr(world, name)(*rest)


def check_prefix(world: World) -> None:
    for type_, taken in world.receiver.taken.items():
        assert taken == list(range(1, len(taken) + 1)), f"{type_}: {taken}"


@settings(max_examples=400, deadline=None)
@given(f=st.integers(0, 4), steps=st.lists(STEP, max_size=120))
def test_whatever_fails_everything_is_received_once_and_in_order(f: int, steps: list[tuple[Any, ...]]) -> None:
    world = World(f, outputs=8)
    for step in steps:
        happen(world, step)
        check_prefix(world)
    world.calm()
    check_prefix(world)
    assert all(len(taken) == world.outputs for taken in world.receiver.taken.values()), "one correct replica is enough"


@settings(max_examples=100, deadline=None)
@given(f=st.integers(1, 4), steps=st.lists(STEP, max_size=80))
def test_once_suspicions_are_right_one_replica_leads_and_queues_are_empty(f: int, steps: list[tuple[Any, ...]]) -> None:
    world = World(f, outputs=8)
    for step in steps:
        happen(world, step)
    world.calm(rounds=80)
    replicas = [replica for replica in world.replicas if replica is not None]
    assert sum(replica.leading for replica in replicas) == 1
    assert not any(replica.queue for replica in replicas), "what was acknowledged is pruned everywhere"


@pytest.mark.parametrize("f", [1, 2, 4])
def test_the_next_leader_computes_nothing_again(f: int) -> None:
    world = World(f, outputs=20)
    world.calm(rounds=6)
    while len(world.alive) > 1:
        (leader,) = [number for number, replica in enumerate(world.replicas) if replica is not None and replica.leading]
        world.crash(leader)
        world.calm(rounds=12)
    world.calm()
    assert all(taken == list(range(1, 21)) for taken in world.receiver.taken.values())
    (last,) = world.alive
    assert world.computed[last] == 20 * len(TYPES), "each output once"
    assert world.leads == f + 1


def test_after_f_plus_one_failures_nothing_comes_out() -> None:
    """The negative control of the claim: f replicas may fail, not all of them."""
    world = World(2, outputs=8)
    world.replicas = [None, None, None]
    world.calm()
    assert not any(world.receiver.taken.values())


def test_without_the_filter_a_second_leader_shows() -> None:
    """The negative control of the filter: the same schedule, and everybody lets everything pass."""

    class Open(DuplicateFilter):
        def passes(self, type_: str, number: int) -> bool:
            super().passes(type_, number)
            return True

    world = World(1, outputs=4)
    world.receiver.filter = Open()
    for replica in (0, 1):  # each takes the other for dead, as nothing is delivered
        for _ in range(4):
            world.compute(replica, "a")
        for _ in range(12):
            world.tick(replica, PERIOD / 2)
    world.calm()
    with pytest.raises(AssertionError):
        check_prefix(world)


# One replica, event by event

GROUP = Group(3, PERIOD)


def beat(replica: int, count: int, *, leading: bool = False, latency: float = 1.0, **acknowledged: int) -> Beat:
    return Beat(replica, count, leading, latency, acknowledged)


def introduced(number: int = 0, *, leader: int | None = None) -> Replica:
    """One that knows its peers."""
    replica = Replica(number, GROUP, 0.0)
    replica.latency = 0.5
    for count in (1, 2):
        for peer in range(3):
            if peer != number:
                replica.heard(beat(peer, count, leading=peer == leader), 0.1 * count)
    return replica


def kinds(actions: list[Any]) -> list[type]:
    return [type(action) for action in actions]


def test_the_quickest_leads_and_of_equal_ones_the_lowest_number() -> None:
    assert lowest_latency([beat(0, 1, latency=2.0), beat(1, 1, latency=0.5), beat(2, 1, latency=0.5)]) == 1
    assert lowest_latency([beat(2, 1), beat(0, 1)]) == 0


def test_the_election_can_be_another() -> None:
    replica = Replica(2, Group(3, PERIOD, elect=lambda candidates: max(b.replica for b in candidates)), 0.0)
    actions = [a for count in (1, 2) for peer in (0, 1) for a in replica.heard(beat(peer, count), 0.1)]
    assert Lead("elected") in actions


def test_a_heartbeat_left_by_the_dead_is_not_a_leader() -> None:
    """A file from an earlier run says that its writer leads; it never changes."""
    replica = Replica(0, GROUP, 0.0)
    for moment in range(1, 40):
        replica.heard(beat(1, 7, leading=True), moment / 10)
        replica.tick(moment / 10)
    assert replica.leading


def test_a_leader_that_falls_silent_is_replaced_within_three_heartbeats() -> None:
    replica = introduced(leader=1)
    assert replica.computed(Output("a", 1), 0.3) == []
    for moment in range(3, 40):
        replica.heard(beat(2, 10 + moment), moment / 10)
        actions = replica.tick(moment / 10)
        if Suspect(1) in actions:
            assert moment / 10 - 0.2 <= (PATIENCE + 0.2) * PERIOD
            assert Publish(Output("a", 1)) in actions, "it held it all the time"
            return
    raise AssertionError("nobody took over")


def test_of_two_leaders_the_one_with_the_higher_number_steps_down() -> None:
    lower, higher = introduced(0), introduced(1)
    for replica in (lower, higher):
        for moment in range(1, 60):
            replica.tick(moment / 10)
        assert replica.leading, "alone as far as it knows"
    said = {replica.number: replica._said for replica in (lower, higher)}
    back = lower.heard(said[1], 6.0)
    assert Trust(1) in back
    assert Follow(0) in higher.heard(said[0], 6.0)
    assert (lower.leading, higher.leading) == (True, False)


def test_a_suspicion_that_was_wrong_makes_the_next_one_later() -> None:
    replica = introduced(leader=1)
    moment, waits = 0.2, []
    for count in (11, 12, 13):
        heard = moment
        while not replica._peers[1].suspected:
            moment += 0.1
            replica.heard(beat(2, int(moment * 10) + 100), moment)
            replica.tick(moment)
        waits.append(moment - heard)
        replica.heard(beat(1, count, leading=True), moment)
    assert waits == sorted(waits)
    assert waits[2] - waits[0] == pytest.approx(2 * MORE_PATIENCE * PERIOD, abs=0.15), "it looks ten times a period"


def test_who_was_stopped_suspects_nobody_for_its_own_silence() -> None:
    replica = introduced(leader=1)
    assert Suspect not in kinds(replica.tick(100.0))


def test_acknowledged_outputs_are_pruned_with_the_next_heartbeat() -> None:
    replica = introduced(leader=1)
    outputs = [Output("a", number) for number in (1, 2, 3)]
    for output in outputs:
        replica.computed(output, 0.3)
    assert replica.heard(beat(1, 3, leading=True, a=2), 0.4) == [Prune(tuple(outputs[:2]))]
    assert replica.queue == outputs[2:]
    late = Output("a", 2)
    assert replica.computed(late, 0.5) == [Prune((late,))], "others have published it"


def test_a_leader_that_lives_and_does_not_publish_is_not_waited_for() -> None:
    replica = introduced(leader=1)
    replica.computed(Output("a", 1), 0.2)
    for moment in range(3, 80):
        actions = [*replica.heard(beat(1, moment, leading=True), moment / 10), *replica.heard(beat(2, moment), moment / 10)]
        actions += replica.tick(moment / 10)
        if Publish(Output("a", 1)) in actions:
            assert moment / 10 > STALL * PERIOD
            return
    raise AssertionError("it waited for ever")


def test_heartbeats_come_once_a_period_and_at_every_change() -> None:
    replica = Replica(0, Group(1, PERIOD), 0.0)
    sent = [action for moment in range(50) for action in replica.tick(moment / 10) if isinstance(action, Send)]
    assert [s.election for s in sent] == [True, *[False] * (len(sent) - 1)]
    assert len(sent) in (5, 6)
    assert [s.beat.count for s in sent] == list(range(1, len(sent) + 1))
