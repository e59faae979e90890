"""Replicas and one receiver on links that keep their order and nothing else: any delay, crash, stop and wrong suspicion."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from spark_jobs.replication.duplicates import DuplicateFilter
from spark_jobs.replication.protocol import Action, Beat, Group, Lead, Output, Publish, Replica, Send

TYPES = ("a", "b")
PERIOD = 1.0


@dataclass
class Receiver:
    """Takes what is new, in the order in which it comes."""

    filter: DuplicateFilter = field(default_factory=DuplicateFilter)
    taken: dict[str, list[int]] = field(default_factory=lambda: {type_: [] for type_ in TYPES})

    def receive(self, output: Output) -> None:
        if self.filter.passes(output.type, output.number):
            self.taken[output.type].append(output.number)


class World:
    """f + 1 replicas of something that has `outputs` outputs of each type."""

    def __init__(self, f: int, outputs: int) -> None:
        self.f, self.outputs = f, outputs
        self.group = Group(f + 1, PERIOD)
        self.now = [0.0] * (f + 1)
        self.receiver = Receiver()
        self.replicas: list[Replica | None] = [Replica(number, self.group, 0.0) for number in range(f + 1)]
        self.position = [dict.fromkeys(TYPES, 0) for _ in range(f + 1)]
        self.computed = [0] * (f + 1)  # how often each has computed anything
        self.leads = 0
        self.links: dict[tuple[int, int | None], deque[Callable[[], None]]] = {}

    @property
    def alive(self) -> list[int]:
        return [number for number, replica in enumerate(self.replicas) if replica is not None]

    # What can happen

    def compute(self, number: int, type_: str) -> None:
        replica, position = self.replicas[number], self.position[number]
        if replica is None or position[type_] == self.outputs:
            return
        position[type_] += 1
        self.computed[number] += 1
        self._do(number, replica.computed(Output(type_, position[type_]), self.now[number]))

    def tick(self, number: int, seconds: float) -> None:
        replica = self.replicas[number]
        self.now[number] += seconds
        if replica is not None:
            self._do(number, replica.tick(self.now[number]))

    def deliver(self, which: int) -> None:
        """The oldest message of some link."""
        waiting = [link for link in sorted(self.links, key=str) if self.links[link]]
        if waiting:
            self.links[waiting[which % len(waiting)]].popleft()()

    def crash(self, number: int, lost: bool = False) -> None:
        """At most f are down at a time. What was sent may still arrive, or be lost with the sender."""
        if self.replicas[number] is not None and len(self.alive) > 1:
            self.replicas[number] = None
            for (sender, _), waiting in self.links.items():
                if sender == number and lost:
                    waiting.clear()

    def come_back(self, number: int) -> None:
        """With what was published as its state: of the queues of its peers it needs nothing."""
        if self.replicas[number] is None:
            published = self.receiver.filter.newest
            self.replicas[number] = Replica(number, self.group, self.now[number], published)
            self.position[number] = {type_: published.get(type_, 0) for type_ in TYPES}

    def calm(self, rounds: int = 40) -> None:
        """From now on messages arrive within a fraction of a period, and nobody dies."""
        for _ in range(rounds):
            for number in self.alive:
                self.tick(number, PERIOD / 4)
                for type_ in TYPES:
                    self.compute(number, type_)
            while any(self.links.values()):
                self.deliver(0)

    # What follows

    def _do(self, number: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Publish(output):
                    self._send(number, None, partial(self._received, number, output))
                case Send(beat, _):
                    for other in range(self.f + 1):
                        if other != number:
                            self._send(number, other, partial(self._heard, other, beat))
                case Lead():
                    self.leads += 1

    def _send(self, sender: int, to: int | None, message: Callable[[], None]) -> None:
        self.links.setdefault((sender, to), deque()).append(message)

    def _heard(self, number: int, beat: Beat) -> None:
        replica = self.replicas[number]
        if replica is not None:
            self._do(number, replica.heard(beat, self.now[number]))

    def _received(self, sender: int, output: Output) -> None:
        self.receiver.receive(output)
        replica = self.replicas[sender]
        if replica is not None:
            self._do(sender, replica.acknowledge(output.type, output.number))
