"""The experiment of seed 000, section IV, on the operator alone: what a failure costs with v_skip, and without.

Independent streams are the keys of one operator and advance together, in micro-batches; the operator fails at half of the
input. Three ways of keeping events upstream are compared, all of them with the engine's own functions:

    base       the paper's method without v_skip (section III-B2): a savepoint waits for the acks of `interval` complex events
               per stream and is that of the first of them; SN_trim is just before the first event of the first open window
    trim only  the same, with SN_trim just before the first event that is still held: inside of open windows, which takes
               floors that the paper does not have
    v_skip     v_skip is stored with every micro-batch and waits for no ack

The limits compare `v_skip` with `base`; `trim only` says how much of that a better trim mark would do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.bars import Bar
from bench.savepoints_spark import spark_bars
from schemas.types import TIMESTAMP
from spark_jobs.cep import kernel, sequencer
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.matcher import Known, Replay, key_codes, match_shard, step_mask
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.windows import Window
from spark_jobs.recovery import sets
from spark_jobs.recovery.savepoint import NO_NUMBERS, Kept, Savepoint, ShardSavepoint, advance, fresh_savepoint, shard_savepoint

Mode = Literal["base", "trim only", "v_skip"]
MODES: tuple[Mode, ...] = ("base", "trim only", "v_skip")

# As many events as 100 streams of the paper's million; the paper has 50. Many streams make micro-batches of 400,000 events:
# what a savepoint costs whatever its size (40 us, of which most is Python that has left the processor's caches) shows in
# small ones, of which FEW streams are an example.
STREAMS, EVENTS, FEW = 2_000, 50_000, 100
SIZE, SLIDES = 1_000, (50, 800)  # time units: microseconds, one event of every stream in each
INTERVALS = (8, 16, 32, 64, 128)  # complex events per stream; multiples of the first
BATCH = 200  # time units
LETTERS = pa.array([chr(ord("a") + k) for k in range(10)])
# How long ago the last ack came is luck, and all streams share it, so failures at several moments are averaged: spread
# over the longest save interval, which is about 5,000 time units.
FAILURES, SPREAD = 5, 5_500
AFTERWARDS = 10  # batches in which a recovered operator has to do as the undisturbed one
ROUNDS = 3

FLAT_LOGS = (1_000_000, 10_000_000, 50_000_000)
# So many batches that most of the shortest log, too, is read with a residual: only the first batch has none.
FLAT_BATCH, FLAT_KEYS, FLAT_ROUNDS = 100_000, 10_000, 3
MILLISECOND = 1_000
WITHIN = 100_000 * MILLISECOND

SCALARS = 14 * 8  # of a row of the savepoints table, what is neither a set nor the operator's name: at most 14 numbers
OUTPUT = ["x", "y", "ordinal", "key", "ts", "symbols", "sns", "timed_out"]  # of a complex event, what no batch may change


def savepoints(master: str) -> list[Bar]:
    return [*operator_bars(), *spark_bars(master)]


def operator_bars() -> list[Bar]:
    measured = experiment(STREAMS, EVENTS)
    return [
        *(bar for slide in SLIDES for bar in _slide_bars([m for m in measured if m.slide == slide])),
        *(_few_bar(slide) for slide in SLIDES),
        *(bar for slide in SLIDES for streams in (STREAMS, 1) for bar in _size_bars(slide, streams)),
        *_flat_bars(flat_cost()),
    ]


@dataclass(frozen=True)
class Cycle:
    """A failure and its recovery in one mode."""

    replayed: float  # events, if the operator fails between two batches
    milliseconds: float
    backup: float  # most events kept upstream at any time of the run

    def saved(self, other: Cycle) -> Cycle:
        """What this one saves of what another one costs, as shares."""
        return Cycle(
            1 - self.replayed / other.replayed, 1 - self.milliseconds / other.milliseconds, 1 - self.backup / other.backup
        )


@dataclass(frozen=True)
class Measured:
    """One pair of columns in each of the graphics of figure 9."""

    slide: int
    interval: int
    streams: int
    cycles: dict[Mode, Cycle]
    share: float  # of the run's time, spent on savepoints
    trimming: float  # .. and, upstream, on trimming the backup
    bookkeeping: float  # .. and, in the kernel, on what is held
    same: bool  # recovered operators did as the undisturbed one

    def replayed_inside_a_batch(self, mode: Mode) -> float:
        """Half of the interrupted batch comes on top, whatever the mode."""
        return self.cycles[mode].replayed + BATCH * self.streams / 2


def experiment(streams: int, events: int) -> list[Measured]:
    return [measured for slide in SLIDES for measured in _measured(abcde(slide), Log(streams, events))]


def _slide_bars(measured: Sequence[Measured]) -> list[Bar]:
    first = measured[0]
    slide, inside = first.slide, first.replayed_inside_a_batch("v_skip") / first.replayed_inside_a_batch("base")
    return [
        *(Bar(f"slide {slide}: {what}", value, limit, unit="%") for what, value, limit in _worst(measured, "base")),
        Bar(f"slide {slide}: .. events, if it fails inside a batch, interval {first.interval}", 1 - inside, unit="%"),
        *(
            Bar(f"slide {slide}: .. against trim only: {what}", value, unit="%")
            for what, value, _ in _worst(measured, "trim only")
        ),
        Bar(f"slide {slide}: savepoints, in micro-batches of {BATCH * first.streams:,} events", first.share, 0.01, False, "%"),
        Bar(f"slide {slide}: .. trimming upstream", first.trimming, unit="%"),
        Bar(f"slide {slide}: .. bookkeeping of what is held", first.bookkeeping, unit="%"),
        Bar(f"slide {slide}: recovered operators do as the undisturbed one (1: all)", float(all(m.same for m in measured)), 1),
    ]


def _worst(measured: Sequence[Measured], mode: Mode) -> list[tuple[str, float, float]]:
    """What v_skip saves of what a mode costs, and its limit, which holds for every interval: the worst one counts."""
    saved = {m.interval: m.cycles["v_skip"].saved(m.cycles[mode]) for m in measured}
    worst = []
    for what, field, limit in (
        ("fewer events replayed", "replayed", 0.9),
        ("less recovery time", "milliseconds", 0.6),
        ("smaller largest backup", "backup", 0.8),
    ):
        value, interval = min((getattr(cycle, field), interval) for interval, cycle in saved.items())
        worst.append((f"{what}, at worst (interval {interval})", value, limit))
    return worst


def _few_bar(slide: int) -> Bar:
    share = run(abcde(slide), Log(FEW, EVENTS)).share
    return Bar(f"slide {slide}: savepoints, in micro-batches of {FEW * BATCH:,} events", share, unit="%")


# The operator and its input


def abcde(slide: int) -> Operator:
    return _operator(Window("time", SIZE, slide))


def _operator(window: Window, within: int = 0) -> Operator:
    operator = Operator(
        name="abcde",
        pattern=parse_pattern("A -> B -> C -> D -> E"),
        define={letter.upper(): f"type = '{letter}'" for letter in "abcde"},
        types={"type": pa.string(), "key": pa.string()},
        partition_by="key",
        window=window,
        within=within,
    )
    operator.check()
    return operator


@dataclass(frozen=True)
class Log:
    """Streams side by side: every time unit brings one event of each, in the order of the streams."""

    streams: int
    events: int  # of each stream

    @cached_property
    def types(self) -> Any:
        """By SN; every stream has a seed of its own."""
        seeds = [np.random.default_rng(stream) for stream in range(self.streams)]
        return np.stack([seed.integers(0, len(LETTERS), self.events, dtype=np.uint8) for seed in seeds], axis=1).ravel()

    @cached_property
    def keys(self) -> pa.Array:
        return pa.array([f"stream-{stream:04}" for stream in range(self.streams)])

    def rows(self, sn: Int64s) -> pa.Table:
        place = sn - 1
        return events_of(sn, place // self.streams, self.types[place], place % self.streams, self.keys)

    def between(self, start: int, end: int) -> pa.Table:
        """The events (start, end]."""
        return self.rows(np.arange(start + 1, end + 1))

    def instant(self, sn: int) -> Instant:
        return Instant((sn - 1) // self.streams, sn)

    @property
    def batch(self) -> int:
        return BATCH * self.streams

    def end(self, batch: int) -> int:
        """The last event of a batch; batches count from 1."""
        return batch * self.batch


def events_of(sn: Int64s, ts: Int64s, type_: Any, key: Any, keys: pa.Array) -> pa.Table:
    return pa.table({
        "sn": pa.array(sn),
        "stream_ts": pa.array(ts, TIMESTAMP),
        "type": pa.DictionaryArray.from_arrays(pa.array(type_.astype(np.int32)), LETTERS),
        "key": pa.DictionaryArray.from_arrays(pa.array(key.astype(np.int32)), keys),
    })


class Step(NamedTuple):
    """One micro-batch: what came of it, and the seconds that matching with numbering, and the savepoint took."""

    found: pa.Table  # numbered, if there are any
    savepoint: Savepoint
    matching: float
    saving: float


def step(operator: Operator, savepoint: Savepoint, events: pa.Table, at: Instant, *, skip: bool) -> Step:
    """From a savepoint, with the events of its residual and those up to `at`, to the next."""
    began = time.perf_counter()
    known = Known(savepoint.read, at.sn, savepoint.at.ts, at.ts, savepoint.seed_y)
    replay = Replay(savepoint.residuals[0].context, savepoint.floors, skip)
    report = match_shard(operator, events, known, replay=replay)
    found, seed = report.matches, savepoint.seed
    if found.num_rows:  # as in the driver, which stamps no batch without matches
        found, seed = sequencer.number(operator, seed, savepoint.batch + 1, [found])
    matched = time.perf_counter()
    kept = shard_savepoint(0, 1, report, at.sn, skip=skip)
    following = advance(operator, savepoint, seed, [kept], at, at.sn, [at.sn])
    return Step(found, following, matched - began, time.perf_counter() - matched)


# The undisturbed run


@dataclass(frozen=True)
class Run:
    """What is remembered of a run with v_skip."""

    savepoints: list[Savepoint]  # after each batch; the first is empty
    acks: Int64s  # SNs that produced the complex events number unit, 2 unit, .., and
    starts: Int64s  # 1, unit + 1, ..; a unit is the shortest interval of all streams together
    output: dict[int, pa.Table | None]  # complex events of the batches after failures
    backup: int
    matching: float  # seconds, as of the following
    saving: float
    trimming: float

    @property
    def seconds(self) -> float:
        return self.matching + self.saving + self.trimming

    @property
    def share(self) -> float:
        """Of the run's time, what savepoints took."""
        return self.saving / self.seconds


