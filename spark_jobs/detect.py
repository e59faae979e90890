"""Detection: micro-batches over the event log, each a pure step, each published by one commit.

There is one way in. A scheduled run, a retry, a restart after kill -9 and a first start all read the last
committed savepoint, replay its residual and go on.
"""

from __future__ import annotations

import base64
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.matcher import Known, closing_windows
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, Slice, slices
from spark_jobs.errors import FencedAttempt, RepriseError
from spark_jobs.lake.commit import Claim, add_file, claim
from spark_jobs.lake.history import Attempt, fold
from spark_jobs.lake.scan import EventLog, open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.recovery.savepoint import Savepoint, ShardSavepoint, advance
from spark_jobs.recovery.store import load, save
from spark_jobs.runner import Runner
from spark_jobs.tasks import match_task, packed, stamp_task, write_arrow

# Large enough that scheduling and committing (about 150 ms) are a small share of a batch.
DEFAULT_BATCH_EVENTS = 1_000_000
DEFAULT_SHARDS = 2
# Fewer matches than this are stamped in the driver, in less time than a second Spark job takes to start (about 50 ms).
SLICE_MATCHES = 50_000


@dataclass
class Detected:
    """What one attempt did for one operator."""

    operator: str
    resumed_at: int  # events that earlier attempts had processed
    replayed: int  # of those, read again to go on
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


def detect(pipeline: Pipeline, lake: Lake, runner: Runner, attempt: Attempt, settings: Settings) -> list[Detected]:
    """Bring every operator up to the end of the event log."""
    scratch = lake.scratch(f"detect-{attempt.number}")
    log = open_log(lake, pipeline.source.schema)
    try:
        return [
            _Detection(pipeline, operator, lake, runner, attempt, settings, scratch).run(log)
            for operator in pipeline.built.values()
        ]
    except FencedAttempt as error:
        attempt.record("fence", "complex_events", reason=str(error))
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        fold(lake)


