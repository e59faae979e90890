"""The evaluation of seed 003, section VI, simulated with SimPy: 70 correlation nodes, each f + 1 times, that fail at random.

The replicas are `spark_jobs/replication/protocol.py` as detection runs it, filter included; what is simulated is what lies
between them. The paper says how much goes in (40,000 primary events), comes out (13,000 situations) and is sent (170,000
messages), not how its nodes are laid out: six levels, on which five of six events lead to another one, give its numbers.

A type is what one data source sends, and what is derived from it on the way to the management. A link keeps the order of its
messages and delays them, now and then for longer than anybody has patience. A node that fails loses its state, and takes that
of a peer when it returns; whoever sends to it connects anew then and sends what it has not acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

import simpy

from spark_jobs.replication.duplicates import DuplicateFilter
from spark_jobs.replication.protocol import Action, Beat, Group, Output, Publish, Replica, Send

EVENTS = 40_000
FS = (0, 1, 2, 3, 4)
FAILURES = (0.0, 0.00025, 0.0005, 0.001)
LEVELS = (30, 18, 12, 6, 3, 1)  # nodes, from the sources to the management; 70 in all
# Of each type a node swallows every sixth event, as one that completes no situation.
SWALLOWED = 6
PER_STEP = 200  # primary events; a run takes 200 steps
PERIOD = 5.0  # steps between heartbeats
DOWN = 25  # steps until a failed node returns
LINK = (0.1, 0.5)  # steps that a message takes, link by link
HICCUP, LONG = 0.00002, 8.0  # how often a message takes longer, and how much on average
BEGIN = 20  # the step of the first event: by then all have found their leaders


@dataclass
class Measured:
    """What a run cost."""

    f: int
    failure: float  # probability per node and step
    messages: int = 0  # events sent from one node to another, as often as they were sent
    duplicates: int = 0  # of them dropped by a filter
    leader_messages: int = 0
    heartbeats: int = 0
    failures: int = 0
    leaders: float = 0.0  # on average, of each node
    latencies: list[float] = field(default_factory=list, repr=False)
    right: bool = False  # the management received what a run without failures gives it, each situation once and in order

    @property
    def latency(self) -> float:
        """Steps from a primary event to the situation that it completes, on average."""
        return sum(self.latencies) / len(self.latencies)


def evaluation() -> list[Measured]:
    """All runs of the figures, on all cores."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(simulated, f, failure) for f in reversed(FS) for failure in FAILURES]  # the long ones first
        return sorted((run.result() for run in runs), key=lambda m: (m.f, m.failure))


def simulated(f: int, failure: float, events: int = EVENTS, per_step: int = PER_STEP) -> Measured:
    return _Network(f, failure, events, per_step).run()


Event = tuple[str, int]


