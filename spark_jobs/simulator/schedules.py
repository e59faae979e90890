"""Schedules: which attempts run, what strikes them, who waits for whom; all of them around every moment, or drawn from a seed.

simulate(17)                    the random schedule of a seed
exhaustive()                    every schedule of one, two or three attempts around every moment of three batches
simulate_many(1, 20_000, 2)     all of those, and so many of these, in two processes
replay("schedule 815")          one of those again, replay("seed 17") one of these
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from random import Random

from spark_jobs.detect import Settings
from spark_jobs.faults.phases import DETECT_PHASES
from spark_jobs.lake.outputs import app_of
from spark_jobs.pipeline import SaveSpec
from spark_jobs.simulator.scenario import PIPELINES, Row, Scenario, scenario
from spark_jobs.simulator.world import (
    ANSWERED,
    BREAK,
    CRASH,
    DENY,
    DONE,
    LATE,
    LOSE,
    ORPHAN,
    OUTPUTS_OPENING,
    PAUSE,
    RAISE,
    REQUESTED,
    SAVEPOINT_FINDING,
    Moment,
    Strike,
    World,
)

# What an attempt passes in a batch, in order: every phase, and both ends of the commit.
_AFTER_COMMIT = (ANSWERED, "detect.published", "detect.finished")
_BEFORE_COMMIT = (*(phase for phase in DETECT_PHASES if phase not in _AFTER_COMMIT), REQUESTED)
# First, middle and last batch.
BATCHES = 3
# A log whose complex events lie in all batches.
_LOG = 2
# Later than anything else in a schedule: a zombie wakes when all is done.
_FOREVER = 1_000_000
# Seeds that follow each other share a log, and so what its tasks have answered.
_SEEDS_PER_LOG = 250
# Attempts without faults that may be needed at the end: one may still lose its place to a commit that was under way.
_LAST_ATTEMPTS = 3

Strikes = Mapping[tuple[int, Moment], tuple[Strike, ...]]


@dataclass(frozen=True)
class Simulated:
    """What came of one schedule."""

    name: str  # of the schedule: `replay` runs it again
    said: str  # what it does
    attempts: int
    strikes: int
    complex_events: int
    anomalies: tuple[str, ...]

    def __str__(self) -> str:
        again = f"python -c \"from spark_jobs.simulator.schedules import replay; print(replay('{self.name}'))\""
        found = "; ".join(self.anomalies) or "no anomaly"
        return f"{found} [{self.said}]; again with: {again}"


def simulate(seed: int) -> Simulated:
    """A log, a pipeline, up to three attempts with settings of their own, faults and an interleaving, all from one number."""
    number = seed // _SEEDS_PER_LOG
    shared, own = Random(f"log {number}"), Random(f"schedule {seed}")  # noqa: S311 - repeats itself
    where = scenario(list(PIPELINES)[number % len(PIPELINES)], number)
    policies = Random(f"policies {seed}")  # noqa: S311 - repeats itself
    chance = _Chance(own)
    world = World(where, chance, events=own.choice((where.events, where.events, own.randint(1, where.events))))
    if world.events < where.events:
        world.stage.plan(own.randint(1, 80), lambda: setattr(world, "events", where.events))
    sizes, shards = shared.sample(range(5, 20), 2), shared.sample((1, 2, 3), 2)  # few, so that answers are known
    for attempt in range(1, own.randint(1, 3) + 1):
        chance.meet(attempt)
        settings = Settings(own.choice(sizes), own.choice(shards))
        world.start(
            settings, own.choice((0, 0, 10, 40, 120)), policies.choice((None, None, SaveSpec(events=12), SaveSpec(events=25)))
        )
    if own.random() < 0.2:
        world.stage.plan(own.randint(10, 150), lambda: world.damage(own.randrange(100)))
    return _simulated(f"seed {seed}", world, settings)


def exhaustive() -> Iterator[Simulated]:
    return (_run(number, schedule) for number, schedule in enumerate(_schedules()))


@dataclass(frozen=True)
class Some:
    """What came of several schedules."""

    schedules: int
    anomalies: tuple[str, ...]


def simulate_many(seed: int, count: int, processes: int) -> Iterator[Some]:
    """All short schedules and so many drawn ones, in several processes; those that share a log in one of them."""
    stops = [*range((seed // _SEEDS_PER_LOG + 1) * _SEEDS_PER_LOG, seed + count, _SEEDS_PER_LOG), seed + count]
    seeds = [range(start, stop) for start, stop in zip([seed, *stops], stops, strict=False) if start < stop]
    # Not from the fork server: there is one in a process, and drills want it with everything loaded.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(_some, [None, *seeds])


def _some(seeds: range | None) -> Some:
    found = list(exhaustive() if seeds is None else map(simulate, seeds))
    return Some(len(found), tuple(str(one) for one in found if one.anomalies))


def replay(name: str) -> Simulated:
    """One schedule again, by its name."""
    kind, number = name.split()
    return simulate(int(number)) if kind == "seed" else _run(int(number), _schedules()[int(number)])


# Judging


def _simulated(name: str, world: World, settings: Settings) -> Simulated:
    """Run what is planned, then attempts without faults until one comes to the end, and judge."""
    world.stage.run()
    planned = len(world.outcomes)
    for _ in range(_LAST_ATTEMPTS):
        world.script = lambda number, moment: ()
        world.start(settings)
        world.stage.run()
        if world.outcomes[len(world.outcomes)] == DONE:
            break
    else:
        world.anomaly("no attempt came to the end")
    anomalies = (*world.anomalies, *_broken_properties(world))
    said = f"{world.scenario.name}: {', '.join(world.struck) or 'no fault'}; {' '.join(world.outcomes.values())}"
    return Simulated(name, said, planned, len(world.struck), len(_output(world)), anomalies)


def _settings(where: Scenario) -> Settings:
    return Settings(-(-where.events // BATCHES), 2)


@lru_cache(maxsize=8)
def _undisturbed(where: Scenario) -> list[Row]:
    """The output without faults: one attempt, one batch, one shard."""
    world = World(where, lambda number, moment: ())
    world.start(Settings(10 * where.events, 1))
    world.stage.run()
    if world.anomalies:
        raise AssertionError(f"{where.name} fails without faults: {world.anomalies}")
    return _output(world)


def _output(world: World) -> list[Row]:
    rows = []
    for file in world.outputs.files:
        rows += [(file.partition_values["operator"], *row) for row in world.scenario.rows(file.path)]
    return sorted(rows, key=lambda row: (row[0], row[3]))


def _broken_properties(world: World) -> list[str]:
    """The five properties of an output, against the failure-free run."""
    expected, actual = _undisturbed(world.scenario), _output(world)
    known, found = Counter(map(_identity, expected)), Counter(map(_identity, actual))
    broken = {
        "false positives": sum((Counter(set(found)) - known).values()),
        "false negatives": sum((known - found).values()),
        "duplicates": sum(max(0, count - max(1, known[row])) for row, count in found.items()),
        "false order": found == known and actual != expected,
        "not complete": sum(_reached(world, name) < world.events for name in world.scenario.pipeline.order),
    }
    return [f"{name}: {count}" for name, count in broken.items() if count]


def _identity(row: Row) -> Row:
    """A complex event without its numbers x and ordinal."""
    operator, _, y, _, *rest = row
    return (operator, y, *rest)


def _reached(world: World, operator: str) -> int:
    return world.outputs.numbers.get(f"{app_of(operator, 1)}#log_sn", 0)


# Drawn from a seed


class _Chance:
    """A script that draws what happens: each attempt has a temper, and may have a moment at which it ends."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._left: dict[int, int] = {}  # moments until the attempt ends, if it is to end
        self._unrest: dict[int, float] = {}

    def meet(self, attempt: int) -> None:
        self._left[attempt] = self._random.randint(1, 60) if self._random.random() < 0.7 else _FOREVER
        self._unrest[attempt] = self._random.choice((0.0, 0.1, 0.4, 0.9))

    def __call__(self, attempt: int, moment: Moment) -> Sequence[Strike]:
        random, strikes = self._random, []
        if random.random() < self._unrest[attempt]:
            strikes.append(Strike(PAUSE, random.choice((1, 2, 5, 20, 100, 1000))))
        self._left[attempt] -= 1
        ends, network = self._left[attempt] == 0, random.random() < 0.1
        if moment.name == REQUESTED and (ends or network):
            strikes.append(Strike(random.choice((ORPHAN, CRASH) if ends else (LOSE, BREAK, LATE)), random.randint(0, 60)))
        elif moment.name == ANSWERED and network:
            strikes.append(Strike(random.choice((LOSE, BREAK, DENY))))
        elif ends:
            strikes.append(Strike(random.choice((CRASH, CRASH, RAISE))))
        return strikes


