"""Past these machines: docs/capacity.md, from measured costs of the stages and a simulation that is fed with them.

    python -m bench.capacity            the page, from bench/capacity.json
    python -m bench.capacity measure    the costs first, on this machine, then the page

What is simulated (SimPy) is one driver, which does one thing after the other, and executors with one core each. A batch gives
every executor one task; the driver starts them one by one, waits for the slowest, numbers what was found, writes the savepoint
and commits. Costs of the driver that grow with the number of tasks, files or events held were measured as slopes on two cores
and are taken as straight lines: what is not measured is the network, and a lake that is slower when a thousand read it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import simpy

from spark_jobs.detect import JOB_MATCHES

HERE = Path(__file__).resolve().parent
MEASURED = HERE / "capacity.json"
PAGE = HERE.parent / "docs" / "capacity.md"

EXECUTORS = (1, 2, 10, 100, 1_000)
# Per executor and batch: as many as make what a batch costs anyway a small share, and fit into a gigabyte.
TASK_EVENTS = 1_000_000
BATCHES = 20
# Executors of one driver, where there are several drivers.
GROUP = 100
# A day of batches every ten seconds: what the table has grown to when nobody has compacted it.
DAY = 8_640
# Until Airflow has noticed that a driver is gone (FACTS: a second for a process that is killed), and tries again.
NOTICED = 1.0
RETRY = 10.0


@dataclass(frozen=True)
class Costs:
    """Seconds, measured with one executor unless they are of the driver alone."""

    measured_on: str
    batch: float  # of the driver, whatever is in a batch
    event: float  # of an executor: scan, predicate, kernel, write
    match: float  # of the driver, or of an executor if there are many: number one complex event and write it
    matches: float  # complex events, per event of the log
    task: float  # of the driver, for every task beyond the first: start it, take its answer
    shard: float  # .. to save what it keeps
    commit: float  # .. for the savepoint and the commit of one file
    commit_file: float  # .. for every file beyond the first
    table_file: float  # .. for every file that the table has
    held: float  # .. for every event that is held: v_skip is decoded, joined, coded
    held_share: float  # events held, of those in a batch of TASK_EVENTS
    held_bytes: float  # of the savepoint, for every event held
    file: float  # of an executor, to open one more file of the log
    start: float  # of a driver, until its first task can run
    spread: float  # of the time of tasks that do the same: standard deviation, of the mean
    wall: float  # what all of it has to add up to: a batch of TASK_EVENTS events, one executor, as measured


@dataclass(frozen=True)
class Plan:
    """How many executors work, and on how much."""

    executors: int
    task_events: int = TASK_EVENTS
    files: int = 1  # of the log, that each task opens
    table_files: int = 0  # that the table of complex events has already

    @property
    def events(self) -> int:
        return self.executors * self.task_events


@dataclass(frozen=True)
class Simulated:
    """What a plan comes to."""

    plan: Plan
    seconds: float  # per batch
    spent: dict[str, float]  # of it, by what the driver did or waited for

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.plan.events / self.seconds

    @property
    def breaks(self) -> str:
        """What grows into the way first: the largest cost that more executors do not share."""
        return max(SERIAL, key=lambda what: self.spent[what])


WORK = "executors"
# What the driver does alone, and grows with the cluster.
SERIAL = ("starting tasks", "skip bitmaps", "numbering", "savepoint and commit", "small files")


def simulated(costs: Costs, plan: Plan, batches: int = BATCHES, seed: int = 1) -> Simulated:
    """The mean of some batches."""
    world = _World(costs, plan, random.Random(seed))  # noqa: S311  # not a secret
    world.env.run(world.env.process(world.driver(batches)))
    spent = {what: seconds / batches for what, seconds in world.spent.items()}
    return Simulated(plan, world.env.now / batches, spent)


class _World:
    """One driver and its executors."""

    def __init__(self, costs: Costs, plan: Plan, rng: random.Random) -> None:
        self.costs, self.plan, self.rng = costs, plan, rng
        self.env = simpy.Environment()
        self.executors = simpy.Resource(self.env, plan.executors)
        self.spent = dict.fromkeys((WORK, *SERIAL, "fixed"), 0.0)

    def driver(self, batches: int) -> Generator[simpy.Event, Any, None]:
        for _ in range(batches):
            yield from self.batch()

    def batch(self) -> Generator[simpy.Event, Any, None]:
        costs, plan = self.costs, self.plan
        yield from self.alone("fixed", costs.batch)
        tasks = []
        for number in range(plan.executors):
            if number:
                yield from self.alone("starting tasks", costs.task)
            tasks.append(self.env.process(self.task()))
        began = self.env.now
        yield self.env.all_of(tasks)
        self.spent[WORK] += self.env.now - began
        yield from self.alone("skip bitmaps", costs.held * self.held)
        yield from self.numbering(plan.events * costs.matches)
        files = costs.commit_file * (plan.executors - 1)
        yield from self.alone("savepoint and commit", costs.commit + costs.shard * (plan.executors - 1) + files)
        yield from self.alone("small files", costs.table_file * plan.table_files)

    def numbering(self, matches: float) -> Generator[simpy.Event, Any, None]:
        """As detection does it: a few in the driver, many in slices, each a task."""
        if matches < JOB_MATCHES:
            yield from self.alone("numbering", self.costs.match * matches)
            return
        slices = self.plan.executors
        yield from self.alone("starting tasks", self.costs.task * slices)
        yield from self.alone("numbering", self.costs.match * matches / slices)

    @property
    def held(self) -> float:
        """Events beyond those that one executor's share of the log holds, whose cost is part of what was measured.

        A larger cluster is there for more events per second, and WITHIN holds them for as long as before; larger batches hold
        no more.
        """
        return self.costs.held_share * TASK_EVENTS * (self.plan.executors - 1)

    def alone(self, what: str, seconds: float) -> Generator[simpy.Event, Any, None]:
        self.spent[what] += seconds
        yield self.env.timeout(seconds)

    def task(self) -> Generator[simpy.Event, Any, None]:
        with self.executors.request() as place:
            yield place
            work = self.costs.event * self.plan.task_events
            # A task may take longer than its kind, and by the slowest of many a batch is delayed.
            late = max(0.0, 1 + self.rng.gauss(0.0, self.costs.spread))
            yield self.env.timeout(work * late + self.costs.file * (self.plan.files - 1))


# After a failure


def after_driver(costs: Costs, found: Simulated) -> float:
    """Seconds from the kill of a driver until the batch that it was in is published: noticed, tried again, done again."""
    residual = costs.held_share * TASK_EVENTS * costs.event
    return NOTICED + RETRY + costs.start + residual + found.seconds


def after_executor(costs: Costs, found: Simulated) -> float:
    """Seconds that a batch is late because an executor was lost at the end of its task: another one does that again."""
    return NOTICED + costs.task + costs.event * found.plan.task_events


def in_groups(costs: Costs, executors: int, group: int = GROUP) -> Simulated:
    """The answer to a driver that is too busy: several of them, each with keys, a lake and executors of its own."""
    one = simulated(costs, Plan(group))
    groups = executors // group
    return Simulated(replace(one.plan, task_events=one.plan.task_events * groups), one.seconds, one.spent)


# The page


def page(costs: Costs) -> str:
    found = [simulated(costs, Plan(count)) for count in EXECUTORS]
    parts = [
        "# Capacity: past these machines",
        _about(costs),
        "## Events per second and recovery",
        f"Every executor has one core and takes {TASK_EVENTS:,} events per batch, so that batches grow with the cluster, and "
        "so does what is held.",
        _rates(costs, found),
        "Recovery is the time from the kill of the driver until the batch that it was in is published: "
        f"{NOTICED:.0f} s until it is noticed, {RETRY:.0f} s until Airflow tries again, {costs.start:.1f} s to start Spark, "
        "the replay, and the batch once more. A lost executor costs its task once more; Airflow need not retry.",
        "## Where the time of a batch goes",
        _spent(found),
        "## What breaks first, and the answer",
        _first(found),
        *_answers(costs, found),
        "## What was measured",
        _costs(costs),
        "## What this does not know",
        "The network, a shared file system or object store that a thousand executors read at once, machines that are slower "
        "than others, and keys of which one holds half of the events: such a key is one task, however many executors there "
        "are. Slopes were measured on two cores between one and eight tasks, one and a thousand files of a commit, and none "
        "and some millions of events held; beyond that they are straight lines because nothing better is known.",
    ]
    return "\n\n".join(parts) + "\n"


def _about(costs: Costs) -> str:
    return (
        "Made by `make capacity` from `bench/capacity.json`: costs that were measured on this project's own stages "
        f"({costs.measured_on}), and a simulation of one driver and many executors that is fed with them. With one executor "
        "the simulation gives what was measured; everything else on this page is derived, and none of it was run. "
        "`python -m bench.capacity measure` measures anew."
    )


def _rates(costs: Costs, found: list[Simulated]) -> str:
    one = found[0].rate
    head = ["executors", "batch, events", "batch, s", "events/s", "of linear", "recovery, s", "late by a lost executor, s"]
    rows = [
        [
            f"{s.plan.executors:,}",
            f"{s.plan.events:,}",
            f"{s.seconds:.2f}",
            _millions(s.rate),
            f"{s.rate / one / s.plan.executors:.0%}",
            f"{after_driver(costs, s):.1f}",
            f"{after_executor(costs, s):.1f}",
        ]
        for s in found
    ]
    return _table(head, rows)


def _spent(found: list[Simulated]) -> str:
    names = ("fixed", WORK, *(name for name in SERIAL if name != "small files"))
    rows = [[f"{s.plan.executors:,}", *(f"{s.spent[name] / s.seconds:.1%}" for name in names)] for s in found]
    return _table(["executors", *names], rows)


def _first(found: list[Simulated]) -> str:
    last = found[-1]
    share = last.spent[last.breaks] / last.seconds
    by = next((s.plan.executors for s in found if s.spent[WORK] < s.seconds / 2), None)
    half = f"From {by:,} executors on they wait for the driver more than half of the time. " if by else ""
    return (
        f"**{last.breaks.capitalize()}**: with {last.plan.executors:,} executors {share:.0%} of a batch. {half}"
        "All of it is work that one driver does alone, so that more executors do not help; what helps is below."
    )


def _answers(costs: Costs, found: list[Simulated]) -> list[str]:
    most = found[-1].plan.executors
    groups = in_groups(costs, most)
    larger = simulated(costs, Plan(most, task_events=4 * TASK_EVENTS))
    held = costs.held_share * found[-1].plan.events
    scattered = simulated(costs, Plan(GROUP, files=100))
    grown = simulated(costs, Plan(GROUP, table_files=DAY * GROUP))
    plain = next(s for s in found if s.plan.executors == GROUP)
    return [
        _table(
            ["what breaks", "how it shows", "the answer", "what it gives"],
            [
                [
                    "driver: starting tasks, numbering, commits",
                    f"{most:,} executors run at {_millions(found[-1].rate)} events/s",
                    f"groups of {GROUP} executors, each a pipeline with its own keys, lake and driver (split the landing "
                    "folder by key); drivers share nothing",
                    f"{_millions(groups.rate)} events/s; recovery {after_driver(costs, groups):.1f} s, of one group",
                ],
                [
                    "the same, where results may come later",
                    "",
                    "batches four times as large (`--batch-events`)",
                    f"{_millions(larger.rate)} events/s; recovery {after_driver(costs, larger):.1f} s",
                ],
                [
                    "skip bitmaps",
                    f"{held:,.0f} events held make savepoints of {held * costs.held_bytes / 1e6:,.1f} MB, per batch",
                    "`recovery: {save: {events: n}}` writes fewer of them, WITHIN bounds what is held",
                    "a start replays what came since",
                ],
                [
                    "small files of the log",
                    f"{GROUP} executors whose tasks open 100 files each instead of one: {_millions(scattered.rate)} events/s "
                    f"instead of {_millions(plain.rate)}",
                    "ingest less often, so that a commit brings a file of some megabytes per bucket",
                    f"{_millions(plain.rate)} events/s",
                ],
                [
                    "small files of the output",
                    f"a day of batches leaves {DAY * GROUP:,} files; a commit then takes "
                    f"{grown.seconds - plain.seconds:.2f} s more",
                    "Delta's `optimize` from time to time, which detection allows for; larger batches; one table per group",
                    f"{_millions(plain.rate)} instead of {_millions(grown.rate)} events/s",
                ],
            ],
        ),
        f"A log needs at least as many buckets (`source.buckets`, at most 4,096) as there are executors; {most:,} executors in "
        f"groups of {GROUP} need {GROUP} each.",
    ]


def _costs(costs: Costs) -> str:
    shown = {
        "a batch of a million events, one executor": f"{costs.wall:.3f} s",
        ".. of it on the executor: scan, predicates, kernel, write": f"{costs.event * TASK_EVENTS:.3f} s",
        ".. of it in the driver, whatever is in the batch": f"{costs.batch * 1e3:.0f} ms",
        ".. of it numbering and writing complex events": f"{costs.match * costs.matches * TASK_EVENTS * 1e3:.0f} ms",
        ".. of it savepoint and commit": f"{costs.commit * 1e3:.0f} ms",
        "one more task, in the driver": f"{costs.task * 1e3:.2f} ms",
        "one more shard in the savepoint": f"{costs.shard * 1e3:.3f} ms",
        "one more file in a commit": f"{costs.commit_file * 1e6:.1f} us",
        "one more file in the table, per commit": f"{costs.table_file * 1e6:.3f} us",
        "one more event held, in the driver": f"{costs.held * 1e9:.0f} ns",
        ".. and in the savepoint": f"{costs.held_bytes:.2f} bytes",
        "events held, of a batch": f"{costs.held_share:.2%}",
        "one more file of the log to open, in a task": f"{costs.file * 1e3:.2f} ms",
        "starting a driver": f"{costs.start:.1f} s",
        "spread of equal tasks": f"{costs.spread:.0%}",
    }
    return _table(["what", "measured"], [[name, value] for name, value in shown.items()])


def _millions(rate: float) -> str:
    return f"{rate / 1e6:,.1f} million"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def load(file: Path = MEASURED) -> Costs:
    return Costs(**json.loads(file.read_text()))


def main(*words: str) -> None:
    if words == ("measure",):
        from bench.capacity_costs import measure

        MEASURED.write_text(json.dumps(asdict(measure()), indent=2) + "\n")
    PAGE.write_text(page(load()))


if __name__ == "__main__":
    main(*sys.argv[1:])