class _Detection:
    """One attempt at one operator."""

    def __init__(
        self,
        pipeline: Pipeline,
        operator: Operator,
        lake: Lake,
        runner: Runner,
        attempt: Attempt,
        settings: Settings,
        scratch: Path,
    ) -> None:
        self.pipeline = pipeline
        self.operator = operator
        self.lake = lake
        self.runner = runner
        self.attempt = attempt
        self.batch_events = settings.batch_events
        # Keys are shared out among shards; without a key, windows on the grid are; without those, one matcher sees all.
        self.shards = settings.shards if operator.partition_by or operator.window.on_grid else 1
        self.slices = settings.shards
        self.scratch = scratch
        self.text = pipeline.model_dump_json(by_alias=True)

    def run(self, log: EventLog) -> Detected:
        place: Claim = claim(self.lake.open("complex_events", self.pipeline.output_schema), self.operator.name)
        self._check_meaning(place)
        savepoint = load(self.lake, self.operator, place)
        residual = savepoint.residual()
        done = Detected(self.operator.name, savepoint.end_sn, residual.size)
        self._record("replay", "residual", savepoint.batch, events=residual.size, processed=savepoint.end_sn)
        if savepoint.end_sn:
            self.attempt.say(
                f"{self.operator.name}: resumes after batch {savepoint.batch}, replays {residual.size:,} of "
                f"{savepoint.end_sn:,} processed events"
            )
        if savepoint.end_sn < log.last_sn:
            self.runner.ready()  # start-up is no part of a batch
        while savepoint.end_sn < log.last_sn:
            savepoint = self._batch(log, place, savepoint, residual, done)
            residual = savepoint.residual()
        return done

    @property
    def _meaning(self) -> str:
        return f"{self.operator.name}#meaning"

    def _check_meaning(self, place: Claim) -> None:
        """A savepoint holds what the old pattern needed, which says nothing about what a new one needs."""
        known = place.handle.transaction_version(self._meaning)
        if known is not None and known != self.pipeline.meaning(self.operator.name):
            raise RepriseError(
                f"operator '{self.operator.name}' was changed since it published batch {place.step}: its savepoint does not "
                "fit the new definition. Nothing was changed. Give the operator a new name, or detect into a new lake."
            )

    def _batch(self, log: EventLog, place: Claim, savepoint: Savepoint, residual: Int64s, done: Detected) -> Savepoint:
        end_sn = min(savepoint.end_sn + self.batch_events, log.last_sn)
        batch = savepoint.batch + 1
        started = time.perf_counter()
        self._phase("detect.started", batch, start_sn=savepoint.end_sn, end_sn=end_sn, carried=residual.size)
        # Deadlines decide matches, so how far the batch reaches in time has to be known before any shard matches.
        watermark = log.stream_ts_at(end_sn)
        known = Known(savepoint.end_sn, end_sn, savepoint.watermark, watermark, savepoint.seed_y)
        shards = self.runner.run(match_task, self._payloads(log, savepoint, residual, known))
        self._spend(done, shards, time.perf_counter() - started)
        self._phase("detect.matched", batch)

        started = time.perf_counter()
        stamps = self._stamps(savepoint, shards)
        self._phase("detect.sequenced", batch)
        stamped = self._stamped(stamps)
        matches = sum(result["rows"] for result in stamped)
        done.spent("stamp", time.perf_counter() - started)

        started = time.perf_counter()
        self._phase("detect.written", batch)
        seed = Seed(*stamped[-1]["seed"]) if stamped else savepoint.seed
        following = advance(self.operator, savepoint, seed, [_kept(*s) for s in enumerate(shards)], end_sn, watermark)
        save(self.lake, following, self.attempt.number)
        self._phase("detect.saved", batch, bytes=following.bytes)
        place.publish(
            [
                add_file(self._folder, Path(stamp["path"]).name, result["rows"])
                for stamp, result in zip(stamps, stamped, strict=True)
            ],
            self.pipeline.output_schema,
            self.attempt.number,
            also={self._meaning: self.pipeline.meaning(self.operator.name)},
        )
        self._phase("detect.published", batch)
        self._record("commit", "complex_events", batch, matches=matches, events=end_sn - savepoint.end_sn)
        self._phase("detect.finished", batch)
        done.spent("commit", time.perf_counter() - started)

        for file in self.scratch.iterdir():
            file.unlink()
        done.batches += 1
        done.events += end_sn - savepoint.end_sn
        done.matches += matches
        self.attempt.say(f"{self.operator.name}: batch {batch}, {end_sn:,} of {log.last_sn:,} events, {done.matches:,} matches")
        return following

    def _payloads(self, log: EventLog, savepoint: Savepoint, residual: Int64s, known: Known) -> list[dict[str, Any]]:
        out = f"{self.scratch}/{self.operator.name}-{savepoint.batch + 1}"
        common = {
            "pipeline": self.text,
            "operator": self.operator.name,
            "residual": packed(residual),
            "context": packed(savepoint.context()),
            "closes": self._closes(log, known, f"{out}-closes"),
            "closes_from": known.first_window,
            "shards": self.shards,
        }
        return [
            {
                **common,
                "known": part,
                "files": log.shard_files(shard, self.shards, self.operator.partition_by, known.end_sn),
                "shard": shard,
                "out": f"{out}-{shard}",
            }
            for shard, part in enumerate(self._parts(log, known))
        ]

    def _parts(self, log: EventLog, known: Known) -> list[Known]:
        """What each shard is to look at: all windows of its keys, or its windows of the one stream there is."""
        window = self.operator.window
        if self.operator.partition_by or not window.on_grid:
            return [known] * self.shards
        by_time = window.kind == "time"
        begin = log.stream_ts_at(known.after_sn + 1) if by_time else known.after_sn
        # Time has no first window: before anything was processed, windows begin with the first event.
        first = known.first_window if known.after_sn else max(known.first_window, window.lowest(begin))
        groups = window.groups(first, known.watermark if by_time else known.end_sn - 1, self.shards)
        return [known._replace(first_window=low, last_window=high) for low, high in groups]

    def _closes(self, log: EventLog, known: Known, path: str) -> str | None:
        """The stream times of the rows that close count windows, in a scratch file: mostly those of other shards."""
        _, sns = closing_windows(self.operator, known)
        if not sns.size:
            return None
        write_arrow(path, pa.table({"ts": log.stream_times(sns)}))
        return path

    def _stamps(self, savepoint: Savepoint, shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Cut the order of all matches into slices, each to be stamped and written on its own."""
        matches = sum(shard["matches"] for shard in shards)
        if not matches:
            return []
        batch = savepoint.batch + 1
        cut = slices([shard["marks"] for shard in shards], self.slices) if matches >= SLICE_MATCHES else [Slice()]
        return [
            {
                "pipeline": self.text,
                "operator": self.operator.name,
                "batch": batch,
                "seed": savepoint.seed,
                "shards": [shard["out"] for shard in shards],
                "low": part.low,
                "high": part.high,
                "path": f"{self._folder}/{self.operator.name}-{batch:08}-{self.attempt.number:06}-{index:03}.parquet",
            }
            for index, part in enumerate(cut)
        ]

    def _stamped(self, stamps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(stamps) == 1:
            return [stamp_task(stamps[0])]
        return self.runner.run(stamp_task, stamps)

    @property
    def _folder(self) -> str:
        return self.lake.path("complex_events")

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


def _kept(shard: int, result: dict[str, Any]) -> ShardSavepoint:
    skip, context = (base64.b64decode(result[name]) for name in ("skip", "context"))
    return ShardSavepoint(shard, result["trim_sn"], skip, context)