class _Node:
    """One replica of one correlation node, or of a source, which never fails."""

    def __init__(self, network: _Network, level: int, place: int, number: int, group: Group) -> None:
        self.network, self.level, self.place, self.number = network, level, place, number
        self.group = group
        self.up, self.epoch = True, 0
        self.receivers: list[_Node] = []
        self.senders: list[_Node] = []
        self.peers: list[_Node] = []
        self.filter = DuplicateFilter()
        self.counts: dict[str, int] = {}
        self.links: dict[_Node, _Link] = {}
        self._start({}, [])

    def __str__(self) -> str:
        return f"{self.level}.{self.place}.{self.number}"

    def _start(self, acknowledged: dict[str, int], queue: Sequence[Output]) -> None:
        now = self.network.env.now
        self.replica = Replica(self.number, self.group, now, acknowledged)
        self.receipts: dict[str, dict[_Node, int]] = {}
        for output in queue:
            self.replica.computed(output, now)

    # What happens to it

    def step(self) -> None:
        if self.up:
            self.do(self.replica.tick(self.network.env.now))

    def fail(self) -> None:
        self.up, self.replica.leading = False, False

    def come_back(self) -> None:
        """With the state of its peers, type by type; where nobody is left, with what they have stored."""
        known = [peer for peer in self.peers if peer.up] or [self, *self.peers]
        self.up, self.epoch = True, self.epoch + 1
        types = sorted({type_ for peer in known for type_ in peer.counts})
        furthest = {type_: max(known, key=lambda peer: peer.filter.of(type_)) for type_ in types}
        queue = [o for type_, peer in furthest.items() for o in peer.replica.queue if o.type == type_]
        acknowledged = {type_: max(peer.replica.acknowledged_of(type_) for peer in known) for type_ in types}
        self.filter = DuplicateFilter({type_: peer.filter.of(type_) for type_, peer in furthest.items()})
        self.counts = {type_: peer.counts[type_] for type_, peer in furthest.items()}
        self._start(acknowledged, queue)
        for receiver in self.receivers:
            self.links[receiver].connect()
        for sender in self.senders:
            sender.links[self].connect()
            sender.acknowledged(self, self.filter.newest)
            if sender.up and sender.replica.leading:
                held = sender.replica.queue
                sender.links[self].send([(o.type, o.number) for o in held if o.number > self.filter.of(o.type)])

    def receive(self, events: list[Event], sender: _Node, latency: float) -> None:
        """Acknowledge, drop what is known, derive, and publish if it leads (seed 003, figure 3)."""
        now, actions = self.network.env.now, list[Action]()
        self.replica.latency = latency
        newest: dict[str, int] = {}
        for type_, number in events:
            newest[type_] = number
            if not self.filter.passes(type_, number):
                self.network.measured.duplicates += 1
                continue
            count = self.counts[type_] = self.counts.get(type_, 0) + 1
            if count % SWALLOWED:
                actions += self.replica.computed(Output(type_, number), now)
        self.links[sender].later(lambda: sender.acknowledged(self, newest))
        self.do(actions)

    def emit(self, events: list[Event]) -> None:
        """Of a source: events that nobody has derived."""
        actions: list[Action] = []
        for event in events:
            actions += self.replica.computed(Output(*event), self.network.env.now)
        self.do(actions)

    def acknowledged(self, receiver: _Node, newest: dict[str, int]) -> None:
        """What all receivers have that are up is done, and the peers hear of it with the next heartbeat."""
        if not self.up:
            return
        for type_, number in newest.items():
            if type_ not in self.counts and self.level >= 0:
                continue  # of what others send
            receipts = self.receipts.setdefault(type_, dict.fromkeys(self.receivers, 0))
            if number > receipts[receiver]:
                receipts[receiver] = number
                connected = [receipts[other] for other in self.receivers if other.up]
                self.do(self.replica.acknowledge(type_, min(connected, default=0)))

    def do(self, actions: list[Action]) -> None:
        published: list[Event] = []
        for action in actions:
            if isinstance(action, Publish):
                published.append((action.output.type, action.output.number))
            elif isinstance(action, Send):
                self._tell_peers(action)
        if published:
            for receiver in self.receivers:
                self.links[receiver].send(published)

    def _tell_peers(self, send: Send) -> None:
        measured = self.network.measured
        if send.election:
            measured.leader_messages += len(self.peers)
        else:
            measured.heartbeats += len(self.peers)
        for peer in self.peers:
            self.links[peer].later(partial(peer.hear, send.beat))

    def hear(self, beat: Beat) -> None:
        if self.up:
            self.do(self.replica.heard(beat, self.network.env.now))


class _Management(_Node):
    """Receives situations; it does not fail, and derives nothing."""

    def receive(self, events: list[Event], sender: _Node, latency: float) -> None:
        network, newest = self.network, dict[str, int]()
        for type_, number in events:
            newest[type_] = number
            if self.filter.passes(type_, number):
                network.received.setdefault(type_, []).append(number)
                network.measured.latencies.append(network.env.now - network.born(number))
            else:
                network.measured.duplicates += 1
        self.links[sender].later(lambda: sender.acknowledged(self, newest))


class _Link:
    """From one node to another: in order, and delayed."""

    def __init__(self, sender: _Node, receiver: _Node) -> None:
        self.network, self.sender, self.receiver = sender.network, sender, receiver
        # The same for every f and every rate of failures, so that runs can be compared.
        self.delay = random.Random(f"{sender}-{receiver}").uniform(*LINK)  # noqa: S311 - repeats itself
        self.busy_until = 0.0
        self.epoch = 0

    def connect(self) -> None:
        """What is under way to who the receiver was before is lost."""
        self.epoch = self.receiver.epoch

    def send(self, events: list[Event]) -> None:
        if not events:
            return
        self.network.measured.messages += len(events)
        epoch, sent = self.epoch, self.network.env.now

        def arrive() -> None:
            if self.receiver.up and self.receiver.epoch == epoch:
                self.receiver.receive(events, self.sender, self.network.env.now - sent)

        self.later(arrive)

    def later(self, message: Callable[[], None]) -> None:
        env, chance = self.network.env, self.network.random
        delay = self.delay + (chance.expovariate(1 / LONG) if chance.random() < HICCUP else 0.0)
        self.busy_until = max(self.busy_until, env.now + delay)
        env.timeout(self.busy_until - env.now).callbacks.append(lambda _: message())


