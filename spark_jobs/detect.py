"""Detection: micro-batches over what each operator reads, each a pure step, each published by one commit.

There is one way in. A scheduled run, a retry, a restart after kill -9 and a first start all read the last
committed savepoint, replay its residual and go on. Operators follow each other along the graph; each has its own
savepoints and commits, so any of them, or all at once, may die.
"""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from schemas import complex_events
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.matcher import Known, closing_windows
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, Slice, slices
from spark_jobs.errors import FencedAttempt, RepriseError, TrimmedEventNeeded
from spark_jobs.feeds import Feed, Reach
from spark_jobs.graph import Graph
from spark_jobs.lake.commit import Claim, claim
from spark_jobs.lake.history import Attempt, fold
from spark_jobs.lake.outputs import Named, app_of, committed_of, numbers_of, output_folder
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.recovery.checkpoint import file_of, folder_of, sweep
from spark_jobs.recovery.policy import Pace, Since, due, policy_of
from spark_jobs.recovery.resume import Gap, Remade, Resumption, resume
from spark_jobs.recovery.savepoint import Kept, Savepoint, ShardSavepoint, advance
from spark_jobs.recovery.sets import EMPTY, stored_columns
from spark_jobs.recovery.store import Stored
from spark_jobs.runner import Runner
from spark_jobs.tasks import match_task, packed, stamp_task, write_arrow
from spark_jobs.versions import Version, resolve

# Large enough that scheduling and committing (about 150 ms) are a small share of a batch.
DEFAULT_BATCH_EVENTS = 1_000_000
DEFAULT_SHARDS = 2
# Fewer matches than this are stamped in one slice. More of them, up to some, by threads of the driver: a second Spark job takes
# about 100 ms to start and to end, as long as two threads take for 250,000 matches.
SLICE_MATCHES, JOB_MATCHES = 50_000, 250_000

Result = TypeVar("Result")


@dataclass
class Detected:
    """What one attempt did for one operator."""

    operator: str
    resumed_at: int  # events that earlier attempts had processed
    replayed: int = 0  # of those, needed again to go on, by all shards
    restored: int = 0  # of those, taken from checkpoints instead of the log
    by_shard: list[int] = field(default_factory=list)
    first_batch: float = 0.0  # seconds until it was published: how long the recovery took, after start-up
    batches: int = 0
    events: int = 0
    matches: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage

    def spent(self, seconds: Mapping[str, float]) -> None:
        self.seconds = _together(self.seconds, seconds)


@dataclass(frozen=True)
class Checkpoints:
    """What the shards keep for a savepoint, besides it."""

    bytes: int
    seconds: float  # that it took


@dataclass(frozen=True)
class Computed:
    """A batch whose complex events lie in files that no table names: it can be published, or forgotten."""

    before: Savepoint
    after: Savepoint
    reach: Reach
    stamped: tuple[dict[str, Any], ...]
    again: Remade  # what had to be read again for it
    began: float
    saves: Checkpoints | None  # None: no savepoint is due
    seconds: Mapping[str, float]  # that it took, by stage

    @property
    def batch(self) -> int:
        return self.after.batch

    @property
    def matches(self) -> int:
        return sum(result["rows"] for result in self.stamped)

    @property
    def events(self) -> int:
        return self.reach.read - self.before.read

    @property
    def told(self) -> dict[str, int]:
        """What history says of it."""
        revisions = sum(result.get("retracted", 0) for result in self.stamped)
        return {"matches": self.matches, "events": self.events, **({"revisions": revisions} if revisions else {})}


@dataclass(frozen=True)
class Settings:
    """How the work is cut; none of it may change the result."""

    batch_events: int = DEFAULT_BATCH_EVENTS
    shards: int = DEFAULT_SHARDS
    skip: bool = True  # False: seed 000's base method, which replays everything above SN_trim


class Run(Protocol):
    def __call__(self, detection: Detection) -> Detected:
        """Bring one operator version up to the end of what it reads."""


def alone(detection: Detection) -> Detected:
    """Compute and publish batch by batch."""
    return detection.run()


def detect(
    pipeline: Pipeline, lake: Lake, runner: Runner, attempt: Attempt, settings: Settings, run: Run = alone
) -> list[Detected]:
    """Bring every operator up to the end of the event log, each after those it reads."""
    graph = Graph(pipeline, lake)
    versions = resolve(lake, pipeline, graph.admit)
    return detect_versions(graph, versions, runner, attempt, settings, run)


