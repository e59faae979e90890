"""Detection over events in order of time: arrivals move the clock, late ones correct what was published.

A batch takes events in their order of arrival. What K-slack lets go, wholly or in part, is matched in order of time; an
event that happened before what was published sends its shard back to an older state. Each commit carries retractions and
assertions, and the net of all of them is right after every commit.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed
from spark_jobs.detect import Detection
from spark_jobs.feeds import LogFeed, Reach
from spark_jobs.lake.outputs import OutputFile, final_app, output_of, shard_files
from spark_jobs.lake.scan import EventLog, read_events
from spark_jobs.late import set_aside
from spark_jobs.ordered_tasks import order_task, retract_task
from spark_jobs.ordering.order import Mark, Order, floor_of, too_late
from spark_jobs.ordering.packed import packed, unpacked
from spark_jobs.ordering.slack import BEFORE_ALL, by_stream_time, follow
from spark_jobs.ordering.speculation import adapted, busy_factor
from spark_jobs.ordering.states import State, base_of
from spark_jobs.pipeline import Ordering
from spark_jobs.recovery.resume import Damage, Resumption
from spark_jobs.recovery.savepoint import Kept, Savepoint, ShardSavepoint, advance
from spark_jobs.recovery.sets import stored_gaps

NOTHING: Int64s = np.empty(0, np.int64)
# What matching an event takes, and going through one more state: measured, for as long as nothing else is known.
EVENT_SECONDS, SAVE_SECONDS = 1e-7, 5e-3


@dataclass(frozen=True)
class Arrivals:
    """Events in their order of arrival, as far as their order in time needs to be known."""

    sn: Int64s
    ts: Int64s
    stream_ts: Int64s
    bucket: Int64s
    sets_clock: Any | None  # None: whoever is ahead of all others


@dataclass(frozen=True)
class OrderedReach(Reach):
    """How far a batch goes: in arrivals, and in time."""

    order: Order | None = None
    late_from: tuple[tuple[int, int], ...] = ()  # by bucket: when its earliest late event happened
    too_late: tuple[int, ...] = ()  # SNs


def arrivals(log: EventLog, clock: str | None, after: int, end: int) -> Arrivals:
    """What came with the SNs (after, end]."""
    parts = []
    for bucket in sorted({file.bucket for file in log.files}):
        files = [asdict(file) for file in log.files if file.bucket == bucket and file.last_sn > after and file.first_sn <= end]
        names = ["ts", "source"] if clock else ["ts"]
        found = read_events(files, log.schema, names, NOTHING, after, end, in_sn_order=False)
        parts.append(found.append_column("bucket", pa.array(np.full(found.num_rows, bucket))))
    table = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries() if parts else None
    if table is None or not table.num_rows:
        return Arrivals(NOTHING, NOTHING, NOTHING, NOTHING, None)
    table = table.take(pa.array(np.argsort(np.asarray(table["sn"]), kind="stable")))
    sets_clock = None
    if clock:
        sets_clock = np.asarray(pa.compute.equal(table["source"].cast(pa.string()), clock))
    times = {name: np.asarray(table[name].cast(pa.int64())) for name in ("ts", "stream_ts")}
    return Arrivals(np.asarray(table["sn"]), times["ts"], times["stream_ts"], np.asarray(table["bucket"]), sets_clock)


class OrderedDetection(Detection):
    """One attempt at one operator version that reads the log in order of time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.by_windows = False
        self.shards = self.settings.shards if self.operator.partition_by else 1
        self.filters_keys = self.shards > 1 and self.operator.partition_by != "key"

    @property
    def _log(self) -> EventLog:
        assert isinstance(self.feed, LogFeed)
        return self.feed.log

    @property
    def ordering(self) -> Ordering:
        assert self.graph.pipeline.ordering is not None
        return self.graph.pipeline.ordering

    def resumed(self, handle: DeltaTable) -> Resumption:
        found = super().resumed(handle)
        if found.savepoint.shards:  # states belong to shards, so their number stays what it was
            self.shards = found.savepoint.shards[0].shards
        return found

    def _remade(self, damage: Damage) -> Savepoint:
        """Go from an older savepoint to the commit again; what is found on the way was published."""
        self.feed.check(damage.base)
        self.runner.ready()
        reach = self._reach(damage.base, damage.committed.at)
        assert reach is not None
        results = self.runner.run(order_task, self._order_payloads(damage.base, reach))
        following = self._following(damage.base, damage.committed.seed, results, reach, 0.0)
        return replace(following, batch=damage.committed.batch)

    def next(self, savepoint: Savepoint) -> OrderedReach | None:
        return self._reading(savepoint, lambda: self._reach(savepoint))

    def _reach(self, savepoint: Savepoint, at: Instant | None = None) -> OrderedReach | None:
        """Let the next events arrive, and see how far time has come; or go to where a commit was."""
        log, order = self._log, _order(savepoint, self.ordering)
        end = at.sn if at else min(savepoint.at.sn + self.settings.batch_events, log.last_sn)
        if end <= savepoint.at.sn:
            return None
        head = order.marks[-1]
        all_ = arrivals(log, self.ordering.clock, min(head.floor, savepoint.at.sn), end)
        new = all_.sn > savepoint.at.sn
        ts = all_.ts[new]
        ticks = all_.sets_clock[new] if all_.sets_clock is not None else by_stream_time(order.slack, ts)
        course = follow(order.slack, ts, ticks)
        late_sns = all_.sn[new][too_late(order.slack, course, ts, self.ordering.revise_us)]
        slack = course.after
        upto = at.ts if at else max(head.upto, slack.frontier(order.speculation.alpha))
        counts = ~np.isin(all_.sn[new], late_sns) & (ts <= head.upto)
        buckets = all_.bucket[new][counts]
        late_from = tuple((int(b), int(ts[counts][buckets == b].min())) for b in np.unique(buckets))
        following = replace(
            order,
            slack=slack,
            marks=(*order.marks, Mark(upto, 0, floor_of(all_.sn, all_.stream_ts, upto, min(head.floor, savepoint.at.sn)))),
            left_out=(*order.left_out, *late_sns.tolist()),
        )
        return OrderedReach(
            Instant(upto, end), end, (end,), order=following, late_from=late_from, too_late=tuple(late_sns.tolist())
        )

    def _matched(self, savepoint: Savepoint, reach: Reach) -> list[dict[str, Any]]:
        assert isinstance(reach, OrderedReach)
        return self._reading(savepoint, lambda: self.runner.run(order_task, self._order_payloads(savepoint, reach)))

    def _order_payloads(self, savepoint: Savepoint, reach: OrderedReach) -> list[dict[str, Any]]:
        before, order = _order(savepoint, self.ordering), reach.order
        assert order is not None
        states = _states(savepoint, self.shards)
        published = self._published() if reach.late_from else ()
        horizon = order.slack.final - self.ordering.revise_us if order.slack.final > BEFORE_ALL else BEFORE_ALL
        last = savepoint.seed.ordinal - 1
        payloads = []
        for shard, mine in enumerate(states):
            late = [ts for bucket, ts in reach.late_from if not self._by_bucket or bucket % self.shards == shard]
            back_to = min(late, default=before.upto + 1)
            base = mine[base_of(mine, back_to)]
            mark = before.mark(base.upto)
            payloads.append({
                "pipeline": self.text,
                "operator": self.operator.name,
                "shard": shard,
                "shards": self.shards,
                "states": base64.b64encode(packed(mine)).decode(),
                "back_to": back_to,
                "files": self._log.shard_files(shard, self.shards, self.operator.partition_by, reach.read),
                "filter_keys": self.filters_keys,
                "floor": min(mark.floor, savepoint.at.sn),
                "after": savepoint.at.sn,
                "end": reach.read,
                "before": before.upto,
                "upto": reach.at.ts,
                "final": order.slack.final,
                "horizon": horizon,
                "left_out": list(order.left_out),
                "policy": self.ordering.checkpoint.policy(EVENT_SECONDS, SAVE_SECONDS),
                "full": self.ordering.retraction == "full",
                "published": shard_files(published, mark.ordinal - 1, last, NOTHING) if late else [],
                "first_ordinal": mark.ordinal,
                "last_ordinal": last,
                "out": f"{self.scratch}/{self.operator.name}-{savepoint.batch + 1}-{shard}",
                "batch": savepoint.batch + 1,
                "faults": self.attempt.for_tasks(),
            })
        return payloads

    def _published(self) -> tuple[OutputFile, ...]:
        return output_of(self.lake, self.graph.open_outputs(), self.version.operator, self.version.number).files

    @property
    def _by_bucket(self) -> bool:
        return self.operator.partition_by == "key"

    def _stamps(self, savepoint: Savepoint, shards: list[dict[str, Any]], reach: Reach) -> list[dict[str, Any]]:
        """Retractions come first, then what is asserted, numbered as ever."""
        assert isinstance(reach, OrderedReach)
        assert reach.order is not None
        retracted = sum(shard["retracted"] for shard in shards)
        seed = Seed(savepoint.seed.x, savepoint.seed.ordinal + retracted)
        found = [shard for shard in shards if shard["out"]]
        stamps = super()._stamps(replace(savepoint, seed=seed), found, reach)
        stamps = [{**stamp, "final": reach.order.slack.final} for stamp in stamps]
        if not retracted:
            return stamps
        taking_back = {
            **self._stamp(savepoint, len(stamps)),
            "files": [f"{shard['out']}-retract" for shard in shards if shard["retracted"]],
        }
        return [taking_back, *stamps]

    def _stamped(self, stamps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        back = [self.runner.here(retract_task, stamp) for stamp in stamps if "files" in stamp]
        rest = [stamp for stamp in stamps if "files" not in stamp]
        return [*back, *(super()._stamped(rest) if rest else [])]

    def _following(
        self, savepoint: Savepoint, seed: Seed, shards: list[dict[str, Any]], reach: Reach, seconds: float
    ) -> Savepoint:
        assert isinstance(reach, OrderedReach)
        assert reach.order is not None
        self._set_aside(reach.too_late)
        order = reach.order
        marks = (*order.marks[:-1], order.marks[-1]._replace(ordinal=seed.ordinal))
        order = replace(order, marks=marks).kept_from(min(shard["first_upto"] for shard in shards))
        order = replace(order, left_out=tuple(sn for sn in order.left_out if sn > order.marks[0].floor))
        order = self._adapted(order, reach.at.ts - _order(savepoint, self.ordering).upto, seconds)
        kept = [_shard_savepoint(shard, order.mark(shard["first_upto"]).floor, reach.read) for shard in shards]
        return advance(self.operator, savepoint, seed, kept, reach.at, reach.read, reach.ends, order.to_json())

    def _numbers(self, batch: int, reach: Reach, seed: Seed) -> dict[str, int]:
        assert isinstance(reach, OrderedReach)
        assert reach.order is not None
        final = {final_app(self.version.operator, self.version.number): reach.order.slack.final}
        return {**super()._numbers(batch, reach, seed), **final}

    def _adapted(self, order: Order, span: int, seconds: float) -> Order:
        """Speculate as much as there is time for: how long a batch took, of the time that passed in the log."""
        if self.ordering.speculation != "adaptive":
            return order
        return replace(order, speculation=adapted(order.speculation, busy_factor(seconds, span / 1e6)))

    def _set_aside(self, sns: Sequence[int]) -> None:
        """Events that come later than anything can be corrected are kept where people look for them."""
        if sns:
            set_aside(self.lake, self._log, sns)


def _order(savepoint: Savepoint, ordering: Ordering) -> Order:
    """What was saved; a first start knows nothing of what lies before it."""
    if savepoint.ordering:
        return Order.from_json(savepoint.ordering)
    return replace(ordering.beginning(), marks=(Mark(floor=savepoint.at.sn),))


def _states(savepoint: Savepoint, shards: int) -> list[tuple[State, ...]]:
    kept = [unpacked(shard.states) for shard in savepoint.shards if shard.states]
    return kept or [(State(),)] * shards


def _shard_savepoint(result: dict[str, Any], floor: int, end: int) -> ShardSavepoint:
    """What a late event can go back to needs all events after it, and of those before what it says."""
    held = np.array(result["needed"], np.int64)
    needed = np.concatenate([held[held <= floor], np.arange(floor + 1, end + 1)])
    trim_sn = int(needed[0]) - 1 if needed.size else end
    kept = Kept(trim_sn, stored_gaps(needed, trim_sn, end))
    return ShardSavepoint(result["shard"], result["shards"], (kept,), states=base64.b64decode(result["states"]))
