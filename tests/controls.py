"""Faults of our own, planted on purpose: each proves that the checker named for it would notice.

Nothing is broken in the product: a plant replaces a function for as long as its context lasts. `tests/test_controls.py` runs
every one of them; `python -m tests.controls NAME -- detect ...` runs a command of Reprise with one planted, for drills with
real processes; `python -m tests.controls` prints the table of GUARANTEES.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError

from spark_jobs import detect, feeds, ingest, staging, stateful, tasks, trim
from spark_jobs.cep import matcher, sequencer
from spark_jobs.cep.arrays import NO_FLOORS
from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed
from spark_jobs.cep.windows import Window
from spark_jobs.detect import Detection
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake import outputs, scan
from spark_jobs.lake.commit import Claim, claim
from spark_jobs.recovery import checkpoint, store
from spark_jobs.recovery import savepoint as savepoints
from spark_jobs.recovery.resume import Resumption
from spark_jobs.recovery.savepoint import Kept, Savepoint
from spark_jobs.recovery.sets import EMPTY
from spark_jobs.replication import protocol
from spark_jobs.replication.duplicates import DuplicateFilter
from spark_jobs.replication.protocol import Replica
from spark_jobs.transactions import rounds
from spark_jobs.transactions.state import NO_CELLS, State, committed
from spark_jobs.verify import checkers, expectations
from spark_jobs.verify.verdict import Finding, Verdict

Plant = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Control:
    """A planted fault, the claim that it breaks, and the checker that finds it in a scenario of tests/test_controls.py."""

    name: str
    claim: str
    checker: str
    scenario: str
    plant: Plant


CONTROLS: dict[str, Control] = {}


def planted(name: str, claim: str, checker: str, scenario: str) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Plant]:
    """Register what a function patches as a control."""

    def register(patch: Callable[[pytest.MonkeyPatch], None]) -> Plant:
        @contextmanager
        def plant() -> Iterator[None]:
            with pytest.MonkeyPatch.context() as monkeypatch:
                patch(monkeypatch)
                yield

        CONTROLS[name] = Control(name, claim, checker, scenario, plant)
        return plant

    return register


def table() -> str:
    """The table of GUARANTEES.md."""
    rows = [f"| {c.claim} | {c.checker} | {c.name} |" for c in CONTROLS.values()]
    return "\n".join(["| claim | checker | planted fault that it finds |", "|---|---|---|", *rows])


# The commit protocol

ONCE = "A batch is published once, by one attempt"


@planted("publish without fencing", ONCE, "batches 1..n, each once", "schedules")
def _(patch: pytest.MonkeyPatch) -> None:
    def renewed(self: Claim, step: int, attempt: int) -> bool:
        now = claim(self.renew(self.handle), self.app)
        self.handle = now.handle
        return now.step == step and now.attempt == attempt

    patch.setattr(Claim, "_renewed", renewed)


@planted("open the table anew before each commit", ONCE, "batches 1..n, each once", "schedules")
def _(patch: pytest.MonkeyPatch) -> None:
    publish = Claim.publish

    def fresh(self: Claim, *args: Any) -> None:
        self.handle = self.renew(self.handle)
        publish(self, *args)

    patch.setattr(Claim, "publish", fresh)


@planted("take a rival's commit of the same batch for one's own", ONCE, "no false negatives", "schedules")
def _(patch: pytest.MonkeyPatch) -> None:
    def renewed(self: Claim, step: int, attempt: int) -> bool:
        now = claim(self.renew(self.handle), self.app)
        if now.step > step:
            raise detect.FencedAttempt("simulated")
        self.handle = now.handle
        return now.step == step

    patch.setattr(Claim, "_renewed", renewed)


@planted("retry a commit blindly when its answer is lost", "A lost answer is looked up", "no duplicates", "schedules")
def _(patch: pytest.MonkeyPatch) -> None:
    def publish(self: Claim, files: Any, schema: Any, attempt: int, partition_by: Any = (), also: Any = None) -> None:
        step = self.step + 1
        numbers = {self.app: step, f"{self.app}#attempt": attempt, **(also or {})}
        metadata = {"reprise.app": self.app, "reprise.step": str(step), "reprise.attempt": str(attempt)}
        while True:
            properties = CommitProperties(metadata, 0, [Transaction(app, number) for app, number in numbers.items()])
            write = partial(self.handle.create_write_transaction, list(files), "append", schema, list(partition_by))
            try:
                self.send(partial(write, commit_properties=properties))
                break
            except (DeltaError, OSError):
                self.handle = self.renew(self.handle)
        self.step, self.attempt, self.handle = step, attempt, self.renew(self.handle)

    patch.setattr(Claim, "publish", publish)


@planted("publish first, save afterwards", "A batch that has happened has a savepoint", "savepoint before commit", "schedules")
def _(patch: pytest.MonkeyPatch) -> None:
    batch = Detection._batch

    def reversed_(self: Detection, place: Claim, *args: Any) -> Savepoint:
        real, waiting = self.savepoints, []

        class Publishing:
            settle = staticmethod(place.settle)

            def publish(self, *args: Any) -> None:
                place.publish(*args)
                for save in waiting:
                    save()

        class Saving:
            @staticmethod
            def save(*args: Any) -> None:
                waiting.append(partial(real.save, *args))

        self.savepoints = Saving
        try:
            return batch(self, Publishing(), *args)
        finally:
            self.savepoints = real

    patch.setattr(Detection, "_batch", reversed_)


DEAD = "A savepoint without its commit is a dead letter"


@planted("go on from a savepoint of the same batch, whoever wrote it", DEAD, "the simulator's five properties", "schedules")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "_stands_at", lambda savepoint, committed: savepoint.batch == committed.batch)


# Numbers

NUMBERS = "Numbers go on across batches, shards and recoveries"


def _resuming(patch: pytest.MonkeyPatch, change: Callable[[Savepoint], Savepoint]) -> None:
    resumed = Detection.resumed

    def changed(self: Detection, handle: Any) -> Resumption:
        found = resumed(self, handle)
        return replace(found, savepoint=change(found.savepoint))

    patch.setattr(Detection, "resumed", changed)


@planted("restart x after a recovery", NUMBERS, "no false order", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    _resuming(patch, lambda savepoint: replace(savepoint, seed=Seed(1, savepoint.seed.ordinal)))


@planted("restart the ordinal after a recovery", NUMBERS, "no duplicates", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    _resuming(patch, lambda savepoint: replace(savepoint, seed=Seed(savepoint.seed.x, 1)))


@planted("let a seed go back", NUMBERS, "seeds never go back", "schedules")
def _(patch: pytest.MonkeyPatch) -> None:
    _resuming(patch, lambda savepoint: replace(savepoint, seed=Seed()))


@planted("restart the window number in each batch", NUMBERS, "no false positives", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    def stamp(*args: Any) -> tuple[pa.Table, Seed]:
        stamped, seed = sequencer.stamp(*args)
        y = np.asarray(stamped["y"])
        return stamped.set_column(stamped.column_names.index("y"), "y", pa.array(y - y.min() + 1)), seed

    patch.setattr(tasks, "stamp", stamp)


ATTEMPT = "No attempt, batch, shard or slice shows in the output"


@planted("let the attempt number into x", ATTEMPT, "no false order", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    def stamp_task(payload: dict[str, Any]) -> dict[str, Any]:
        x, ordinal = payload["seed"]
        return tasks.stamp_task({**payload, "seed": [x + payload["attempt"], ordinal]})

    patch.setattr(detect, "stamp_task", stamp_task)


@planted("sort matches of one producer by shard", ATTEMPT, "cuts give the same output", "cuts")
def _(patch: pytest.MonkeyPatch) -> None:
    for module in (sequencer, matcher):
        patch.setattr(module, "in_final_order", lambda at_ts, at_sn, y, first_sn: np.lexsort((at_sn, at_ts)))


@planted("count a producer once per shard", ATTEMPT, "cuts give the same output", "cuts")
def _(patch: pytest.MonkeyPatch) -> None:
    below = sequencer._below

    def per_shard(seed: Seed, shards: Sequence[pa.Table], low: Any) -> Seed:
        for shard in shards:
            seed = below(seed, [shard], low)
        return seed

    patch.setattr(sequencer, "_below", per_shard)


# What is replayed

LAW = "Going on from a savepoint equals never having stopped"


def _keeping(patch: pytest.MonkeyPatch, keep: Callable[..., Kept]) -> None:
    patch.setattr(savepoints, "_kept", keep)


@planted("SN_trim one too high", LAW, "no false negatives", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    real = savepoints._kept

    def kept(*args: Any, **named: Any) -> Kept:
        found = real(*args, **named)
        return replace(found, trim_sn=found.trim_sn + 1) if found.trim_sn < args[2] else found

    _keeping(patch, kept)


@planted("skip one event too many", LAW, "no false negatives", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    real = savepoints._kept
    _keeping(patch, lambda held, context, end_sn, *, skip: real(held[:-1], context, end_sn, skip=skip))


@planted("ignore v_skip, keep the floors", LAW, "residual law", "law")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kept, "needed", lambda self, end_sn: np.arange(self.trim_sn + 1, end_sn + 1))


@planted("drop the floors", LAW, "residual law", "law")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Savepoint, "floors", NO_FLOORS)


@planted("drop the events that PREV looks at", LAW, "residual law", "law")
def _(patch: pytest.MonkeyPatch) -> None:
    real = savepoints._kept
    _keeping(patch, lambda held, context, end_sn, *, skip: real(held, savepoints.NO_NUMBERS, end_sn, skip=skip))


@planted("match again what PREV looks at", LAW, "residual law", "law")
def _(patch: pytest.MonkeyPatch) -> None:
    residual = Savepoint._residual
    patch.setattr(Savepoint, "_residual", lambda self, edge: replace(residual(self, edge), context=savepoints.NO_NUMBERS))


@planted("forget a window that is open", LAW, "no false negatives", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    first_open = Window.first_open
    patch.setattr(Window, "first_open", lambda self, *args: first_open(self, *args) + 1)


@planted("replay more than the plan says", "Plan and recovery agree in every event", "plan equals recovery", "plan")
def _(patch: pytest.MonkeyPatch) -> None:
    def everything(savepoint: Savepoint) -> Savepoint:
        shards = [replace(s, kept=tuple(replace(k, skip=EMPTY) for k in s.kept)) for s in savepoint.shards]
        return replace(savepoint, shards=tuple(shards))

    _resuming(patch, everything)


@planted(
    "lose an event between the log and the matcher",
    "Every event is read, or its absence is noticed",
    "TrimmedEventNeeded",
    "interrupted",
)
def _(patch: pytest.MonkeyPatch) -> None:
    read = scan.read_events
    patch.setattr(tasks, "read_events", lambda *args, **named: read(*args, **named).slice(1))


@planted("do not look at checksums", "A changed savepoint is noticed", "savepoint checksum", "flipped")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "checksum", lambda row: row.get("checksum", 0))


@planted(
    "believe a checkpoint whatever is in it", "A changed checkpoint is noticed", "checkpoint checksum", "flipped checkpoint"
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "broken", lambda path: None)


# Time

TIME = "Time is the log's, not a clock's or a batch's"


@planted("take the watermark from a clock that is ahead", TIME, "no false positives", "interrupted")
def _(patch: pytest.MonkeyPatch) -> None:
    reach = feeds.LogFeed._reach

    def ahead(self: feeds.LogFeed, end: int) -> feeds.Reach:
        found = reach(self, end)
        return replace(found, at=Instant(found.at.ts + 30_000_000, found.at.sn))

    patch.setattr(feeds.LogFeed, "_reach", ahead)


@planted("begin stream time anew with each ingest", TIME, "stream time never goes back", "ingested twice")
def _(patch: pytest.MonkeyPatch) -> None:
    def bucket_task(payload: dict[str, Any]) -> dict[str, Any]:
        return staging.bucket_task({**payload, "groups": [{**group, "stream_ts": 0} for group in payload["groups"]]})

    patch.setattr(ingest, "bucket_task", bucket_task)


# Ingest

EVENTS = "Every accepted event is in the log once"


@planted("let duplicates through", EVENTS, "events are unique", "ingested twice")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ingest._Ingest, "_drop_taken", lambda *args: None)


@planted("take the files of a killed ingest for taken", EVENTS, "all events are there", "ingested twice")
def _(patch: pytest.MonkeyPatch) -> None:
    taken = ingest._Ingest._taken

    def all_listed(self: Any, handle: Any) -> Any:
        found = taken(self, handle)
        for row in self.lake.read("landing_files").to_pylist():
            found.digests.add(ingest._place_of(row["file"], row["digest"]))
        return found

    patch.setattr(ingest._Ingest, "_taken", all_listed)


@planted("give a sequence number twice", "SNs are dense and never reused", "SNs are dense", "ingested twice")
def _(patch: pytest.MonkeyPatch) -> None:
    last = scan.EventLog.last_sn.fget
    patch.setattr(scan.EventLog, "last_sn", property(lambda self: max(0, last(self) - 1)))


@planted(
    "drop unusable rows in silence",
    "Every row is an event, a duplicate or in quarantine",
    "rows are accounted for",
    "ingested twice",
)
def _(patch: pytest.MonkeyPatch) -> None:
    read = staging.read_landing_file
    patch.setattr(staging, "read_landing_file", lambda *args: replace(read(*args), rejected=[]))


# Trimming and versions


@planted(
    "trim by the consumer that is furthest",
    "Only what every consumer has acknowledged is trimmed",
    "TrimmedEventNeeded",
    "trimmed",
)
def _(patch: pytest.MonkeyPatch) -> None:
    acknowledged = trim.acknowledged
    patch.setattr(trim, "acknowledged", lambda *args, **named: [max(acknowledged(*args, **named), key=lambda a: a.end)])


@planted("let versions share their commits", "Versions stand beside each other", "numbers in the commit", "upgraded")
def _(patch: pytest.MonkeyPatch) -> None:
    for module in (detect, outputs):
        patch.setattr(module, "app_of", lambda operator, version: f"{operator}/1")


# Replicas

REPLICAS = "Whatever f replicas do, every output is received once and in order"


@planted("let pass what comes twice", REPLICAS, "received once and in order", "replicas")
def _(patch: pytest.MonkeyPatch) -> None:
    passes = DuplicateFilter.passes
    patch.setattr(DuplicateFilter, "passes", lambda self, type_, number: passes(self, type_, number) or True)


@planted("prune what nobody has acknowledged", REPLICAS, "received once and in order", "replicas")
def _(patch: pytest.MonkeyPatch) -> None:
    computed = Replica.computed

    def hasty(self: Replica, output: Any, now: float) -> Any:
        actions = computed(self, output, now)
        return [*actions, *self.acknowledge(output.type, output.number)] if self.leading else actions

    patch.setattr(Replica, "computed", hasty)


@planted("suspect nobody", "As long as one replica lives, all is received", "all is received", "replicas")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "PATIENCE", float("inf"))
    patch.setattr(protocol, "STALL", float("inf"))


# Shared state

SEQUENTIAL = "Whatever ran ahead, the result is that of running one after the other"


@planted("commit a chunk whatever it has learned", SEQUENTIAL, "no false positives", "shared state")
def _(patch: pytest.MonkeyPatch) -> None:
    nothing = {"read": NO_CELLS, "low": NO_CELLS, "high": NO_CELLS}
    patch.setattr(rounds, "committed", lambda state, effect: committed(state, effect._replace(**nothing)))


@planted("begin each batch with an empty state", SEQUENTIAL, "no false negatives", "shared state")
def _(patch: pytest.MonkeyPatch) -> None:
    class Forgetful(State):
        @classmethod
        def unpacked(cls, data: bytes) -> State:
            return State(np.zeros_like(State.unpacked(data).cells))

    patch.setattr(stateful, "State", Forgetful)


# Verdicts

VERDICT = "A verdict is never valid because something was not checked"


@planted("pass a checker that crashes", VERDICT, "a crash is unknown", "verdicts")
def _(patch: pytest.MonkeyPatch) -> None:
    def lenient(evidence: Any, chosen: Any) -> list[Finding]:
        findings = []
        for name, check in chosen.items():
            try:
                findings.append(check(evidence))
            except Exception:
                findings.append(Finding(name, Verdict.VALID))
        return findings

    patch.setattr(checkers, "run_checkers", lenient)


@planted("count a fault that did not fire as fired", VERDICT, "faults fired", "verdicts")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FaultPlan, "fired", FaultPlan.armed)


@planted("call half a log complete", VERDICT, "completeness", "verdicts")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(checkers.CHECKERS, "completeness", lambda evidence: Finding("completeness", Verdict.VALID))


@planted("accept an empty suite", "A suite that proves nothing is refused", "empty suite refused", "verdicts")
def _(patch: pytest.MonkeyPatch) -> None:
    read = expectations._read

    def lenient(file: Any) -> Any:
        try:
            return read(file)
        except expectations.RepriseError:
            return expectations._Definition(file.stem, [], [])

    patch.setattr(expectations, "_read", lenient)


@planted("arm a fault in anybody's lake", "Faults strike only where they may", "FaultPlan refuses", "verdicts")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FaultPlan, "allowed", True)


def main(name: str, command: list[str]) -> None:
    """Run a command of Reprise with a fault planted."""
    from spark_jobs import cli

    sys.argv = ["reprise", *command]
    with CONTROLS[name].plant():
        cli.main()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1], sys.argv[3:])
    else:
        print(table())