def detect_versions(
    graph: Graph, versions: dict[str, Version], runner: Runner, attempt: Attempt, settings: Settings, run: Run = alone
) -> list[Detected]:
    scratch = graph.lake.scratch(f"detect-{attempt.number}")
    for version in versions.values():
        if not version.current:
            attempt.say(
                f"{version.operator}: version {version.number} is not the current one; 'reprise cut-over' makes it that"
            )
    try:
        kinds = {name: _kind(graph.pipeline, name) for name in graph.pipeline.order}
        return [run(kind(graph, versions[name], runner, attempt, settings, scratch)) for name, kind in kinds.items()]
    except FencedAttempt as error:
        attempt.record("fence", "complex_events", reason=str(error))
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        graph.aside.wait()
        fold(graph.lake)


def _kind(pipeline: Pipeline, name: str) -> type[Detection]:
    # Both are Detections themselves.
    if name in pipeline.stateful:
        from spark_jobs.stateful import StatefulDetection

        return StatefulDetection
    if pipeline.ordering is None:
        return Detection
    from spark_jobs.ordered import OrderedDetection

    return OrderedDetection


class Detection:
    """One attempt at one operator version."""

    feed: Feed  # what it reads, from when it resumes

    def __init__(
        self, graph: Graph, version: Version, runner: Runner, attempt: Attempt, settings: Settings, scratch: Path
    ) -> None:
        self.graph = graph
        self.lake = graph.lake
        self.version = version
        self.operator: Operator = graph.pipeline.built[version.operator]
        self.runner = runner
        self.attempt = attempt
        self.settings = settings
        self.scratch = scratch
        self.text = graph.pipeline.model_dump_json(by_alias=True)
        self.savepoints = graph.savepoints()
        # Keys are shared out among shards; without a key, windows on the log's grid are; without those, one matcher sees all.
        reads_log = graph.pipeline.operators[version.operator].inputs == [EVENT_LOG]
        self.by_windows = reads_log and self.operator.partition_by is None and self.operator.window.on_grid
        self.shards = settings.shards if self.operator.partition_by or self.by_windows else 1
        # The log lies in buckets by key; what is shared out by anything else, every shard reads and filters.
        self.filters_keys = self.shards > 1 and not self.by_windows and not (reads_log and self.operator.partition_by == "key")

        # When to save: what came since the last savepoint, which one that is, and what it takes.
        self.since, self.last, self.pace = Since(), Named(), Pace()
        self.saves = True  # what is matched now, or made anew
        self.checkpoints = folder_of(self.lake, version.operator, version.number)
        self.counting: tuple[set[str], set[str]] = (set(), set())  # the checkpoints of the last two savepoints
        self.keeps = graph.pipeline.recovery.strategy == "checkpoint"
        if self.keeps and not settings.skip:
            raise RepriseError(
                f"{self.operator.name}: the strategy 'checkpoint' keeps what is needed again, so it cannot do without v_skip."
            )

    def run(self) -> Detected:
        place = self.claimed()
        place.aside = self.graph.aside
        resumed = self.resumed(place.handle)
        savepoint = resumed.savepoint
        done = Detected(self.operator.name, savepoint.at.sn)
        if resumed.gap is not None and resumed.remade is not None:
            self._count_replay(done, resumed.gap.base, savepoint.read, resumed.remade)
        reach = self.next(savepoint)
        if reach is not None:
            self.tell_replay(savepoint)
            self.runner.ready()  # start-up is no part of a batch
        while reach is not None:
            savepoint = self._batch(place, savepoint, reach, done)
            reach = self.next(savepoint)
        place.settle()
        return done

    def claimed(self) -> Claim:
        app = app_of(self.version.operator, self.version.number)
        return claim(self.graph.open_outputs(), app, self.graph.renewed, self.attempt.send)

    def _count_replay(self, done: Detected, base: Savepoint, read: int, replay: Remade) -> None:
        """What it took to go on: from a savepoint, after so many events. What a gap took is needed again right after it, and
        counts once."""
        done.by_shard, done.restored = list(replay.read), replay.restored
        # Windows that overlap shards are read by both; what they share is replayed once.
        done.replayed = base.replayed + read - base.read if self.by_windows else sum(replay.read)

    def next(self, savepoint: Savepoint) -> Reach | None:
        """How far the batch after a savepoint goes; None if there is nothing new."""
        return self._reading(savepoint, lambda: self.feed.next(savepoint, self.settings.batch_events))

    def _reading(self, savepoint: Savepoint, read: Callable[[], Result]) -> Result:
        """Files that are gone were trimmed meanwhile: what a savepoint still needs stands in others now."""
        try:
            return read()
        except FileNotFoundError:
            self.feed = self.graph.feed(self.version)
            self.feed.check(savepoint)
            return read()

    def tell_replay(self, savepoint: Savepoint) -> None:
        processed = {"events": savepoint.replayed, "processed": savepoint.read}
        self._record("replay", "residual", savepoint.batch, **processed)
        if savepoint.batch:
            self.attempt.say(
                f"{self.operator.name}: resumes after batch {savepoint.batch}, replays {savepoint.replayed:,} of "
                f"{savepoint.read:,} processed events"
            )

    def resumed(self, handle: DeltaTable) -> Resumption:
        """The savepoint to go on from; where the last batch has none, it is made from an older one, shard by shard."""
        committed = committed_of(handle, self.version.operator, self.version.number)
        # Not before: another attempt may have committed what it made of events that an older look at the inputs does not show.
        self.feed = self.graph.feed(self.version)
        found = resume(
            self.savepoints,
            self.version.operator,
            self.version.number,
            committed,
            lambda: self.graph.beginning(self.version, self.feed),
            self.shards,
            self._shards_alone,
            self._remade,
            self._stood,
        )
        gap = found.gap
        if gap is not None:
            self._tell_gap(gap)
        self.feed.check(found.savepoint)
        self._check_mode(found.savepoint)
        self._count(gap.base if gap else found.savepoint)
        if gap is not None:  # what was done to have it is not to be done twice
            self._save(found.savepoint)
        self.last = found.name or self.last
        return found

    def _stood(self, found: Stored) -> bool:
        """May a savepoint be gone on from where others are damaged? Here also one that was never committed."""
        return True

    @property
    def _shards_alone(self) -> bool:
        """Can one shard be made anew without the others? Where they are sets of keys."""
        return not self.by_windows

    def _tell_gap(self, gap: Gap) -> None:
        for line in gap.said:
            self.attempt.say(f"{self.operator.name}: {line}")
            if gap.problems:
                self._record("repair", "savepoint", gap.committed.batch, reason=line)

    def _check_mode(self, savepoint: Savepoint) -> None:
        """Without v_skip every key has to say where it goes on, and with it only those that need to: the two do not mix."""
        skipping = any(kept.skip != EMPTY for shard in savepoint.shards for kept in shard.kept)
        if skipping and not self.settings.skip:
            raise RepriseError(
                f"{self.operator.name}: its savepoints were made with v_skip, so it cannot go on without. Nothing was changed."
            )

    def _remade(self, gap: Gap) -> Remade:
        """Replay the missing shards up to the commit; their matches are published already and only counted."""
        self._check_base(gap)
        self.runner.ready()
        reach = self.feed.until(gap.base, gap.committed.at)
        payloads = self._payloads(gap.base, reach, gap.shards)
        results = self.runner.run(match_task, [payloads[shard] for shard in gap.missing if shard < len(payloads)])
        self._tell_lost(results, gap.committed.batch)
        if not gap.sound:
            self._check_found(gap, results)
        remade = {result["shard"]: _kept(result) for result in results}
        sound = {shard.shard: shard for shard in gap.sound}
        shards = [shard for _, shard in sorted({**sound, **remade}.items())]
        following = advance(self.operator, gap.base, gap.committed.seed, shards, reach.at, reach.read, reach.ends)
        read, restored = tuple(result["read"] for result in results), sum(result["restored"] for result in results)
        return Remade(replace(following, batch=gap.committed.batch), read, restored)

    def _check_base(self, gap: Gap) -> None:
        try:
            self.feed.check(gap.base)
        except TrimmedEventNeeded as error:
            raise TrimmedEventNeeded(
                f"the savepoint of operator '{self.operator.name}', batch {gap.committed.batch}, is damaged "
                f"({gap.said[0]}), and what it would take to make it anew was trimmed. What was published is right and "
                "stays; nothing was changed. Begin another version: reprise upgrade PIPELINE --lake LAKE "
                f"--again {self.operator.name} --from SN"
            ) from error

    def _check_found(self, gap: Gap, results: list[dict[str, Any]]) -> None:
        """All that was published since the base has to be found again."""
        found = gap.base.seed.ordinal + sum(result["matches"] for result in results)
        if found != gap.committed.seed.ordinal:
            raise RepriseError(
                f"{self.operator.name}: replaying from batch {gap.base.batch} gives {found - 1:,} complex events, but "
                f"{gap.committed.seed.ordinal - 1:,} were published. The log or the output is damaged too; nothing was "
                "changed. Run 'reprise verify', and detect into a new lake."
            )

    def _batch(self, place: Claim, savepoint: Savepoint, reach: Reach, done: Detected) -> Savepoint:
        computed = self.compute(savepoint, reach, done)
        self.publish(place, computed, done)
        return computed.after

    def compute(self, savepoint: Savepoint, reach: Reach, done: Detected) -> Computed:
        """All of a batch but what makes it happen."""
        batch = savepoint.batch + 1
        began = started = time.perf_counter()
        self._phase("detect.started", batch, start_sn=savepoint.at.sn, end_sn=reach.at.sn, carried=savepoint.replayed)
        since = self.since.and_then(reach.read - savepoint.read, reach.speculative)
        self.saves = self._due(since)
        shards = self._matched(savepoint, reach)
        seconds = time.perf_counter() - started
        matching = _stages(shards, seconds)
        replayed, restored = (tuple(shard.get(what, 0) for shard in shards) for what in ("replayed", "restored"))
        self._phase("detect.matched", batch, replayed=replayed, **({"restored": restored} if self.keeps else {}))

        started = time.perf_counter()
        stamps = self._stamps(savepoint, shards, reach)
        self._phase("detect.sequenced", batch)
        cutting, started = {"sequence": time.perf_counter() - started}, time.perf_counter()
        stamped = self._stamped(stamps) if stamps else []
        stages = _together(matching, cutting, _stages(stamped, time.perf_counter() - started))
        done.spent(stages)

        self._phase("detect.written", batch)
        seed = Seed(*stamped[-1]["seed"]) if stamped else savepoint.seed
        following = self._following(savepoint, seed, shards, reach, time.perf_counter() - began)
        self.since = Since() if self.saves else since
        self.pace = self.pace.processed(reach.read - savepoint.read, seconds)
        for file in self.scratch.iterdir():
            file.unlink()
        kept = Checkpoints(
            sum(shard.get("kept_bytes", 0) for shard in shards), max(s["seconds"].get("keep", 0.0) for s in shards)
        )
        again = Remade(savepoint, replayed, sum(restored))
        return Computed(savepoint, following, reach, tuple(stamped), again, began, kept if self.saves else None, stages)

    def publish(self, place: Claim, computed: Computed, done: Detected) -> None:
        """Make a batch happen: the savepoint first, if there is to be one, then the one commit that counts."""
        started, batch, savepoint = time.perf_counter(), computed.batch, computed.before
        place.settle()
        stored = {"bytes": 0}
        if computed.saves is not None:
            self._save(computed.after, computed.saves.seconds)
            stored["bytes"] = computed.after.bytes
        if self.keeps:
            stored["checkpoints"] = computed.saves.bytes if computed.saves else 0
        self._phase("detect.saved", batch, **stored)
        place.publish(
            [self.graph.written(self.version, result["name"], result["rows"]) for result in computed.stamped],
            self.graph.pipeline.output_schema,
            self.attempt.number,
            complex_events.PARTITION_BY,
            self._numbers(batch, computed.reach, computed.after.seed),
        )
        self._phase("detect.published", batch)
        self._record("commit", "complex_events", batch, **computed.told)
        commit = {"commit": time.perf_counter() - started}
        done.spent(commit)
        self._phase("detect.finished", batch, seconds={k: round(v, 4) for k, v in {**computed.seconds, **commit}.items()})

        if computed.saves is not None:
            sweep(self.checkpoints, batch, *self.counting)
        if not done.batches and not done.replayed:
            self._count_replay(done, savepoint, savepoint.read, computed.again)
        if not done.batches:
            done.first_batch = time.perf_counter() - computed.began
        done.batches += 1
        done.events += computed.events
        done.matches += computed.matches
        reached = f"log read up to {computed.reach.at.sn:,}, {done.matches:,} matches"
        self.attempt.say(f"{self.operator.name}: batch {batch}, {reached}")

    def _numbers(self, batch: int, reach: Reach, seed: Seed) -> dict[str, int]:
        """What the commit carries."""
        return numbers_of(self.version.operator, self.version.number, batch, self.attempt.number, reach.at, seed, self.last)

    def _due(self, since: Since) -> bool:
        """Does the policy want a savepoint now? Without one, every batch has its own."""
        save = self.graph.pipeline.recovery.save
        return save is None or due(policy_of(save.policy(self.pace.event_seconds, self.pace.save_seconds)), since)

    def _save(self, savepoint: Savepoint, kept_in: float = 0.0) -> None:
        """Write a savepoint whose checkpoints, if it has some, were written in some seconds."""
        started = time.perf_counter()
        self.savepoints.save(savepoint, self.attempt.number)
        self.last = Named(savepoint.batch, self.attempt.number)
        self.pace = self.pace.saved(kept_in + time.perf_counter() - started)
        self._count(savepoint)

    def _count(self, savepoint: Savepoint) -> None:
        """From now on the checkpoints of this savepoint and of the one before it are needed."""
        self.counting = (self.counting[-1], {shard.checkpoint for shard in savepoint.shards})

    def _matched(self, savepoint: Savepoint, reach: Reach) -> list[dict[str, Any]]:
        shards = self._reading(savepoint, lambda: self.runner.run(match_task, self._payloads(savepoint, reach, self.shards)))
        self._tell_lost(shards, savepoint.batch)
        if not self.by_windows:
            self._check_all_read(savepoint, reach, sum(shard["read"] for shard in shards))
        return shards

    def _tell_lost(self, results: list[dict[str, Any]], batch: int) -> None:
        """Checkpoints that could not be used cost reading, and nothing else."""
        for result in results:
            for problem in result["lost"]:
                line = f"checkpoint {problem}; shard {result['shard']} read the log instead, output unchanged"
                self.attempt.say(f"{self.operator.name}: {line}")
                self._record("repair", "checkpoint", batch, reason=line)

    def _check_all_read(self, savepoint: Savepoint, reach: Reach, read: int) -> None:
        """Every event belongs to one shard, so that an event that is gone is noticed before anything is published."""
        expected = savepoint.replayed + reach.read - savepoint.read
        if read != expected:
            raise TrimmedEventNeeded(
                f"operator '{self.operator.name}' needs {expected:,} events for batch {savepoint.batch + 1} "
                f"({savepoint.replayed:,} to replay, {reach.read - savepoint.read:,} new), but {read:,} are there. Nothing was "
                "published. A file of its input was removed or damaged; restore it, or detect into a new lake."
            )

    def _payloads(self, savepoint: Savepoint, reach: Reach, shards: int) -> list[dict[str, Any]]:
        out = f"{self.scratch}/{self.operator.name}-{savepoint.batch + 1}"
        known = Known(savepoint.read, reach.read, savepoint.at.ts, reach.at.ts, savepoint.seed_y)
        parts = self._parts(reach, known, shards)
        common = {
            "pipeline": self.text,
            "operator": self.operator.name,
            "context": packed(_joined([residual.context for residual in savepoint.residuals])),
            "floors": base64.b64encode(stored_columns(list(savepoint.floors))).decode(),
            "closes": self._closes(reach, known, f"{out}-closes"),
            "closes_from": known.first_window,
            "shards": len(parts),  # of few windows there are fewer groups; the savepoint has to know, or it looks damaged
            "skip": self.settings.skip,
            "filter_keys": self.filters_keys,
            "batch": savepoint.batch + 1,
            "faults": self.attempt.for_tasks(),
        }
        return [
            {
                **common,
                "known": part,
                **self._held(savepoint, reach, shard, shards, out),
                "shard": shard,
                "out": f"{out}-{shard}",
            }
            for shard, part in enumerate(parts)
        ]

    def _held(self, savepoint: Savepoint, reach: Reach, shard: int, shards: int, out: str) -> dict[str, Any]:
        """What a shard has to read, which checkpoints have some of it, and where it is to keep its own.

        Of keys a shard has all of one checkpoint and nothing of the others; of windows, which move on, it may have some of
        each. Another number of shards than there was has no use for any.
        """
        there = [mine for mine in savepoint.shards if mine.checkpoint]
        own = [mine for mine in there if (mine.shard, mine.shards) == (shard, shards)]
        if own and not self.by_windows:
            savepoint = savepoint.of_shard(shard)
        name = file_of(savepoint.batch + 1, self.attempt.number, shard)
        return {
            "inputs": self.feed.inputs(savepoint, reach, shard, shards, out),
            "checkpoints": [f"{self.checkpoints}/{mine.checkpoint}" for mine in (there if self.by_windows else own)],
            "keep": {"path": f"{self.checkpoints}/{name}", "write": self.saves} if self.keeps else None,
        }

    def _parts(self, reach: Reach, known: Known, shards: int) -> list[Known]:
        """What each shard is to look at: all windows of its keys, or its windows of the one stream there is."""
        window = self.operator.window
        if not self.by_windows:
            return [known] * shards
        by_time = window.kind == "time"
        begin = known.after_sn
        if by_time:
            begin = int(self.feed.instants(reach, np.array([known.after_sn + 1])).ts[0])
        # Time has no first window: before anything was processed, windows begin with the first event.
        first = known.first_window if known.after_sn else max(known.first_window, window.lowest(begin))
        groups = window.groups(first, known.watermark if by_time else known.end_sn - 1, shards)
        return [known._replace(first_window=low, last_window=high) for low, high in groups]

    def _closes(self, reach: Reach, known: Known, path: str) -> str | None:
        """When the events came that close count windows, in a scratch file: mostly they are other shards'."""
        _, numbers = closing_windows(self.operator, known)
        if not numbers.size:
            return None
        at = self.feed.instants(reach, numbers)
        write_arrow(path, pa.table({"sn": numbers, "ts": at.ts, "log_sn": at.sn}))
        return path

    def _following(
        self, savepoint: Savepoint, seed: Seed, shards: list[dict[str, Any]], reach: Reach, seconds: float
    ) -> Savepoint:
        """The next savepoint, after a batch that took some seconds so far."""
        kept = [_kept(shard) for shard in shards]
        return advance(self.operator, savepoint, seed, kept, reach.at, reach.read, reach.ends)

    def _stamps(self, savepoint: Savepoint, shards: list[dict[str, Any]], reach: Reach) -> list[dict[str, Any]]:
        """Cut the order of all matches into slices, each to be stamped and written on its own."""
        matches = sum(shard["matches"] for shard in shards)
        if not matches:
            return []
        cut = slices([shard["marks"] for shard in shards], self.settings.shards) if matches >= SLICE_MATCHES else [Slice()]
        outs = [shard["out"] for shard in shards]
        return [
            {
                **self._stamp(savepoint, index),
                "shards": outs,
                "low": part.low,
                "high": part.high,
                "matches": matches // len(cut),
            }
            for index, part in enumerate(cut)
        ]

    def _stamp(self, savepoint: Savepoint, index: int) -> dict[str, Any]:
        """What every task that writes complex events has to know."""
        return {
            "pipeline": self.text,
            "batch": savepoint.batch + 1,
            "attempt": self.attempt.number,
            "index": index,
            "seed": savepoint.seed,
            "folder": f"{self.lake.path('complex_events')}/{output_folder(self.version.operator, self.version.number)}",
        }

    def _stamped(self, stamps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(stamps) == 1:
            return [self.runner.here(stamp_task, stamps[0])]
        if sum(stamp["matches"] for stamp in stamps) >= JOB_MATCHES:
            return self.runner.run(stamp_task, stamps)
        with ThreadPoolExecutor(len(stamps)) as threads:
            return list(threads.map(partial(self.runner.here, stamp_task), stamps))

    def _phase(self, name: str, batch: int, **detail: Any) -> None:
        self.attempt.phase(name, batch, self.operator.name, **detail)

    def _record(self, kind: str, name: str, batch: int, **detail: Any) -> None:
        self.attempt.record(kind, name, batch, self.operator.name, **detail)


def _together(*parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds by stage, added up."""
    return {stage: sum(part.get(stage, 0.0) for part in parts) for stage in dict.fromkeys(s for part in parts for s in part)}


def _stages(results: list[dict[str, Any]], wall: float) -> dict[str, float]:
    """Share the wall time of a job: tasks run side by side, so the slowest one is what was waited for."""
    slowest: dict[str, float] = max((result["seconds"] for result in results), key=lambda took: sum(took.values()), default={})
    return {**slowest, "transfer": max(0.0, wall - sum(slowest.values()))}


def _kept(result: dict[str, Any]) -> ShardSavepoint:
    """What a shard's task has reported to keep."""
    kept = tuple(Kept(trim_sn, *(base64.b64decode(part) for part in parts)) for trim_sn, *parts in result["kept"])
    floors = base64.b64decode(result["floors"])
    return ShardSavepoint(result["shard"], result["shards"], kept, floors, checkpoint=result["checkpoint"])


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.sort(np.concatenate(parts))
