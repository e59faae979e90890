"""Detection: micro-batches over what each operator reads, each a pure step, each published by one commit.

There is one way in. A scheduled run, a retry, a restart after kill -9 and a first start all read the last
committed savepoint, replay its residual and go on. Operators follow each other along the graph; each has its own
savepoints and commits, so any of them, or all at once, may die.
"""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from schemas import complex_events
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.matcher import Known, closing_windows
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, Slice, slices
from spark_jobs.errors import FencedAttempt, RepriseError, TrimmedEventNeeded
from spark_jobs.feeds import LogFeed, Reach
from spark_jobs.graph import Graph
from spark_jobs.lake.commit import Claim, claim
from spark_jobs.lake.history import Attempt, fold
from spark_jobs.lake.outputs import app_of, committed_of, numbers_of, output_folder
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.recovery.resume import Damage, Resumption, resume
from spark_jobs.recovery.savepoint import Kept, Savepoint, ShardSavepoint, advance
from spark_jobs.recovery.sets import EMPTY, stored_columns
from spark_jobs.runner import Runner
from spark_jobs.tasks import match_task, packed, stamp_task, write_arrow
from spark_jobs.versions import Version, resolve

# Large enough that scheduling and committing (about 150 ms) are a small share of a batch.
DEFAULT_BATCH_EVENTS = 1_000_000
DEFAULT_SHARDS = 2
# Fewer matches than this are stamped in the driver, in less time than a second Spark job takes to start (about 50 ms).
SLICE_MATCHES = 50_000

Result = TypeVar("Result")


