"""One replica at work: it computes batches ahead, and a thread of its own beats, listens, and publishes when it leads.

Batches are pure, so every replica computes the same ones. Each is kept until its commit stands, whoever has made it: the table
is the receiver, its compare-and-swap the filter that drops what comes twice. That a peer was faster is no error here. A batch
is published only upon what it was computed from: where a peer has cut its batches elsewhere, because the log had grown, or is
further, the replica takes the savepoint of the last commit and goes on from there, as every start does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from typing import Self

from spark_jobs.detect import Computed, Detected, Detection
from spark_jobs.errors import CommitDamaged, FencedAttempt
from spark_jobs.lake.commit import Claim, claim
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.outputs import Committed, committed_of, output_folder
from spark_jobs.lake.tables import Lake, file_names
from spark_jobs.recovery.savepoint import Savepoint
from spark_jobs.replication.heartbeats import Heartbeats
from spark_jobs.replication.protocol import (
    Action,
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
)

# Batches that are computed ahead of what was published: enough to go on while a leader is replaced, few enough to be held.
HELD = 8
# Looks at the peers' heartbeats in one period.
LOOKS = 10


@dataclass
class _Stream:
    """One operator version, from the savepoint to the commit."""

    detection: Detection
    place: Claim
    done: Detected
    published: set[str] = field(default_factory=set)  # the files that the table names because of this replica
    astray: bool = False  # what is held does not follow from what was published

    @property
    def type(self) -> str:
        return self.place.app

    @property
    def committed(self) -> Committed | None:
        version = self.detection.version
        return committed_of(self.place.handle, version.operator, version.number)

    def look(self) -> None:
        graph, place = self.detection.graph, self.place
        self.place = claim(graph.renewed(place.handle), place.app, graph.renewed, place.send)


class Outgoing:
    """The outgoing queue of a replica, as long as the replica lives.

    The caller's thread computes. What was computed, and what follows from it, is done by the other thread; the two share the
    state of the protocol, and wait for each other on one condition.
    """

    def __init__(self, number: int, group: Group, pipeline: str, lake: Lake, attempt: Attempt) -> None:
        self._number, self._group, self._attempt = number, group, attempt
        self._heartbeats = Heartbeats(lake, pipeline, number)
        self._replica = Replica(number, group, time.monotonic())
        self._streams: dict[str, _Stream] = {}
        self._actions: deque[Action] = deque()
        self._changed = Condition()
        self._acting = self._ended = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._work, name="outgoing", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    # The thread that computes

    def run(self, detection: Detection) -> Detected:
        """Bring one operator up to the end of what it reads, together with the peers."""
        stream, savepoint = self._joined(detection)
        told = False
        while True:
            reach = detection.next(savepoint)
            if reach is None:
                if self._all_published(stream, savepoint):
                    return stream.done
                savepoint = self._resumed(stream)
                continue
            if not told:
                detection.tell_replay(savepoint)
                detection.runner.ready()
                told = True
            began = time.monotonic()
            computed = detection.compute(savepoint, reach, stream.done)
            self._hold(stream, computed, time.monotonic() - began)
            savepoint = computed.after if self._stands(stream, computed.after) else self._resumed(stream)

    def _joined(self, detection: Detection) -> tuple[_Stream, Savepoint]:
        stream = _Stream(detection, detection.claimed(), Detected(detection.operator.name, 0))
        savepoint = detection.resumed(stream.place.handle).savepoint
        stream.done.resumed_at = savepoint.at.sn
        with self._changed:
            self._streams[stream.type] = stream
            self._add(self._replica.acknowledge(stream.type, savepoint.batch))
        return stream, savepoint

    def _resumed(self, stream: _Stream) -> Savepoint:
        """The state that was committed by whoever is ahead."""
        detection = stream.detection
        with self._changed:
            self._add(self._replica.discard(stream.type))
            # What is still to be published or removed could be what is computed next, under the same name.
            self._await(lambda: not self._actions and not self._acting)
            stream.astray = False
            known = self._replica.acknowledged_of(stream.type)
        savepoint = detection.resumed(detection.graph.open_outputs()).savepoint
        if savepoint.batch < known:
            raise CommitDamaged(
                f"{stream.type}: batch {known} was published, but the table stands at batch {savepoint.batch}: a commit was "
                "removed. Nothing was published since. Restore its file in the Delta log of complex_events, and start again."
            )
        place = f"a peer has published up to batch {savepoint.batch}, so this replica goes on from there"
        self._attempt.record("fence", "complex_events", savepoint.batch, detection.operator.name, reason=place)
        with self._changed:
            self._add(self._replica.acknowledge(stream.type, savepoint.batch))
        return savepoint

    def _hold(self, stream: _Stream, computed: Computed, seconds: float) -> None:
        with self._changed:
            self._replica.latency = seconds
            self._add(self._replica.computed(Output(stream.type, computed.batch, computed), time.monotonic()))

    def _stands(self, stream: _Stream, savepoint: Savepoint) -> bool:
        """Wait until there is room to compute ahead. False if what was published is further, or something else."""
        with self._changed:
            self._await(lambda: stream.astray or self._replica.held(stream.type) < HELD)
            return not stream.astray and self._replica.acknowledged_of(stream.type) <= savepoint.batch

    def _all_published(self, stream: _Stream, savepoint: Savepoint) -> bool:
        """Wait until everything up to here was published. False if that is something else than what was computed here."""
        with self._changed:
            self._await(lambda: stream.astray or self._replica.acknowledged_of(stream.type) >= savepoint.batch)
            if stream.astray:
                return False
        if not savepoint.batch:
            return True
        graph, version = stream.detection.graph, stream.detection.version
        committed = committed_of(graph.open_outputs(), version.operator, version.number)
        return committed is not None and _same_place(savepoint, committed)

    def _await(self, holds: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._error is not None or holds())
        if self._error is not None:
            raise self._error

    def _add(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):  # however much there is to publish; one that still waits is out of date
                self._actions = deque(other for other in self._actions if not isinstance(other, Send))
                self._actions.appendleft(action)
            else:
                self._actions.append(action)
        self._changed.notify_all()

    # The thread that beats

    def _work(self) -> None:
        try:
            while self._listen():
                self._act()
            self._heartbeats.send(self._replica.leave())
        except BaseException as error:  # whatever it is, the thread that computes ends with it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _listen(self) -> bool:
        """Wait for something to do, or for the time to look at the peers. False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._actions), timeout=self._group.period / LOOKS)
            now = time.monotonic()
            if not self._ended:
                for beat in self._heartbeats.peers():
                    if beat.replica < self._group.replicas:
                        self._add(self._replica.heard(beat, now))
                self._add(self._replica.tick(now))
            return not self._ended or bool(self._actions)

    def _act(self) -> None:
        """One thing at a time: heartbeats have to come in between, however much there is to publish."""
        with self._changed:
            if not self._actions:
                return
            action, self._acting = self._actions.popleft(), True
        self._do(action)
        with self._changed:
            self._acting = False
            self._changed.notify_all()

    def _do(self, action: Action) -> None:
        match action:
            case Publish(output):
                self._publish(self._streams[output.type], output.content)
            case Prune(outputs):
                self._prune(self._streams[outputs[0].type], outputs)
            case Send(beat, _):
                self._heartbeats.send(beat)
            case Lead(why):
                self._tell("leader", f"replica {self._number} leads", why)
            case Follow(leader):
                self._tell("leader", f"replica {self._number} follows replica {leader}", "two led at once, which did no harm")
            case Suspect(peer):
                self._tell("suspicion", f"replica {self._number} takes replica {peer} for dead", "no heartbeat came")
            case Trust(peer):
                self._tell("suspicion", f"replica {self._number} hears replica {peer} again", "it was not dead, or is back")

    def _publish(self, stream: _Stream, computed: Computed) -> None:
        """Make a batch happen, unless a peer has; look first, then compare and swap."""
        if stream.astray:
            return
        stream.look()
        if stream.place.step < computed.batch:
            if not self._follows(stream, computed):
                return
            try:
                stream.detection.publish(stream.place, computed, stream.done)
                stream.published |= _names(computed)
            except FencedAttempt as error:
                self._beaten(stream, computed, error)
        with self._changed:
            self._add(self._replica.acknowledge(stream.type, stream.place.step))

    def _beaten(self, stream: _Stream, computed: Computed, error: FencedAttempt) -> None:
        """A peer was faster; or it has published the next batch already, before we could look whether ours stands."""
        stream.look()
        operator, batch, ours = computed.after.operator, computed.batch, _names(computed)
        if ours & {Path(name).name for name in file_names(stream.place.handle)}:
            stream.published |= ours
            self._attempt.record("commit", "complex_events", batch, operator, **computed.told)
        else:
            self._attempt.record("fence", "complex_events", batch, operator, reason=str(error))

    def _follows(self, stream: _Stream, computed: Computed) -> bool:
        """Was the batch computed from what was published last? Otherwise the thread that computes has to go there."""
        committed = stream.committed
        if not computed.before.batch and committed is None:
            return True
        if committed is not None and _same_place(computed.before, committed):
            return True
        with self._changed:
            stream.astray = True
            self._changed.notify_all()
        return False

    def _prune(self, stream: _Stream, outputs: tuple[Output, ...]) -> None:
        """Remove the files of what peers have published, which no table will ever name."""
        theirs = [output for output in outputs if not _names(output.content) & stream.published]
        if not theirs:
            return
        version, lake = stream.detection.version, stream.detection.lake
        folder = Path(lake.path("complex_events"), output_folder(version.operator, version.number))
        for output in theirs:
            for name in _names(output.content):
                (folder / name).unlink(missing_ok=True)
        self._attempt.record("prune", "outgoing queue", theirs[-1].number, version.operator, batches=len(theirs))

    def _tell(self, kind: str, name: str, why: str) -> None:
        self._attempt.record(kind, name, why=why)
        self._attempt.say(f"{name}: {why}")


def _names(computed: Computed) -> set[str]:
    return {result["name"] for result in computed.stamped}


def _same_place(savepoint: Savepoint, committed: Committed) -> bool:
    """Batches of one number may end elsewhere: then what follows from one does not follow from the other."""
    return (savepoint.batch, savepoint.at, savepoint.seed) == (committed.batch, committed.at, committed.seed)