class _Network:
    """The nodes of one run, from the sources to the management."""

    def __init__(self, f: int, failure: float, events: int, per_step: int) -> None:
        self.f, self.failure, self.events, self.per_step = f, failure, events, per_step
        self.env = simpy.Environment()
        self.random = random.Random(f"{f}/{failure}")  # noqa: S311 - repeats itself
        self.measured = Measured(f, failure)
        self.received: dict[str, list[int]] = {}
        self.types = [f"source {number}" for number in range(LEVELS[0])]
        self.sources = [self._replicas(-1, place, 1)[0] for place in range(LEVELS[0])]
        self.nodes = [[self._replicas(level, place, f + 1) for place in range(size)] for level, size in enumerate(LEVELS)]
        self.management = _Management(self, len(LEVELS), 0, 0, Group(1, PERIOD))
        for place, source in enumerate(self.sources):
            self._connect([source], self.nodes[0][place])
        for level, size in enumerate(LEVELS[1:]):
            for place, replicas in enumerate(self.nodes[level]):
                self._connect(replicas, self.nodes[level + 1][place * size // LEVELS[level]])
        self._connect(self.nodes[-1][0], [self.management])

    @property
    def replicas(self) -> list[_Node]:
        return [node for level in self.nodes for replicas in level for node in replicas]

    def born(self, number: int) -> float:
        """The step at which the primary event with a time stamp happens."""
        return BEGIN + float((number - 1) // self.per_step)

    def run(self) -> Measured:
        last = int(self.born(self.events))
        self.env.process(self._sources())
        for source in self.sources:
            source.step()  # alone, it leads at once and for ever
        for node in self.replicas:
            self.env.process(self._steps(node, last))
        self.env.process(self._count_leaders(last))
        # Everything that is still held arrives: whoever is down returns, and nobody fails any more.
        self.env.run(until=last + 8 * DOWN)
        self.measured.right = self.received == self._expected()
        return self.measured

    def _replicas(self, level: int, place: int, count: int) -> list[_Node]:
        nodes = [_Node(self, level, place, number, Group(count, PERIOD)) for number in range(count)]
        for node in nodes:
            node.peers = [other for other in nodes if other is not node]
            node.links = {peer: _Link(node, peer) for peer in node.peers}
        return nodes

    def _connect(self, senders: list[_Node], receivers: list[_Node]) -> None:
        for sender in senders:
            sender.receivers = sender.receivers + receivers
            for receiver in receivers:
                receiver.senders.append(sender)
                sender.links[receiver], receiver.links[sender] = _Link(sender, receiver), _Link(receiver, sender)

    def _sources(self) -> simpy.events.ProcessGenerator:
        yield self.env.timeout(BEGIN)
        for first in range(1, self.events + 1, self.per_step):
            step: dict[int, list[Event]] = {}
            for number in range(first, min(first + self.per_step, self.events + 1)):
                place = number % LEVELS[0]
                step.setdefault(place, []).append((self.types[place], number))
            for place, events in step.items():
                self.sources[place].emit(events)
            yield self.env.timeout(1)

    def _steps(self, node: _Node, last: int) -> simpy.events.ProcessGenerator:
        """A step of a node: it fails, or lives."""
        while True:
            if BEGIN <= self.env.now <= last and self.random.random() < self.failure:
                self.measured.failures += 1
                node.fail()
                yield self.env.timeout(DOWN)
                node.come_back()
            node.step()
            yield self.env.timeout(1)

    def _count_leaders(self, last: int) -> simpy.events.ProcessGenerator:
        yield self.env.timeout(BEGIN)
        counted = 0
        while self.env.now <= last:
            leading = sum(node.replica.leading for node in self.replicas if node.up)
            counted += 1
            self.measured.leaders += (leading / sum(LEVELS) - self.measured.leaders) / counted
            yield self.env.timeout(1)

    def _expected(self) -> dict[str, list[int]]:
        """Of each type, what is left when every level has swallowed its share."""
        left: dict[str, list[int]] = {}
        for place, type_ in enumerate(self.types):
            numbers = [number for number in range(1, self.events + 1) if number % LEVELS[0] == place]
            for _ in LEVELS:
                numbers = [number for index, number in enumerate(numbers, 1) if index % SWALLOWED]
            left[type_] = numbers
        return {type_: numbers for type_, numbers in left.items() if numbers}
