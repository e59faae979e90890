"""What waiting and not waiting cost: latency and work against alpha, checkpoint interval and kind of retraction.

The ordering stage and the matcher, in memory, over generated logs: seed 001's (one stream, count windows, one source that
falls behind in growing steps) and one like seed 004's positions (many keys, a high rate, jitter). Latency is the clock's time
at publication less the time something was decided, so it does not depend on the machine.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from bench.bars import Bar
from spark_jobs.cep.arrays import NOT_HELD, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.matcher import TIMESTAMP
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.windows import Window
from spark_jobs.delays import Delay, late
from spark_jobs.detect import Settings, detect
from spark_jobs.generate import Recipe, generate
from spark_jobs.ingest import ingest
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.ordering.edits import OPEN, Spans, edits
from spark_jobs.ordering.revisions import Revision, revision, said, within
from spark_jobs.ordering.slack import Slack, follow
from spark_jobs.ordering.speculation import Speculation, adapted
from spark_jobs.ordering.states import State, base_of, corrected, forward
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.recovery.policy import EveryEvents, Since
from spark_jobs.runner import InlineRunner
from spark_jobs.streams import in_time

EVENTS = 1_000_000
# A tick is a microsecond, and an event happens at every tick.
TYPES = {"sn": pa.int64(), "ts": TIMESTAMP, "key": pa.string(), "type": pa.string(), "v": pa.int64()}


@dataclass(frozen=True)
class Workload:
    """A log in order of arrival, and what is looked for in it."""

    name: str
    operator: Operator
    events: pa.Table  # sn, stream_ts (the time of the event), key, type, v
    clock: str  # the type whose events set the clock
    batch: int  # arrivals that are published together
    revise: int
    # How many events a processor can match while one tick passes: what makes speculation a question of load.
    power: float


def windows(events: int = EVENTS, size: int = 10_000, slide: int = 2_000) -> Workload:
    """Seed 001, section 7: window 10,000, slide 2,000, one of three sources delayed in growing steps, then on time again."""
    operator = _operator("sequence", "A -> B -> C", 30, window=Window("count", size, slide))
    growing = Delay(1, events // 4, events // 2, events // 2_000, every=events // 20)
    return Workload("windows", operator, _log(events, 1, (growing,), 20), "a", 500, events // 50, power=2.2)


def positions(events: int = EVENTS, batch: int = 200, revise: int | None = None) -> Workload:
    """Like seed 004's: 144 transmitters, a pattern with negation, all sources jitter, some in bursts of delay."""
    operator = _operator("hits", "A -> !B -> C", 250, partition_by="key", within=5_000)
    delays = (Delay(1, events // 5, events // 10, 600), Delay(2, events // 2, events // 4, 150, every=events // 20))
    return Workload("positions", operator, _log(events, 144, delays, 300), "a", batch, revise or events // 50, power=2.2)


def _operator(name: str, pattern: str, share: int, **more: Any) -> Operator:
    """A sequence of the three types; only so many events of a thousand count."""
    define = {letter: f"type = '{letter.lower()}' AND v < {share}" for letter in "ABC"}
    return Operator(name=name, pattern=parse_pattern(pattern), define=define, types=TYPES, **more)


def _log(events: int, keys: int, delays: tuple[Delay, ...], jitter: int) -> pa.Table:
    random = np.random.default_rng(7)
    since, source = np.arange(events, dtype=np.int64), random.integers(0, 3, events)
    seen = late(since, source, delays, jitter, random)
    order = np.argsort(seen, kind="stable")
    names = pa.array([f"k{k}" for k in range(keys)])
    return pa.table({
        "sn": np.arange(1, events + 1),
        "stream_ts": pa.array(since[order], TIMESTAMP),
        "ts": pa.array(since[order], TIMESTAMP),
        "key": pa.DictionaryArray.from_arrays(pa.array(random.integers(0, keys, events).astype(np.int32)), names),
        "type": pa.DictionaryArray.from_arrays(pa.array(source[order].astype(np.int8)), pa.array(["a", "b", "c"])),
        "v": random.integers(0, 1_000, events),
    })


@dataclass
class Measured:
    """What one run cost and brought."""

    latency: float = 0.0
    latencies: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    again: int = 0  # events matched again
    late: int = 0  # events that came after something later was published
    retracted: int = 0
    asserted: int = 0
    alpha: float = 1.0  # the mean
    seconds: float = 0.0
    k: int = 0
    states: int = 0  # the most that were kept at the same time
    edits: int = 0  # of windows, that late events have brought about: what internal replay tells its instances
    resent: int = 0  # events that it would have had to send again instead
    right: bool = False


def run(workload: Workload, speculation: float | None, *, every: int = 1_000, full: bool = False) -> Measured:
    """Let a log arrive; `speculation` is alpha, or None to let it follow the load."""
    return _Run(workload, speculation, every, full).measured()


def disorder(master: str) -> list[Bar]:
    """The bars of the ordering stage."""
    bars: list[Bar] = []
    wrong = 0
    # The headline is seed 004's. Seed 001's windows wait for more than order: for the batch, and for the source that is late.
    for workload, lower in ((positions(), 0.4), (windows(), None)):
        buffered, adaptive = run(workload, 1.0), run(workload, None)
        demand, full = run(workload, 0.2), run(workload, 0.2, full=True)
        wrong += sum(not done.right for done in (buffered, adaptive, demand, full))
        bars += [
            Bar(f"{workload.name}: mean latency of buffering", buffered.latency, unit="ticks"),
            Bar(f"{workload.name}: lower with adaptive speculation", 1 - adaptive.latency / buffered.latency, lower, unit="%"),
            Bar(f"{workload.name}: complex events taken back, on demand", demand.retracted),
            Bar(
                f"{workload.name}: fewer than by full retraction", 1 - demand.retracted / max(1, full.retracted), 0.85, unit="%"
            ),
        ]
        if demand.resent:
            bars.append(
                Bar(f"{workload.name}: edits of windows, of the events replayed", demand.edits / demand.resent, unit="%")
            )
    bars.append(Bar("wrong final outputs", wrong, 0, at_least=False))
    bars.append(Bar("matched again per late event, 10 million against 1 million events", _growth(), 1.2, at_least=False))
    return [*bars, Bar("detection without disorder, with the stage against without", _without_disorder(), 1.05, at_least=False)]


def _growth() -> float:
    """The same delays in a log ten times as long. Latency is no question here, so batches are large."""
    small, large = (run(positions(events, 2_000, EVENTS // 50), 0.2) for events in (EVENTS, 10 * EVENTS))
    return (large.again / large.late) / (small.again / small.late)


IN_ORDER = 4_000_000
PLAIN = """
name: in_order
source:
  columns: {ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}
  attributes: {amount: double}
operators:
  abc:
    partition_by: key
    pattern: A -> B -> C
    define: {A: type = 'a', B: type = 'b' AND amount > 5, C: type = 'c'}
    within: 5 min
    measures: {loss: C.amount}
"""


def _without_disorder() -> float:
    """Detection, savepoints and commits over one log that is in order; in turn, and the quickest of five each."""
    with TemporaryDirectory() as folder:
        plain, ordered = (parse_pipeline(text, "in_order.yaml") for text in (PLAIN, f"{PLAIN}ordering: {{}}\n"))
        generate(Recipe(IN_ORDER, types=4, keys=1_000, rate=200), Path(folder, "landing"))
        lake = Lake(Path(folder, "lake"))
        ingest(plain, Path(folder, "landing"), lake, InlineRunner(), Attempt(lake, "ingest"))
        taken: dict[str, list[float]] = {"plain": [], "ordered": []}
        for turn in range(5):
            for name, pipeline in (("plain", plain), ("ordered", ordered)):
                mine = Lake(shutil.copytree(lake.root, Path(folder, f"{name}-{turn}")))
                began = time.perf_counter()
                detect(pipeline, mine, InlineRunner(), Attempt(mine, "detect"), Settings())
                taken[name].append(time.perf_counter() - began)
        return min(taken["ordered"]) / min(taken["plain"])


class _Run:
    def __init__(self, workload: Workload, speculation: float | None, every: int, full: bool) -> None:
        self.workload, self.every, self.full = workload, every, full
        self.adaptive = speculation is None
        self.speculation = Speculation(1.0 if speculation is None else speculation)
        self.events, self.operator = workload.events, workload.operator
        self.ts, self.stream = int64s(workload.events["stream_ts"]), np.maximum.accumulate(int64s(workload.events["stream_ts"]))
        types = workload.events["type"].combine_chunks()
        self.ticks = np.asarray(types.indices) == types.dictionary.to_pylist().index(workload.clock)
        self.slack = Slack()
        self.states: tuple[State, ...] = (State(),)
        self.published: pa.Table | None = None  # what stands and may still be taken back, with the time it was published
        self.settled: list[pa.Table] = []
        self.found = Measured()

    def measured(self) -> Measured:
        began = time.perf_counter()
        alphas = []
        for low in range(0, self.ts.size, self.workload.batch):
            self._take(low, min(low + self.workload.batch, self.ts.size))
            alphas.append(self.speculation.alpha)
        self.found.seconds = time.perf_counter() - began
        stands = pa.concat_tables([part for part in (*self.settled, self.published) if part is not None])
        self.found.latencies = int64s(stands["_published"]) - int64s(stands["_at_ts"])
        self.found.latency = float(self.found.latencies.mean())
        self.found.alpha, self.found.k = float(np.mean(alphas)), self.slack.k
        self.found.right = sorted(said(stands, ()).to_pylist()) == sorted(said(self._reference(), ()).to_pylist())
        return self.found

    def _take(self, low: int, high: int) -> None:
        before = self.states[-1].upto
        course = follow(self.slack, self.ts[low:high], self.ticks[low:high])
        clock, self.slack = self.slack.clk, course.after
        upto = max(before, self.slack.frontier(self.speculation.alpha))
        times = np.sort(self.ts[low:high][self.ts[low:high] <= before])
        base = self.states[base_of(self.states, int(times[0]) if times.size else before + 1)]
        events = self._events(base, high, upto)
        done = int((int64s(events["stream_ts"]) > before).sum())
        if times.size:
            done += self._correct(events, times)
        for cut in self._cuts(events, upto):
            matches, state = forward(self.operator, self.states[-1], events, cut)
            self.states += (state,)
            self._publish(matches)
        self._forget()
        self.found.states = max(self.found.states, len(self.states))
        if self.adaptive and clock > NOT_HELD:
            span = max(1, self.slack.clk - clock)
            self.speculation = adapted(self.speculation, done / (span * self.workload.power))

    def _events(self, base: State, high: int, upto: int) -> pa.Table:
        """What the state needs, and everything after it, as tasks read it: not the whole log."""
        floor = int(np.searchsorted(self.stream[:high], base.upto, side="right"))
        tail = np.arange(floor, high)
        tail = tail[(self.ts[tail] > base.upto) & (self.ts[tail] <= upto)]
        rows = np.union1d(tail, base.needed - 1)
        return in_time(self.events.take(pa.array(rows)))

    def _correct(self, events: pa.Table, times: Int64s) -> int:
        self._count_edits(events, times)
        done = corrected(self.operator, self.states, events, times, to_the_end=self.full)
        self.states = done.states
        self.found.again += done.again
        self.found.late += times.size
        if self.published is None:
            self._publish(done.matches)
            return done.again
        inside = within(self.published["_at_ts"], done.stretches)
        standing = self.published.filter(pa.array(inside))
        change = revision(standing, done.matches, ())
        if self.full:
            change = Revision(_since(standing, int(times[0])), _since(done.matches, int(times[0])))
        gone = pa.compute.is_in(said(self.published, ()), value_set=said(change.retract, ()))
        self.published = self.published.filter(pa.compute.invert(gone))
        self.found.retracted += change.retract.num_rows
        self._publish(change.assert_)
        return done.again

    def _count_edits(self, events: pa.Table, times: Int64s) -> None:
        """Windows that count events, before and after late ones were put in, from the state gone back to."""
        window = self.operator.window
        if window.kind != "count":
            return
        base = self.states[base_of(self.states, int(times[0]))]
        ts, sn = int64s(events["stream_ts"]), int64s(events["sn"])
        after = ts > base.upto
        ts, sn = ts[after], sn[after]
        late = np.isin(ts, times)
        todo = edits(sn, *(_counted(numbers, base.read, window) for numbers in (sn[~late], sn)))
        self.found.edits += sum(part.size for part in (todo.deleted, todo.opened, todo.reopened, todo.added[0], todo.closed[0]))
        self.found.resent += sn.size

    def _publish(self, matches: pa.Table) -> None:
        if not matches.num_rows:
            return
        self.found.asserted += matches.num_rows
        matches = matches.append_column("_published", pa.array(np.full(matches.num_rows, self.slack.clk)))
        self.published = pa.concat_tables([part for part in (self.published, matches) if part is not None])

    def _cuts(self, events: pa.Table, upto: int) -> list[int]:
        head = self.states[-1].upto
        ts = int64s(events["stream_ts"])
        new = ts[(ts > head) & (ts <= upto)]
        places = EveryEvents(self.every).places(np.ones(new.size, bool), Since())
        return [cut for cut in sorted({int(new[p]) - 1 for p in places if p} | {upto}) if cut > head]

    def _forget(self) -> None:
        """States and rows that no late event can change any more."""
        horizon = self.slack.final - self.workload.revise
        self.states = self.states[max(0, base_of(self.states, horizon + 1)) :]
        if self.published is not None:
            old = int64s(self.published["_at_ts"]) <= self.states[0].upto
            self.settled.append(self.published.filter(pa.array(old)))
            self.published = self.published.filter(pa.array(~old))

    def _reference(self) -> pa.Table:
        """In one go, over the events in order of time."""
        upto = self.states[-1].upto
        rows = np.flatnonzero(self.ts <= upto)
        events = in_time(self.events.take(pa.array(rows)))
        return forward(self.operator, State(), events, upto).matches


def _since(matches: pa.Table, ts: int) -> pa.Table:
    return matches.filter(pa.array(int64s(matches["_at_ts"]) >= ts))


def _counted(sns: Int64s, before: int, window: Window) -> Spans:
    """The windows that open among some events, which have the places after `before`."""
    first = -(-before // window.slide) * window.slide
    starts = np.arange(first, before + sns.size, window.slide) - before
    last = starts + window.size - 1
    close = np.where(last < sns.size, sns[np.minimum(last, sns.size - 1)], OPEN) if sns.size else starts
    return Spans(sns[starts], close)