def run(operator: Operator, log: Log) -> Run:
    batches, unit = log.events // BATCH, INTERVALS[0] * log.streams
    savepoints, upstream, largest = [fresh_savepoint(operator)], log.between(0, 0), 0
    acks, starts, output = [NO_NUMBERS], [NO_NUMBERS], {}
    wanted = {failure + k for failure in failures(log) for k in range(1, AFTERWARDS + 1)}
    matching = saving = trimming = 0.0
    for batch in range(1, batches + 1):
        last = savepoints[-1]
        upstream = pa.concat_tables([upstream, log.between(last.read, log.end(batch))])
        largest = max(largest, upstream.num_rows)
        done = step(operator, last, upstream, log.instant(log.end(batch)), skip=True)
        savepoints.append(done.savepoint)
        began = time.perf_counter()
        upstream = _taken(upstream, done.savepoint.residuals[0].numbers)
        trimming += time.perf_counter() - began
        matching, saving = matching + done.matching, saving + done.saving
        acks.append(_producers(done.found, last.seed.ordinal, unit, 0))
        starts.append(_producers(done.found, last.seed.ordinal, unit, 1))
        if batch in wanted:
            output[batch] = _output(done.found)
    return Run(savepoints, np.concatenate(acks), np.concatenate(starts), output, largest, matching, saving, trimming)