# All of them


@dataclass(frozen=True)
class _Schedule:
    """What strikes which attempt where; attempts follow each other wherever one pauses or ends."""

    kind: str
    strikes: Strikes
    attempts: int
    other: bool = False  # the second attempt cuts the log otherwise


def _run(number: int, schedule: _Schedule) -> Simulated:
    where = scenario(schedule.kind, _LOG)
    left = dict(schedule.strikes)
    world = World(where, lambda attempt, moment: left.pop((attempt, moment), ()))
    for attempt in range(1, schedule.attempts + 1):
        world.start(_other(where) if schedule.other and attempt == 2 else _settings(where))
    done = _simulated(f"schedule {number}", world, _settings(where))
    if left:  # a fault that did not strike proves nothing
        missed = ", ".join(f"{attempt}:{moment}" for attempt, moment in left)
        return replace(done, anomalies=(*done.anomalies, f"never came to {missed}"))
    return done


def _other(where: Scenario) -> Settings:
    return Settings(-(-where.events // 5), 1)


@lru_cache(maxsize=1)
def _schedules() -> list[_Schedule]:
    return [schedule for kind in ("keyed", "count") for schedule in _of_kind(kind)]


def _of_kind(kind: str) -> Iterator[_Schedule]:
    for moment in _moments(0):
        for strike in _kinds(moment):
            yield _Schedule(kind, {(1, moment): (strike,)}, attempts=1)
            yield _Schedule(kind, {(1, moment): (Strike(PAUSE), strike)}, attempts=2)
    for first, second in _pairs():
        stop, crash, zombie = (Strike(PAUSE),), (Strike(CRASH),), (Strike(PAUSE, _FOREVER),)
        yield _Schedule(kind, {(1, first): stop, (2, second): stop}, attempts=2)
        yield _Schedule(kind, {(1, first): crash, (2, second): crash}, attempts=2)
        yield _Schedule(kind, {(1, first): zombie, (2, second): crash}, attempts=3)
    for first, second in _pairs(other=kind):
        yield _Schedule(kind, {(1, first): (Strike(PAUSE),), (2, second): (Strike(PAUSE),)}, attempts=2, other=True)
    yield from _under_way(kind)


def _under_way(kind: str) -> Iterator[_Schedule]:
    """A commit that arrives while the next attempt stands at some moment, or after it; its own attempt is gone or was told."""
    for batch in range(1, BATCHES + 1):
        for second in _moments(batch - 1):
            for lost in (LATE, ORPHAN):
                strikes = {(1, Moment(REQUESTED, batch)): (Strike(lost, 500),), (2, second): (Strike(PAUSE, 1000),)}
                yield _Schedule(kind, strikes, attempts=2)


def _kinds(moment: Moment) -> list[Strike]:
    kinds = [CRASH, RAISE]
    if moment.name == REQUESTED:
        kinds += [LOSE, BREAK, LATE, ORPHAN]
    if moment.name == ANSWERED:
        kinds += [LOSE, BREAK, DENY]
    return [Strike(kind) for kind in kinds]


def _pairs(other: str = "") -> Iterator[tuple[Moment, Moment]]:
    """Where a first attempt is stopped, and where then a second one is."""
    for first in _moments(0):
        published = first.batch if first.name in _AFTER_COMMIT else max(0, first.batch - 1)
        for second in _moments(published, _batches_left(other, published) if other else BATCHES - published):
            yield first, second


def _batches_left(kind: str, published: int) -> int:
    where = scenario(kind, _LOG)
    left = where.events - published * _settings(where).batch_events
    return max(0, -(-left // _other(where).batch_events))


def _moments(published: int, batches: int | None = None) -> Iterator[Moment]:
    """All moments of an attempt that finds so many batches published, in order."""
    yield Moment(OUTPUTS_OPENING, 0)
    if published:
        yield Moment(SAVEPOINT_FINDING, 0)
    left = BATCHES - published if batches is None else batches
    for batch in range(published + 1, published + left + 1):
        yield from (Moment(name, batch) for name in (*_BEFORE_COMMIT, *_AFTER_COMMIT))
