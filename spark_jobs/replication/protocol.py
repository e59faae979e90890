"""The protocol of replicas (seed 003, section V): who publishes, who holds, who is suspected, what may be forgotten.

A replica is a small state machine without I/O, clock or chance of its own: what happens to it goes in, with the time by its
own clock, and what it wants done comes out. The same code runs in detection (outgoing.py), in the simulation of the paper's
evaluation (bench/replication.py) and in the tests that let everything go wrong.

Every replica computes everything and keeps it in a queue. Leaders publish what they have; a replica that takes over publishes
its queue, so nothing is computed again. The failure detector needs no bound on delays and may be wrong: then there are two
leaders, and whoever receives drops what comes twice. What was acknowledged travels with the heartbeats; the others prune it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_jobs.replication.duplicates import DuplicateFilter

# Heartbeats without news before a replica is suspected: one may be late, and output may pause for less than three.
PATIENCE = 1.75
# Added to it when a suspicion was wrong, so that wrong suspicions of who is only slow come to an end.
MORE_PATIENCE = 0.25
# Heartbeats that a follower lets what it holds wait for a leader that lives but does not publish.
STALL = 2 * PATIENCE
UNMEASURED = float("inf")


@dataclass(frozen=True)
class Output:
    """Something to be published: of each type in order of number, each number once. What it is only its makers know."""

    type: str
    number: int
    content: Any = None


@dataclass(frozen=True)
class Beat:
    """What a replica says of itself at every heartbeat: it lives, who it thinks it is, how quick it is, what is done."""

    replica: int
    count: int  # tells one heartbeat from the next, so that no two clocks have to agree
    leading: bool
    latency: float
    acknowledged: Mapping[str, int] = field(default_factory=dict)  # by type: received by all who had to, up to this number


# Which of several replicas is to lead, by the last heartbeat of each.
Election = Callable[[Sequence[Beat]], int]


def lowest_latency(candidates: Sequence[Beat]) -> int:
    """The quickest; of equally quick ones, the one with the lowest number."""
    return min(candidates, key=lambda beat: (beat.latency, beat.replica)).replica


def lowest_number(candidates: Sequence[Beat]) -> int:
    """The same one as long as it lives: what is published may be speculative, and guesses of two do not mix (seed 002)."""
    return min(beat.replica for beat in candidates)


@dataclass(frozen=True)
class Group:
    """What replicas of one thing agree on beforehand."""

    replicas: int  # f + 1
    period: float  # seconds between heartbeats
    elect: Election = lowest_latency


@dataclass(frozen=True)
class Publish:
    """Send it to whoever receives it."""

    output: Output


@dataclass(frozen=True)
class Prune:
    """Forget these: they were received, or never will be."""

    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Send:
    """To all peers. `election`: out of turn, because the replica has begun or ceased to lead."""

    beat: Beat
    election: bool


@dataclass(frozen=True)
class Lead:
    """The replica leads from now on."""

    why: str


@dataclass(frozen=True)
class Follow:
    """The replica no longer leads; `leader` does."""

    leader: int


@dataclass(frozen=True)
class Suspect:
    peer: int


@dataclass(frozen=True)
class Trust:
    """A suspicion was wrong, or the peer is back."""

    peer: int


Action = Publish | Prune | Send | Lead | Follow | Suspect | Trust


@dataclass
class _Peer:
    """What is known of another replica."""

    changed: float  # when something new was heard, by our own clock
    patience: float
    beat: Beat | None = None
    heard: bool = False  # a first heartbeat may be what a dead one has left behind; a second one is not
    suspected: bool = False

    @property
    def leads(self) -> bool:
        return self.heard and not self.suspected and self.beat is not None and self.beat.leading


class Replica:
    """One replica of a group, from its start on; `acknowledged`: what was published before, by type."""

    def __init__(self, number: int, group: Group, now: float, acknowledged: Mapping[str, int] | None = None) -> None:
        self.number, self.group = number, group
        self.leading = False
        self.latency = UNMEASURED  # how long it takes to have an output, measured by whoever drives this
        self._acknowledged = DuplicateFilter(acknowledged)
        self._queues: dict[str, deque[tuple[float, Output]]] = {}
        self._peers = {other: _Peer(now, PATIENCE * group.period) for other in range(group.replicas) if other != number}
        self._said = Beat(number, 0, False, UNMEASURED)
        self._ticked = now
        self._next_beat = now
        self._last_led = now  # when a peer led
        self._waits_since = now  # since when a peer leads, and this one does not

    # What it knows

    def acknowledged_of(self, type_: str) -> int:
        return self._acknowledged.of(type_)

    def held(self, type_: str) -> int:
        """How many outputs wait for their acknowledgement."""
        return len(self._queues.get(type_, ()))

    @property
    def queue(self) -> list[Output]:
        """All that is held, type by type in order."""
        return [output for queue in self._queues.values() for _, output in queue]

    # What happens to it

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        self._forgive(now)
        actions: list[Action] = []
        for number, peer in self._peers.items():
            if not peer.suspected and now - peer.changed > peer.patience:
                peer.suspected = True
                actions.append(Suspect(number))
        actions += self._decide(now)
        if now >= self._next_beat:
            actions.append(self._beat(now, election=False))
        return actions

    def heard(self, beat: Beat, now: float) -> list[Action]:
        """What a peer says of itself, perhaps for the tenth time."""
        peer = self._peers[beat.replica]
        if peer.beat is not None and peer.beat.count == beat.count:
            return []
        actions: list[Action] = []
        peer.changed, peer.heard, peer.beat = now, peer.beat is not None, beat
        if peer.suspected and peer.heard:
            peer.suspected = False
            peer.patience += MORE_PATIENCE * self.group.period
            actions.append(Trust(beat.replica))
        for type_, number in beat.acknowledged.items():
            actions += self.acknowledge(type_, number)
        return [*actions, *self._decide(now)]

    def computed(self, output: Output, now: float) -> list[Action]:
        """An output is there. Outputs of a type come in order of number; what others have published is dropped."""
        if output.number <= self._acknowledged.of(output.type):
            return [Prune((output,))]
        self._queues.setdefault(output.type, deque()).append((now, output))
        return [Publish(output)] if self.leading else []

    def acknowledge(self, type_: str, number: int) -> list[Action]:
        """All who had to have received everything of a type up to a number, whoever has published it."""
        if not self._acknowledged.passes(type_, number):
            return []
        queue, pruned = self._queues.get(type_, deque()), []
        while queue and queue[0][1].number <= number:
            pruned.append(queue.popleft()[1])
        return [Prune(tuple(pruned))] if pruned else []

    def discard(self, type_: str) -> list[Action]:
        """What is held of a type does not follow from what was published."""
        dropped = tuple(output for _, output in self._queues.pop(type_, ()))
        return [Prune(dropped)] if dropped else []

    def leave(self) -> Beat:
        """Its last heartbeat: the others need not wait to see that it leads no more, and know what was acknowledged."""
        self.leading = False
        return self._beat(self._ticked, election=True).beat

    # What it decides

    def _decide(self, now: float) -> list[Action]:
        leaders = [peer.beat for peer in self._peers.values() if peer.leads and peer.beat is not None]
        if leaders:
            self._last_led = now
        if self.leading or not leaders:
            self._waits_since = now
        if self.leading:
            # Of several leaders the one with the lowest number stays: that does not change from one heartbeat to the next.
            lowest = min((beat.replica for beat in leaders), default=self.number)
            return self._follow(lowest, now) if lowest < self.number else []
        if leaders:
            return self._lead(now, "the leader does not publish") if self._stalled(now) else []
        if now - self._last_led > PATIENCE * self.group.period:
            return self._lead(now, "nobody else does")
        alive = [peer for peer in self._peers.values() if not peer.suspected]
        if any(not peer.heard for peer in alive):
            return []  # it may be the leader
        candidates = [self._said, *(peer.beat for peer in alive if peer.beat is not None)]
        return self._lead(now, "elected") if self.group.elect(candidates) == self.number else []

    def _lead(self, now: float, why: str) -> list[Action]:
        """Publish what is held; what its predecessor has published of it falls at the receiver."""
        self.leading = True
        held: list[Action] = [Publish(output) for output in self.queue]
        return [Lead(why), self._beat(now, election=True), *held]

    def _follow(self, leader: int, now: float) -> list[Action]:
        self.leading = False
        return [Follow(leader), self._beat(now, election=True)]

    def _stalled(self, now: float) -> bool:
        """Something has waited too long for a leader that lives: it hangs, or is so much slower that this one should lead."""
        waits = [max(queue[0][0], self._waits_since) for queue in self._queues.values() if queue]
        return any(now - since > STALL * self.group.period for since in waits)

    def _forgive(self, now: float) -> None:
        """Who was stopped itself has heard nobody meanwhile, and that says nothing about the others."""
        gap = now - self._ticked
        self._ticked = now
        if gap > self.group.period:
            self._last_led += gap
            self._waits_since += gap
            for peer in self._peers.values():
                peer.changed += gap

    def _beat(self, now: float, *, election: bool) -> Send:
        self._next_beat = now + self.group.period
        self._said = Beat(self.number, self._said.count + 1, self.leading, self.latency, self._acknowledged.newest)
        return Send(self._said, election)