def _output(found: pa.Table) -> pa.Table | None:
    return found.select(OUTPUT) if found.num_rows else None


def failures(log: Log) -> list[int]:
    """The batches after which the operator fails, from the middle on."""
    batches = log.events // BATCH
    return [int(b) for b in np.linspace(batches // 2, batches // 2 + min(SPREAD // BATCH, batches // 4), FAILURES)]


def _producers(found: pa.Table, first: int, unit: int, rest: int) -> Int64s:
    """The SNs that produced the complex events whose number leaves `rest` when divided by `unit`."""
    places = np.arange((rest - first) % unit, found.num_rows, unit)
    return int64s(pc.list_element(found["sns"].take(pa.array(places)), 4))


def _taken(events: pa.Table, numbers: Int64s) -> pa.Table:
    """Rows by SN, of events in order. A stretch without gaps is not copied, or replaying it would seem dearer than it is."""
    events = events.combine_chunks()
    place = np.searchsorted(int64s(events["sn"]), numbers)
    if place.size and place[-1] - place[0] == place.size - 1:
        return events.slice(place[0], place.size)
    return events.take(pa.array(place))


# Failure and recovery


def _measured(operator: Operator, log: Log) -> list[Measured]:
    sets.warm_up()
    run(operator, Log(2, 2 * SIZE))  # a first one warms up
    undisturbed = run(operator, log)
    bookkeeping = _bookkeeping(operator, log, undisturbed)
    return [_interval(operator, log, undisturbed, interval, bookkeeping) for interval in INTERVALS]


def _interval(operator: Operator, log: Log, undisturbed: Run, interval: int, bookkeeping: float) -> Measured:
    replayed: dict[Mode, list[int]] = {mode: [] for mode in MODES}
    seconds: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    same = True
    for failure in failures(log):
        stored, end = stored_savepoints(operator, log, undisturbed, failure, interval), log.end(failure)
        # One backup for all: what the modes read of it differs.
        upstream = log.between(int(_needed(stored["base"], end)[0]) - 1, end)
        for mode, savepoint in stored.items():
            replayed[mode].append(_needed(savepoint, end).size)
            recovered = recover(operator, log, savepoint, upstream, mode)
            same &= goes_on(operator, log, undisturbed, failure, recovered.savepoint, mode)
        for _ in range(ROUNDS):
            for mode, savepoint in stored.items():
                began = time.perf_counter()
                recover(operator, log, savepoint, upstream, mode)
                seconds[mode].append(time.perf_counter() - began)
    backup = _backups(operator, log, undisturbed, interval)
    return Measured(
        slide=operator.window.slide,
        interval=interval,
        streams=log.streams,
        cycles={m: Cycle(statistics.mean(replayed[m]), 1e3 * statistics.median(seconds[m]), backup[m]) for m in MODES},
        share=undisturbed.share,
        trimming=undisturbed.trimming / undisturbed.seconds,
        bookkeeping=bookkeeping,
        same=same,
    )


def recover(operator: Operator, log: Log, savepoint: Savepoint, upstream: pa.Table, mode: Mode) -> Step:
    """From the bytes of a savepoint to where the operator failed, which is the end of the backup."""
    savepoint = replace(savepoint)  # nothing of it has been decoded yet
    end = upstream["sn"][-1].as_py()
    events = _taken(upstream, _needed(savepoint, end))
    return step(operator, savepoint, events, log.instant(end), skip=mode == "v_skip")


def _needed(savepoint: Savepoint, end: int) -> Int64s:
    """The events to be replayed after a failure at `end`: the residual, and what has come since."""
    return np.concatenate([savepoint.residuals[0].numbers, np.arange(savepoint.read + 1, end + 1)])


def goes_on(operator: Operator, log: Log, undisturbed: Run, failure: int, savepoint: Savepoint, mode: Mode) -> bool:
    """The replay has led to the number reached before, and what comes after has the content and numbers it should have."""
    if savepoint.seed != undisturbed.savepoints[failure].seed:
        return False
    for batch in range(failure + 1, failure + AFTERWARDS + 1):
        events = log.rows(_needed(savepoint, log.end(batch)))
        found, savepoint, *_ = step(operator, savepoint, events, log.instant(log.end(batch)), skip=mode == "v_skip")
        if _output(found) != undisturbed.output[batch]:
            return False
    return True


def stored_savepoints(operator: Operator, log: Log, undisturbed: Run, failure: int, interval: int) -> dict[Mode, Savepoint]:
    """What each mode has stored upstream when the operator fails after a batch.

    Whenever another `interval` complex events of all streams have been acknowledged, the base method stores the savepoint
    of the first of them; before that there is none, and everything is replayed.
    """
    latest = undisturbed.savepoints[failure]
    acks = (latest.seed.ordinal - 1) // (interval * log.streams)
    if not acks:
        return {"base": undisturbed.savepoints[0], "trim only": undisturbed.savepoints[0], "v_skip": latest}
    theta = int(undisturbed.starts[(acks - 1) * interval // INTERVALS[0]])
    # Not from the residual of v_skip: every key has to be there to say from where on it is to be matched again.
    before = from_windows(operator, log, undisturbed.savepoints[(theta - 1) // log.batch])
    held = step(operator, before, log.rows(_needed(before, theta)), log.instant(theta), skip=False).savepoint
    return {"base": from_windows(operator, log, held), "trim only": held, "v_skip": latest}


def from_windows(operator: Operator, log: Log, savepoint: Savepoint) -> Savepoint:
    """The same, as the paper stores it: open windows are replayed from their first event on, so they need no floors."""
    if not savepoint.shards:
        return savepoint
    trim_sn = _window_trim(operator, log, np.array([savepoint.read]))[0]
    return replace(savepoint, shards=(ShardSavepoint(0, 1, (Kept(int(trim_sn), sets.EMPTY),)),))


def _window_trim(operator: Operator, log: Log, sn: Int64s) -> Int64s:
    """The last event before the first window that is open at each of these events."""
    window = operator.window
    first_open = ((sn - 1) // log.streams - window.size) // window.slide + 2
    return np.maximum((first_open - 1) * window.slide, 0) * log.streams


def _backups(operator: Operator, log: Log, undisturbed: Run, interval: int) -> dict[Mode, int]:
    """The base method keeps what lies above its last trim mark until the next ack.

    The engine's trim mark is known at the ends of batches. It never goes back, so the next one known is at least as high as
    the one wanted, and `trim only` is shown no larger than it is.
    """
    every = interval // INTERVALS[0]
    until = np.append(undisturbed.acks[every - 1 :: every], log.end(log.events // BATCH))
    theta = undisturbed.starts[::every][: until.size - 1]
    trims = np.array([0, *(savepoint.shards[0].kept[0].trim_sn for savepoint in undisturbed.savepoints[1:])])
    marks: dict[Mode, Int64s] = {"base": _window_trim(operator, log, theta), "trim only": trims[-(-theta // log.batch)]}
    largest = {mode: int((until - np.append(0, mark)).max()) for mode, mark in marks.items()}
    return {**largest, "v_skip": undisturbed.backup}


def _bookkeeping(operator: Operator, log: Log, undisturbed: Run) -> float:
    """What the kernel needs to know what is held, as a share of the run's time: measured on one batch, in turns."""
    failure = failures(log)[0]
    savepoint, end = undisturbed.savepoints[failure], log.end(failure + 1)
    events = log.rows(_needed(savepoint, end))
    codes, keys = key_codes(operator, events, None)
    columns = (int64s(events["sn"]), int64s(events["stream_ts"]))
    mask = step_mask(operator, events)
    _, *stream = kernel.arrange(codes, keys, mask, mask, *columns)

    def matched(keep: bool) -> float:
        began = time.perf_counter()
        kernel.match(
            kernel.Stream(*stream),
            5,
            operator.window,
            within=0,
            to_next_row=False,
            first_window=savepoint.seed_y,
            after_sn=savepoint.read,
            end_sn=end,
            watermark=log.instant(end).ts,
            keep=keep,
        )
        return time.perf_counter() - began

    times = [(matched(True), matched(False)) for _ in range(10 * ROUNDS)]
    more = statistics.median(keeping - not_keeping for keeping, not_keeping in times)
    return more * (len(undisturbed.savepoints) - 1) / undisturbed.seconds


# A savepoint, against a checkpoint


@dataclass(frozen=True)
class Sizes:
    """Bytes of one moment: of the savepoint's row, and of a checkpoint by its parts, each as small as Arrow writes it."""

    row: int
    queue: int
    layout: int
    matchers: int
    output: int

    @property
    def checkpoint(self) -> int:
        return self.queue + self.layout + self.matchers + self.output


def sizes(slide: int, streams: int) -> Sizes:
    """What classical rollback-recovery would save (seed 000, section II-B), when every window that can be open is."""
    operator, log = abcde(slide), Log(streams, 4 * SIZE)
    undisturbed = run(operator, log)
    failure = failures(log)[0]
    savepoint, end = undisturbed.savepoints[failure], log.end(failure)
    stored = stored_savepoints(operator, log, undisturbed, failure, INTERVALS[0])
    queue = log.rows(_needed(from_windows(operator, log, savepoint), end))
    unacknowledged = _output(recover(operator, log, stored["base"], log.between(0, end), "base").found)
    numbers = np.arange(savepoint.seed_y, log.instant(end).ts // slide + 2)
    return Sizes(
        row=savepoint.bytes + SCALARS + len(savepoint.operator),
        queue=_bytes(queue),
        layout=_bytes(pa.table({"y": numbers, "opens": (numbers - 1) * slide, "closes": (numbers - 1) * slide + SIZE})),
        matchers=_bytes(pa.concat_tables([_bound(operator, queue, log.instant(end), int(y)) for y in numbers])),
        output=_bytes(unacknowledged) if unacknowledged is not None else 0,
    )


def _bound(operator: Operator, queue: pa.Table, at: Instant, number: int) -> pa.Table:
    """The state of one window's matchers: the events their runs have bound so far."""
    held = match_shard(operator, queue, Known(0, at.sn, -1, at.ts, number, number)).held_sn
    return pa.table({"y": np.full(held.size, number), "sn": held})


def _bytes(table: pa.Table) -> int:
    """Coded text stays coded; compressed, where that is smaller."""
    sink = {codec: pa.BufferOutputStream() for codec in (None, "zstd")}
    for codec, out in sink.items():
        with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(table.combine_chunks())
    return min(int(out.getvalue().size) for out in sink.values())


def _size_bars(slide: int, streams: int) -> list[Bar]:
    size = sizes(slide, streams)
    name, limit = f"slide {slide}, streams {streams}", 0.01 if streams > 1 else None
    return [
        Bar(f"{name}: a savepoint's row, against a checkpoint", size.row / size.checkpoint, limit, False, "%"),
        Bar(f"{name}: .. the row", size.row, unit="bytes"),
        Bar(f"{name}: .. the checkpoint", size.checkpoint, unit="bytes"),
    ]


# The cost per event, from 1 to 50 million


def flat_cost(logs: Sequence[int] = FLAT_LOGS, batch: int = FLAT_BATCH) -> dict[int, float]:
    """Nanoseconds per event of logs of this many events, in the CPU-time of the thread: the machine may be busy."""
    operator, rng = _operator(Window(), WITHIN), np.random.default_rng(0)
    keys = pa.array([f"key-{key:05}" for key in range(FLAT_KEYS)])
    _grow(operator, rng, keys, batch, batch)  # a first one warms up
    rounds = [[_grow(operator, rng, keys, log, batch) for log in logs] for _ in range(FLAT_ROUNDS)]
    return {log: 1e9 * statistics.median(seconds) / log for log, seconds in zip(logs, zip(*rounds, strict=True), strict=True)}


def _grow(operator: Operator, rng: np.random.Generator, keys: pa.Array, log: int, batch: int) -> float:
    """CPU-seconds of all steps through a log, which is made as it is read."""
    savepoint, upstream, seconds = fresh_savepoint(operator), None, 0.0
    while savepoint.read < log:
        sn = np.arange(savepoint.read + 1, min(savepoint.read + batch, log) + 1)
        new = events_of(sn, sn * MILLISECOND, rng.integers(0, 10, sn.size), rng.integers(0, len(keys), sn.size), keys)
        at = Instant(int(sn[-1]) * MILLISECOND, int(sn[-1]))
        began = time.thread_time()
        upstream = pa.concat_tables([upstream, new]) if upstream else new
        savepoint = step(operator, savepoint, upstream, at, skip=True).savepoint
        upstream = _taken(upstream, savepoint.residuals[0].numbers)
        seconds += time.thread_time() - began
    return seconds


def _flat_bars(cost: dict[int, float]) -> list[Bar]:
    first, *_, last = cost
    return [
        Bar(f"cost per event, log of {last:,} events against {first:,}", cost[last] / cost[first], 1.3, False, "times"),
        *(
            Bar(f".. {log:,} events, in micro-batches of {FLAT_BATCH:,}", nanoseconds, unit="ns per event")
            for log, nanoseconds in cost.items()
        ),
    ]