@dataclass
class Detected:
    """What one attempt did for one operator."""

    operator: str
    resumed_at: int  # events that earlier attempts had processed
    replayed: int = 0  # of those, read again to go on, by all shards
    by_shard: list[int] = field(default_factory=list)
    first_batch: float = 0.0  # seconds until it was published: how long the recovery took, after start-up
    batches: int = 0
    events: int = 0
    matches: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def spent(self, what: str, seconds: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds


@dataclass(frozen=True)
class Settings:
    """How the work is cut; none of it may change the result."""

    batch_events: int = DEFAULT_BATCH_EVENTS
    shards: int = DEFAULT_SHARDS
    skip: bool = True  # False: seed 000's base method, which replays everything above SN_trim


def detect(pipeline: Pipeline, lake: Lake, runner: Runner, attempt: Attempt, settings: Settings) -> list[Detected]:
    """Bring every operator up to the end of the event log, each after those it reads."""
    graph = Graph(pipeline, lake)
    versions = resolve(lake, pipeline, graph.admit)
    return detect_versions(graph, versions, runner, attempt, settings)


def detect_versions(
    graph: Graph, versions: dict[str, Version], runner: Runner, attempt: Attempt, settings: Settings
) -> list[Detected]:
    scratch = graph.lake.scratch(f"detect-{attempt.number}")
    for version in versions.values():
        if not version.current:
            attempt.say(
                f"{version.operator}: version {version.number} is not the current one; 'reprise cut-over' makes it that"
            )
    try:
        kinds = {name: _kind(graph.pipeline, name) for name in graph.pipeline.order}
        return [kind(graph, versions[name], runner, attempt, settings, scratch).run() for name, kind in kinds.items()]
    except FencedAttempt as error:
        attempt.record("fence", "complex_events", reason=str(error))
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
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
        self.feed = graph.feed(version)
        self.savepoints = graph.savepoints()
        # Keys are shared out among shards; without a key, windows on the log's grid are; without those, one matcher sees all.
        reads_log = isinstance(self.feed, LogFeed)
        self.by_windows = reads_log and self.operator.partition_by is None and self.operator.window.on_grid
        self.shards = settings.shards if self.operator.partition_by or self.by_windows else 1
        # The log lies in buckets by key; what is shared out by anything else, every shard reads and filters.
        self.filters_keys = self.shards > 1 and not self.by_windows and not (reads_log and self.operator.partition_by == "key")

    def run(self) -> Detected:
        app = app_of(self.version.operator, self.version.number)
        place: Claim = claim(self.graph.open_outputs(), app, self.graph.renewed, self.attempt.send)
        resumed = self.resumed(place.handle)
        savepoint = resumed.savepoint
        done = Detected(self.operator.name, savepoint.at.sn)
        reach = self._next(savepoint)
        if reach is not None:
            self._tell_replay(savepoint)
            self.runner.ready()  # start-up is no part of a batch
        while reach is not None:
            savepoint = self._batch(place, savepoint, reach, done)
            reach = self._next(savepoint)
        return done

    def _next(self, savepoint: Savepoint) -> Reach | None:
        return self._reading(savepoint, lambda: self.feed.next(savepoint, self.settings.batch_events))

    def _reading(self, savepoint: Savepoint, read: Callable[[], Result]) -> Result:
        """Files that are gone were trimmed meanwhile: what a savepoint still needs stands in others now."""
        try:
            return read()
        except FileNotFoundError:
            self.feed = self.graph.feed(self.version)
            self.feed.check(savepoint)
            return read()

    def _tell_replay(self, savepoint: Savepoint) -> None:
        processed = {"events": savepoint.replayed, "processed": savepoint.read}
        self._record("replay", "residual", savepoint.batch, **processed)
        if savepoint.batch:
            self.attempt.say(
                f"{self.operator.name}: resumes after batch {savepoint.batch}, replays {savepoint.replayed:,} of "
                f"{savepoint.read:,} processed events"
            )

    def resumed(self, handle: DeltaTable) -> Resumption:
        """The savepoint to go on from; one that is damaged is made anew from an older one, shard by shard."""
        committed = committed_of(handle, self.version.operator, self.version.number)
        found = resume(
            self.savepoints,
            self.version.operator,
            self.version.number,
            committed,
            lambda: self.graph.beginning(self.version, self.feed),
            self.shards,
            not self.by_windows,
            self._remade,
        )
        for line in found.said:
            self.attempt.say(f"{self.operator.name}: {line}")
            self._record("repair", "savepoint", found.savepoint.batch, reason=line)
        self.feed.check(found.savepoint)
        self._check_mode(found.savepoint)
        if found.remade:
            self.savepoints.save(found.savepoint, self.attempt.number)
        return found

    def _check_mode(self, savepoint: Savepoint) -> None:
        """Without v_skip every key has to say where it goes on, and with it only those that need to: the two do not mix."""
        skipping = any(kept.skip != EMPTY for shard in savepoint.shards for kept in shard.kept)
        if skipping and not self.settings.skip:
            raise RepriseError(
                f"{self.operator.name}: its savepoints were made with v_skip, so it cannot go on without. Nothing was changed."
            )

    def _remade(self, damage: Damage) -> Savepoint:
        """Replay the missing shards up to the commit; their matches are published already and only counted."""
        self._check_base(damage)
        self.runner.ready()
        reach = self.feed.until(damage.base, damage.committed.at)
        payloads = self._payloads(damage.base, reach, damage.shards)
        results = self.runner.run(match_task, [payloads[shard] for shard in damage.missing if shard < len(payloads)])
        if not damage.sound:
            self._check_found(damage, results)
        remade = {result["shard"]: _kept(result) for result in results}
        sound = {shard.shard: shard for shard in damage.sound}
        shards = [shard for _, shard in sorted({**sound, **remade}.items())]
        following = advance(self.operator, damage.base, damage.committed.seed, shards, reach.at, reach.read, reach.ends)
        return replace(following, batch=damage.committed.batch)

    def _check_base(self, damage: Damage) -> None:
        try:
            self.feed.check(damage.base)
        except TrimmedEventNeeded as error:
            raise TrimmedEventNeeded(
                f"the savepoint of operator '{self.operator.name}', batch {damage.committed.batch}, is damaged "
                f"({damage.problems[0]}), and what it would take to make it anew was trimmed. What was published is right and "
                "stays; nothing was changed. Begin another version: reprise upgrade PIPELINE --lake LAKE "
                f"--again {self.operator.name} --from SN"
            ) from error

    def _check_found(self, damage: Damage, results: list[dict[str, Any]]) -> None:
        """All that was published since the base has to be found again."""
        found = damage.base.seed.ordinal + sum(result["matches"] for result in results)
        if found != damage.committed.seed.ordinal:
            raise RepriseError(
                f"{self.operator.name}: replaying from batch {damage.base.batch} gives {found - 1:,} complex events, but "
                f"{damage.committed.seed.ordinal - 1:,} were published. The log or the output is damaged too; nothing was "
                "changed. Run 'reprise verify', and detect into a new lake."
            )

    def _batch(self, place: Claim, savepoint: Savepoint, reach: Reach, done: Detected) -> Savepoint:
        batch = savepoint.batch + 1
        began = started = time.perf_counter()
        self._phase("detect.started", batch, start_sn=savepoint.at.sn, end_sn=reach.at.sn, carried=savepoint.replayed)
        shards = self._matched(savepoint, reach)
        self._spend(done, shards, time.perf_counter() - started)
        self._phase("detect.matched", batch, replayed=[shard["replayed"] for shard in shards])

        started = time.perf_counter()
        stamps = self._stamps(savepoint, shards, reach)
        self._phase("detect.sequenced", batch)
        stamped = self._stamped(stamps)
        matches = sum(result["rows"] for result in stamped)
        done.spent("stamp", time.perf_counter() - started)

        started = time.perf_counter()
        self._phase("detect.written", batch)
        seed = Seed(*stamped[-1]["seed"]) if stamped else savepoint.seed
        following = self._following(savepoint, seed, shards, reach, time.perf_counter() - began)
        self.savepoints.save(following, self.attempt.number)
        self._phase("detect.saved", batch, bytes=following.bytes)
        place.publish(
            [self.graph.written(self.version, result["name"], result["rows"]) for result in stamped],
            self.graph.pipeline.output_schema,
            self.attempt.number,
            complex_events.PARTITION_BY,
            self._numbers(batch, reach, seed),
        )
        self._phase("detect.published", batch)
        self._record("commit", "complex_events", batch, matches=matches, events=reach.read - savepoint.read)
        self._phase("detect.finished", batch)
        done.spent("commit", time.perf_counter() - started)

        for file in self.scratch.iterdir():
            file.unlink()
        if not done.batches:
            done.by_shard = [shard["replayed"] for shard in shards]
            # Windows that overlap shards are read by both; what they share is replayed once.
            done.replayed = savepoint.replayed if self.by_windows else sum(done.by_shard)
            done.first_batch = time.perf_counter() - began
        done.batches += 1
        done.events += reach.read - savepoint.read
        done.matches += matches
        self.attempt.say(f"{self.operator.name}: batch {batch}, log read up to {reach.at.sn:,}, {done.matches:,} matches")
        return following

    def _numbers(self, batch: int, reach: Reach, seed: Seed) -> dict[str, int]:
        """What the commit carries."""
        return numbers_of(self.version.operator, self.version.number, batch, self.attempt.number, reach.at, seed)

    def _matched(self, savepoint: Savepoint, reach: Reach) -> list[dict[str, Any]]:
        shards = self._reading(savepoint, lambda: self.runner.run(match_task, self._payloads(savepoint, reach, self.shards)))
        if not self.by_windows:
            self._check_all_read(savepoint, reach, sum(shard["read"] for shard in shards))
        return shards

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
                "inputs": self.feed.inputs(savepoint, reach, shard, shards, out),
                "shard": shard,
                "out": f"{out}-{shard}",
            }
            for shard, part in enumerate(parts)
        ]

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
            {**self._stamp(savepoint, index), "shards": outs, "low": part.low, "high": part.high}
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
        return self.runner.run(stamp_task, stamps)

    def _spend(self, done: Detected, results: list[dict[str, Any]], wall: float) -> None:
        """Share the wall time of the Spark job: tasks run side by side, so the slowest one is what was waited for."""
        slowest = max(results, key=lambda result: sum(result["seconds"].values()))["seconds"]
        for what, seconds in slowest.items():
            done.spent(what, seconds)
        done.spent("transfer", max(0.0, wall - sum(slowest.values())))

    def _phase(self, name: str, batch: int, **detail: Any) -> None:
        self.attempt.phase(name, batch, self.operator.name, **detail)

    def _record(self, kind: str, name: str, batch: int, **detail: Any) -> None:
        self.attempt.record(kind, name, batch, self.operator.name, **detail)


def _kept(result: dict[str, Any]) -> ShardSavepoint:
    """What a shard's task has reported to keep."""
    kept = tuple(Kept(trim_sn, *(base64.b64decode(part) for part in parts)) for trim_sn, *parts in result["kept"])
    return ShardSavepoint(result["shard"], result["shards"], kept, base64.b64decode(result["floors"]))


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.sort(np.concatenate(parts))
