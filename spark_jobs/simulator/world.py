"""A lake of which only the files are real: tables, savepoints, attempts and the network between them live in memory.

What runs in it is `detect_versions` as it is, with the real commit protocol, resumption and tasks. Every touch of something
shared, and every phase, is a moment at which a script may strike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from spark_jobs.detect import Settings, detect_versions
from spark_jobs.errors import CommitStateUnknown, FencedAttempt
from spark_jobs.graph import Graph
from spark_jobs.lake.aside import Aside, Done
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.outputs import Named, committed_of
from spark_jobs.lake.scan import EventLog
from spark_jobs.pipeline import Recovery, SaveSpec
from spark_jobs.recovery.savepoint import Savepoint
from spark_jobs.recovery.store import Found, Savepoints, Stored
from spark_jobs.runner import Runner, Task
from spark_jobs.simulator.scenario import Scenario
from spark_jobs.simulator.stage import Fiber, Stage
from spark_jobs.simulator.table import Handle, Table
from spark_jobs.tasks import match_task

# Moments besides the phases of detection.
LOG_OPENING = "log.opening"
OUTPUTS_OPENING = "outputs.opening"
SAVEPOINT_FINDING = "savepoint.finding"
SAVEPOINT_SAVING = "savepoint.saving"
REQUESTED = "commit.requested"  # the commit is on its way, the table has not seen it
ANSWERED = "commit.answered"  # the table has decided, the attempt does not know


class Moment(NamedTuple):
    """Where an attempt is: batch 0 is before its first one."""

    name: str
    batch: int

    def __str__(self) -> str:
        return f"{self.name}@{self.batch}"


class Strike(NamedTuple):
    """What happens to an attempt at a moment."""

    kind: str
    ticks: int = 0

    def __str__(self) -> str:
        return self.kind + (f"({self.ticks})" if self.ticks else "")


PAUSE = "pause"  # others run meanwhile
CRASH = "crash"  # the process is gone
RAISE = "raise"  # an error that nobody expects
LOSE = "lose"  # the network fails: before the table has seen the commit, or with the answer to it
BREAK = "break"  # the same, said by deltalake
LATE = "late"  # the attempt is told that the network failed, and the commit arrives all the same, some ticks later
ORPHAN = "orphan"  # the process is gone, and its commit arrives some ticks later
DENY = "deny"  # the commit stands, and the answer says that somebody else was first: a client that tries again by itself

Script = Callable[[int, Moment], Sequence[Strike]]

DONE, CRASHED, RAISED, FENCED, UNKNOWN = "done", "crashed", "raised", "fenced", "unknown"


class Crash(BaseException):
    """The end of an attempt that no code of it sees coming."""


class Unexpected(Exception):
    """The error of RAISE."""


@dataclass
class Published:
    """One commit of one operator version."""

    app: str
    step: int
    attempt: int
    savepoint: Named


@dataclass
class World:
    """What attempts share, and what is held against them."""

    scenario: Scenario
    script: Script
    stage: Stage = field(default_factory=Stage)
    events: int = 0  # of the log, so far
    savepoints: dict[tuple[str, int, int, int], Savepoint] = field(default_factory=dict)
    saved: dict[tuple[str, int, int, int], Savepoint] = field(default_factory=dict)  # as they were before any damage
    written: dict[str, str] = field(default_factory=dict)  # the task's payload that each file name comes from
    published: list[Published] = field(default_factory=list)
    outcomes: dict[int, str] = field(default_factory=dict)
    struck: list[str] = field(default_factory=list)
    damaged: bool = False
    anomalies: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events = self.events or self.scenario.events
        self.outputs = Table(self.scenario.pipeline.output_schema, self._committed)

    def start(self, settings: Settings, ticks: int = 0, save: SaveSpec | None = None) -> None:
        """Plan another attempt."""
        number = len(self.outcomes) + 1
        self.outcomes[number] = "planned"
        attempt = SimulatedAttempt(self, number, settings, save)
        self.stage.plan(ticks, attempt.fiber.resume)

    def anomaly(self, text: str) -> None:
        self.anomalies.append(text)

    def damage(self, choice: int) -> None:
        """Lose a shard of the savepoint that the last commit of some operator names, or all of it."""
        places = [key for key in sorted(self.savepoints) if any(_names(key, p) for p in self._last_commits())]
        if not places:
            return
        key = places[choice % len(places)]
        savepoint = self.savepoints.pop(key)
        left = tuple(shard for shard in savepoint.shards if shard.shard != choice % len(savepoint.shards))
        if left and choice % 3:
            self.savepoints[key] = Savepoint(**{**_fields(savepoint), "shards": left})
        self.damaged = True
        self.struck.append(f"savepoint {key} damaged")

    def _last_commits(self) -> list[Published]:
        return list({commit.app: commit for commit in self.published}.values())

    def _committed(
        self, before: Handle, numbers: Mapping[str, int], files: tuple[AddAction, ...], metadata: Mapping[str, str]
    ) -> None:
        """The laws that every single commit has to obey."""
        app, step, attempt = metadata["reprise.app"], int(metadata["reprise.step"]), int(metadata["reprise.attempt"])
        last = before.transaction_version(app) or 0
        if step != last + 1:
            self.anomaly(f"{app}: attempt {attempt} published batch {step} after batch {last}")
        for name in ("log_sn", "watermark", "seed_x", "seed_ordinal"):
            was, now = before.transaction_version(f"{app}#{name}"), numbers[f"{app}#{name}"]
            if was is not None and now < was:
                self.anomaly(f"{app}: {name} went back from {was} to {now} in batch {step}, attempt {attempt}")
        operator, version = app.split("/")
        stands = committed_of(cast(DeltaTable, self.outputs.open()), operator, int(version))
        assert stands is not None
        named = stands.savepoint or Named(step, attempt)
        mine = self.saved.get((operator, int(version), *named))
        if named.batch and (mine is None or (mine.batch == step and (mine.at, mine.seed) != (stands.at, stands.seed))):
            self.anomaly(f"{app}: batch {step} of attempt {attempt} has no savepoint that fits it")
        self.published.append(Published(app, step, attempt, named))


def _names(key: tuple[str, int, int, int], commit: Published) -> bool:
    operator, version, batch, _ = key
    return (f"{operator}/{version}", batch) == (commit.app, commit.savepoint.batch)


def _fields(savepoint: Savepoint) -> dict[str, Any]:
    """Without what it has computed of itself."""
    return {name: getattr(savepoint, name) for name in Savepoint.__dataclass_fields__}


class SimulatedAttempt(Attempt):
    """One try: it strikes itself where the script says so."""

    def __init__(self, world: World, number: int, settings: Settings, save: SaveSpec | None) -> None:
        self.job, self.number, self.batch = "detect", number, 0
        self.world, self.settings, self.recovery = world, settings, Recovery(save=save)
        self.fiber = Fiber(self._work)

    def for_tasks(self) -> dict[str, Any] | None:
        """Tasks are pure: what strikes one is a failure of the attempt at the moment after it."""
        return None

    def heal(self, *, inputs: bool = True, files: bool = True) -> None:
        """What was damaged stays so."""

    def settle(self) -> None:
        """Others take their turns anyway."""

    def phase(self, name: str, batch: int, operator: str | None = None, *, shard: int | None = None, **detail: Any) -> None:
        self.batch = batch
        self.moment(name)

    def record(self, kind: str, name: str, batch: int | None = None, operator: str | None = None, **detail: Any) -> None:
        if kind == "repair" and not self.world.damaged:
            self.world.anomaly(f"attempt {self.number} repaired what nobody has damaged: {detail['reason']}")

    def say(self, line: str) -> None:
        """Nobody watches."""

    def send(self, commit: Callable[[], None]) -> None:
        self.moment(REQUESTED, commit)
        commit()
        self.moment(ANSWERED)

    def moment(self, name: str, commit: Callable[[], None] | None = None) -> None:
        moment = Moment(name, self.batch)
        self.world.stage.tick()
        for strike in self.world.script(self.number, moment):
            self.world.struck.append(f"{self.number}:{strike} {moment}")
            self._take(strike, commit)

    def _take(self, strike: Strike, commit: Callable[[], None] | None) -> None:
        stage = self.world.stage
        if strike.kind == PAUSE:
            stage.pause(self.fiber, strike.ticks)
            return
        if strike.kind in (LATE, ORPHAN):
            assert commit is not None
            stage.plan(strike.ticks, lambda: _delivered(commit))
        raise _ERRORS[strike.kind]("simulated")

    def _work(self) -> None:
        world = self.world
        pipeline = world.scenario.pipeline.model_copy(update={"recovery": self.recovery})
        graph = SimulatedGraph(pipeline, world.scenario.lake, self, aside=_AtOnce())
        try:
            detect_versions(graph, world.scenario.versions, SimulatedRunner(world), self, self.settings)
            outcome = DONE
        except tuple(_OUTCOMES) as ended:
            outcome = _OUTCOMES[type(ended)]
        except Exception as error:
            outcome = type(error).__name__
            world.anomaly(f"attempt {self.number} ended with {outcome}: {error}")
        world.outcomes[self.number] = outcome


_ERRORS: dict[str, type[BaseException]] = {
    CRASH: Crash, ORPHAN: Crash, RAISE: Unexpected, LOSE: OSError, LATE: OSError, BREAK: DeltaError, DENY: CommitFailedError,
}  # fmt: skip
_OUTCOMES: dict[type[BaseException], str] = {
    Crash: CRASHED, Unexpected: RAISED, FencedAttempt: FENCED, CommitStateUnknown: UNKNOWN,
}  # fmt: skip


def _delivered(commit: Callable[[], None]) -> None:
    """A commit that arrives when nobody waits for it any more."""
    try:
        commit()
    except CommitFailedError:
        return


class _AtOnce(Aside):
    """An attempt has no threads of its own here."""

    def do(self, work: Callable[[], Done]) -> Future[Done]:
        given: Future[Done] = Future()
        try:
            given.set_result(work())
        except Exception as error:
            given.set_exception(error)
        return given

    def checkpoint(self, handle: DeltaTable) -> None:
        """Tables in memory have none."""


@dataclass(frozen=True)
class SimulatedGraph(Graph):
    """The pipeline over the world, as one attempt sees it."""

    attempt: SimulatedAttempt

    def savepoints(self) -> Savepoints:
        return SimulatedSavepoints(self.attempt)

    def open_log(self) -> EventLog:
        self.attempt.moment(LOG_OPENING)
        world = self.attempt.world
        return world.scenario.log(world.events)

    def open_outputs(self) -> DeltaTable:
        self.attempt.moment(OUTPUTS_OPENING)
        return cast(DeltaTable, self.attempt.world.outputs.open())

    def renewed(self, outputs: DeltaTable) -> DeltaTable:
        return self.open_outputs()


@dataclass(frozen=True)
class SimulatedSavepoints:
    """Savepoints as one attempt sees them; what another one wrote lies beside its own."""

    attempt: SimulatedAttempt

    def save(self, savepoint: Savepoint, attempt: int) -> None:
        self.attempt.moment(SAVEPOINT_SAVING)
        key = (savepoint.operator, savepoint.version, savepoint.batch, attempt)
        self.attempt.world.savepoints[key] = self.attempt.world.saved[key] = savepoint

    def find(self, operator: str, version: int, batch: int | None = None) -> Found:
        self.attempt.moment(SAVEPOINT_FINDING)
        kept = sorted(self.attempt.world.savepoints.items(), reverse=True)
        mine = [(s, a) for (o, v, b, a), s in kept if (o, v) == (operator, version) and batch in (None, b)]
        return Found([_stored(*found) for found in mine])


def _stored(savepoint: Savepoint, attempt: int) -> Stored:
    shards = savepoint.shards[0].shards
    there = {shard.shard for shard in savepoint.shards}
    return Stored(savepoint, attempt, shards, tuple(shard for shard in range(shards) if shard not in there))


@dataclass(frozen=True)
class SimulatedRunner(Runner):
    """The real tasks. One that was given the same before answers as before: they know nothing of attempts."""

    world: World

    def ready(self) -> None:
        """There is nothing to wait for."""

    def run(self, task: Task, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self.here(task, payload) for payload in payloads]

    def here(self, task: Task, payload: dict[str, Any]) -> dict[str, Any]:
        if task is match_task:
            return self.world.scenario.matched(task, payload)
        stamped, known = self.world.scenario.stamped(task, payload)
        name = stamped["name"].rsplit("/")[-1]
        if self.world.written.setdefault(name, known) != known:
            self.world.anomaly(f"the file {name} was written twice, with other contents")
        return stamped
