"""Detection over events in order of time: arrivals move the clock, late ones correct what was published.

A batch takes events in their order of arrival. What K-slack lets go, wholly or in part, is matched in order of time; an
event that happened before what was published sends its shard back to an older state. Each commit carries retractions and
assertions, and the net of all of them is right after every commit.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from deltalake import DeltaTable

from spark_jobs.arrivals import NOTHING, Arrivals, TakenBack, of_log, of_operator
from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed
from spark_jobs.corrections import corrections_of
from spark_jobs.detect import Detection, Result
from spark_jobs.feeds import GraphFeed, LogFeed, Reach
from spark_jobs.lake.outputs import Output, OutputFile, app_of, end_app, final_app, output_of, shard_files
from spark_jobs.lake.scan import EventLog, number_range
from spark_jobs.late import set_aside
from spark_jobs.ordered_tasks import order_task, retract_task
from spark_jobs.ordering.names import numbers_in
from spark_jobs.ordering.order import Mark, Order, finals_before, floor_of, too_late
from spark_jobs.ordering.packed import packed, unpacked
from spark_jobs.ordering.slack import BEFORE_ALL, NEVER, Slack, by_stream_time, follow
from spark_jobs.ordering.speculation import adapted, busy_factor
from spark_jobs.ordering.states import State, base_of
from spark_jobs.pipeline import EVENT_LOG, Ordering
from spark_jobs.recovery.resume import Gap, Remade, Resumption
from spark_jobs.recovery.savepoint import Kept, Savepoint, ShardSavepoint, advance
from spark_jobs.recovery.sets import read_numbers, stored_gaps, stored_numbers
from spark_jobs.recovery.store import Stored

# What matching an event takes, and going through one more state: measured, for as long as nothing else is known.
EVENT_SECONDS, SAVE_SECONDS = 1e-7, 5e-3


@dataclass(frozen=True)
class OrderedReach(Reach):
    """How far a batch goes: in arrivals, and in time."""

    order: Order | None = None
    changed: TakenBack = TakenBack()  # noqa: RUF009  # frozen; of what was published before, only when and where
    late_from: tuple[tuple[int, int], ...] = ()  # by bucket: when the earliest event happened that comes or goes late
    too_late: tuple[int, ...] = ()  # SNs
    in_order: bool = False  # the log itself is in order of time, so far


class OrderedDetection(Detection):
    """One attempt at one operator version that reads its inputs in order of time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.by_windows = False
        self.names = self.graph.pipeline.operators[self.operator.name].inputs
        self.by_bucket = self.names == [EVENT_LOG] and self.operator.partition_by == "key"
        # Windows that count all events need to see all of them.
        counts = self.operator.window.kind == "count"
        self.shards = self.settings.shards if self.operator.partition_by and not counts else 1
        self.ahead: list[OutputFile] = []  # computed here, perhaps not published yet: replicas compute ahead

    @property
    def _log(self) -> EventLog:
        assert isinstance(self.feed, LogFeed | GraphFeed)
        return self.feed.log

    @property
    def _outputs(self) -> Mapping[str, Output]:
        """The operators among the inputs."""
        return self.feed.outputs if isinstance(self.feed, GraphFeed) else {}

    @property
    def ordering(self) -> Ordering:
        assert self.graph.pipeline.ordering is not None
        return self.graph.pipeline.ordering

    def resumed(self, handle: DeltaTable) -> Resumption:
        self.handle, self.ahead = handle, []
        found = super().resumed(handle)
        if found.savepoint.shards:  # states belong to shards, so their number stays what it was
            self.shards = found.savepoint.shards[0].shards
        return found

    def _reading(self, savepoint: Savepoint, read: Callable[[], Result]) -> Result:
        """What this replica has computed ahead is removed once a peer has published it: then it stands in the table."""
        while True:
            ahead = len(self.ahead)
            try:
                return super()._reading(savepoint, read)
            except FileNotFoundError:
                self._published()
                if len(self.ahead) >= ahead:
                    raise

    def _stood(self, found: Stored) -> bool:
        """A savepoint says what was published before it, so one that was never committed is nothing to go on from."""
        app = app_of(self.version.operator, self.version.number)
        step = {"reprise.app": app, "reprise.step": str(found.savepoint.batch), "reprise.attempt": str(found.attempt)}
        return any(step.items() <= commit.items() for commit in self.handle.history())

    @property
    def _shards_alone(self) -> bool:
        """What is known of time is the same for all of them, and made anew for all of them."""
        return False

    def _remade(self, gap: Gap) -> Remade:
        """Go from an older savepoint to the commit again; what is found on the way was published."""
        self.feed.check(gap.base)
        self.runner.ready()
        if gap.base.shards:
            self.shards = gap.base.shards[0].shards
        reach = self._reach(gap.base, gap.committed.at)
        assert reach is not None
        results = self.runner.run(order_task, self._order_payloads(gap.base, reach))
        following = self._following(gap.base, gap.committed.seed, results, reach, 0.0)
        return Remade(replace(following, batch=gap.committed.batch), tuple(result["read"] for result in results))

    def next(self, savepoint: Savepoint) -> OrderedReach | None:
        return self._reading(savepoint, lambda: self._reach(savepoint))

    def _reach(self, savepoint: Savepoint, at: Instant | None = None) -> OrderedReach | None:
        """Let the next events arrive, and see how far time has come; or go to where a commit was."""
        ends = self._committed_ends(at) if at else self._ends(savepoint)
        order, edges = _order(savepoint, self.ordering), savepoint.edges
        head, nothing_new = order.marks[-1], ends == tuple(edge.end for edge in edges)
        if nothing_new and not self._outputs:
            return None
        if self._in_order(ends[0]):
            return self._reach_in_order(order, ends[0])
        starts = [min(floor, edge.end) for floor, edge in zip(head.floors, edges, strict=True)]
        came = [self._came(edge.name, start, end) for edge, start, end in zip(edges, starts, ends, strict=True)]
        new = [arrived.after(edge.end) for arrived, edge in zip(came, edges, strict=True)]
        slack, late_sns = self._followed(order, new)
        upto = at.ts if at else max(head.upto, self._frontier(slack, order, came, head.upto))
        known = at or Instant(upto, self._log_end(savepoint, ends))
        if nothing_new and known == savepoint.at:
            return None
        changed = _joined([
            _changed(arrived, edge.end, head.upto, late_sns if edge.name == EVENT_LOG else NOTHING)
            for arrived, edge in zip(new, edges, strict=True)
        ])
        floors = [floor_of(arrived.number, arrived.reached, upto, start) for arrived, start in zip(came, starts, strict=True)]
        final = self._committed_final if at else self._final(slack, order)
        following = replace(
            order,
            slack=slack,
            marks=(*order.marks, Mark(upto, 0, tuple(floors))),
            left_out=(*order.left_out, *late_sns.tolist(), *self._replaced(new, late_sns)),
            final=final,
        )
        times = np.concatenate([arrived.ts for arrived in came])
        return OrderedReach(
            known,
            sum(ends),
            ends,
            order=following,
            changed=changed,
            late_from=tuple((int(b), int(changed.ts[changed.bucket == b].min())) for b in np.unique(changed.bucket)),
            too_late=tuple(late_sns.tolist()),
            speculative=int(((times > max(head.upto, final)) & (times <= upto)).sum()),
        )

    def _in_order(self, end: int) -> bool:
        """Has nothing ever come late, and does nothing wait for a clock of its own? Then the log lies in order of time."""
        plain = self.names == [EVENT_LOG] and self.ordering.clock is None and self.ordering.slack is None
        return plain and end <= self._log.ordered_sn and self.operator.window.kind != "count"

    def _reach_in_order(self, order: Order, end: int) -> OrderedReach:
        """Nobody waits for anybody: everything up to the last event is matched, and final. No event has to be looked at."""
        upto = self._log.stream_ts_at(end)
        slack = Slack(upto, 0, NEVER, upto)
        order = replace(order, slack=slack, marks=(*order.marks, Mark(upto, 0, (end,))), final=upto)
        return OrderedReach(Instant(upto, end), end, (end,), order=order, in_order=True)

    def _log_end(self, savepoint: Savepoint, ends: Sequence[int]) -> int:
        """How far the log is known, to this operator or to all that it reads."""
        if EVENT_LOG in self.names:
            return ends[self.names.index(EVENT_LOG)]
        return max(savepoint.at.sn, min(output.committed.at.sn for output in self._outputs.values()))

    def _replaced(self, new: Sequence[Arrivals], late_sns: Int64s) -> list[int]:
        """The events of the log that were corrected in time."""
        if EVENT_LOG not in self.names:
            return []
        back = new[self.names.index(EVENT_LOG)].taken_back
        replaced: list[int] = back.number[~np.isin(back.by, late_sns)].tolist()
        return replaced

    def _ends(self, savepoint: Savepoint) -> tuple[int, ...]:
        """How far each input is taken: of the log a batch, and no further than the operators know it; of those, everything."""
        known = min((output.committed.at.sn for output in self._outputs.values()), default=self._log.last_sn)
        return tuple(
            self._outputs[edge.name].last
            if edge.name in self._outputs
            else max(edge.end, min(edge.end + self.settings.batch_events, known, self._log.last_sn))
            for edge in savepoint.edges
        )

    def _committed_ends(self, at: Instant) -> tuple[int, ...]:
        names = [end_app(self.version.operator, self.version.number, name) for name in self.names]
        return tuple(
            at.sn if name == EVENT_LOG else self.handle.transaction_version(app) or 0
            for name, app in zip(self.names, names, strict=True)
        )

    def _came(self, name: str, after: int, end: int) -> Arrivals:
        if name in self._outputs:
            return of_operator(self._outputs[name], after, end)
        return of_log(self._log, corrections_of(self.lake, self._log.handle), self.ordering.clock, after, end)

    def _followed(self, order: Order, new: Sequence[Arrivals]) -> tuple[Slack, Int64s]:
        """The clock after what the log has brought, and which of its events came too late to count."""
        if EVENT_LOG not in self.names:
            return order.slack, NOTHING
        log = new[self.names.index(EVENT_LOG)]
        ts = log.ts[log.on_time]
        ticks = log.sets_clock[log.on_time] if self.ordering.clock else by_stream_time(order.slack, ts)
        course = follow(order.slack, ts, ticks)
        finals = finals_before(order.slack, course, log.on_time)
        return course.after, log.number[too_late(finals, log.judged, self.ordering.revise_us)]

    def _frontier(self, slack: Slack, order: Order, came: Sequence[Arrivals], upto: int) -> int:
        """Up to which time events may be matched: as far as the clock lets them, and as operators have published."""
        limits = [output.committed.at.ts for output in self._outputs.values()]
        if EVENT_LOG in self.names:
            return min([*limits, slack.frontier(order.speculation.alpha)])
        ahead = np.concatenate([arrived.ts[arrived.stands] for arrived in came])
        ahead = np.sort(ahead[(ahead > upto) & (ahead <= min(limits))])
        whole = ahead.size <= self.settings.batch_events
        return min(limits) if whole else int(ahead[self.settings.batch_events - 1])

    def _final(self, slack: Slack, order: Order) -> int:
        finals = [output.final if output.final is not None else BEFORE_ALL for output in self._outputs.values()]
        return max(order.final, min([*finals, *([slack.final] if EVENT_LOG in self.names else [])]))

    def _matched(self, savepoint: Savepoint, reach: Reach) -> list[dict[str, Any]]:
        assert isinstance(reach, OrderedReach)
        return self._reading(savepoint, lambda: self.runner.run(order_task, self._order_payloads(savepoint, reach)))

    def _order_payloads(self, savepoint: Savepoint, reach: OrderedReach) -> list[dict[str, Any]]:
        before, order = _order(savepoint, self.ordering), reach.order
        assert order is not None
        kept = [shard.states for shard in savepoint.shards if shard.states] or [packed((State(),))] * self.shards
        published = self._published() if reach.late_from else ()
        horizon = order.final - self.ordering.revise_us if order.final > BEFORE_ALL else BEFORE_ALL
        last = savepoint.seed.ordinal - 1
        payloads = []
        for shard, stored in enumerate(kept):
            mine = unpacked(stored)
            late = [ts for bucket, ts in reach.late_from if not self.by_bucket or bucket % self.shards == shard]
            base = mine[base_of(mine, min(late, default=before.upto + 1))]
            mark = before.mark(base.upto)
            gone = reach.changed.number > 0
            if self.by_bucket:
                gone &= reach.changed.bucket % self.shards == shard
            payloads.append({
                "pipeline": self.text,
                "operator": self.operator.name,
                "shard": shard,
                "shards": self.shards,
                "states": base64.b64encode(stored).decode(),
                "base": base.upto,
                "inputs": self._inputs(savepoint, reach, shard, base, mark),
                "in_order": reach.in_order,
                "gone": np.unique(reach.changed.ts[gone]).tolist(),
                "filter_keys": self.shards > 1 and not self.by_bucket,  # there may be more or fewer than were asked for
                "before": before.upto,
                "upto": reach.at.ts,
                "final": order.final,
                "horizon": horizon,
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

    def _inputs(self, savepoint: Savepoint, reach: OrderedReach, shard: int, base: State, mark: Mark) -> list[dict[str, Any]]:
        """What a shard has to read of each input: what the state gone back to needs, and all that came after it."""
        assert reach.order is not None
        inputs = []
        for index, edge in enumerate(savepoint.edges):
            floor, end = min(mark.floors[index], edge.end), reach.ends[index]
            if edge.name in self._outputs:
                files = shard_files(self._outputs[edge.name].files, floor, end, numbers_in(base.needed, index, len(self.names)))
                left_out: list[int] = []
            else:
                key = self.operator.partition_by if self.by_bucket else None
                files = self._log.shard_files(shard, self.shards, key, end)
                left_out = list(reach.order.left_out)
            entry = {"name": edge.name, "files": files, "floor": floor, "after": edge.end, "end": end, "left_out": left_out}
            inputs.append(entry)
        return inputs

    def _published(self) -> tuple[OutputFile, ...]:
        """What stands in the table, and what will stand there once it is published: late events change both."""
        there = output_of(self.lake, self.graph.open_outputs(), self.version.operator, self.version.number)
        self.ahead = [file for file in self.ahead if file.first_sn > there.last]
        return (*there.files, *self.ahead)

    @property
    def _final_app(self) -> str:
        return final_app(self.version.operator, self.version.number)

    @property
    def _committed_final(self) -> int:
        final = self.handle.transaction_version(self._final_app)
        return BEFORE_ALL if final is None else final

    def _stamps(self, savepoint: Savepoint, shards: list[dict[str, Any]], reach: Reach) -> list[dict[str, Any]]:
        """Retractions come first, then what is asserted, numbered as ever."""
        assert isinstance(reach, OrderedReach)
        assert reach.order is not None
        retracted = sum(shard["retracted"] for shard in shards)
        seed = Seed(savepoint.seed.x, savepoint.seed.ordinal + retracted)
        found = [shard for shard in shards if shard["out"]]
        stamps = super()._stamps(replace(savepoint, seed=seed), found, reach)
        stamps = [{**stamp, "final": reach.order.final} for stamp in stamps]
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
        written = [*back, *(super()._stamped(rest) if rest else [])]
        paths = [f"{stamps[0]['folder']}/{result['name']}" for result in written]
        self.ahead += [OutputFile(path, *number_range(path, "ordinal")) for path in paths]
        return written

    def _following(
        self, savepoint: Savepoint, seed: Seed, shards: list[dict[str, Any]], reach: Reach, seconds: float
    ) -> Savepoint:
        assert isinstance(reach, OrderedReach)
        assert reach.order is not None
        self._set_aside(reach.too_late)
        order = reach.order
        marks = (*order.marks[:-1], order.marks[-1]._replace(ordinal=seed.ordinal))
        order = replace(order, marks=marks).kept_from(min(shard["first_upto"] for shard in shards))
        if EVENT_LOG in self.names:
            floor = order.marks[0].floors[self.names.index(EVENT_LOG)]
            order = replace(order, left_out=tuple(sn for sn in order.left_out if sn > floor))
        order = self._adapted(order, reach.at.ts - _order(savepoint, self.ordering).upto, seconds)
        kept = [_shard_savepoint(shard, order.mark(shard["first_upto"]).floors, reach.ends) for shard in shards]
        return advance(self.operator, savepoint, seed, kept, reach.at, reach.read, reach.ends, order.to_json())

    def _numbers(self, batch: int, reach: Reach, seed: Seed) -> dict[str, int]:
        assert isinstance(reach, OrderedReach)
        assert reach.order is not None
        read = zip(self.names, reach.ends, strict=True)
        ends = {end_app(self.version.operator, self.version.number, name): end for name, end in read if name != EVENT_LOG}
        return {**super()._numbers(batch, reach, seed), self._final_app: reach.order.final, **ends}

    def _adapted(self, order: Order, span: int, seconds: float) -> Order:
        """Speculate as much as there is time for: how long a batch took, of the time that passed in the log."""
        if self.ordering.speculation != "adaptive" or EVENT_LOG not in self.names:
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
    return replace(ordering.beginning(), marks=(Mark(floors=tuple(edge.end for edge in savepoint.edges)),))


def _changed(arrived: Arrivals, read: int, upto: int, late_sns: Int64s) -> TakenBack:
    """What was not there when everything up to a time was published, and what was and no longer counts (its number is kept)."""
    back = arrived.taken_back
    back = back.those(~np.isin(back.by, late_sns))  # what comes too late takes nothing back
    comes = (arrived.ts <= upto) & ~np.isin(arrived.number, back.number) & ~np.isin(arrived.number, late_sns)
    back = back.those((back.number <= read) & (back.ts <= upto))
    zeros = np.zeros(int(comes.sum()), np.int64)
    return _joined([back, TakenBack(zeros, arrived.ts[comes], arrived.bucket[comes], zeros)])


def _joined(parts: Sequence[TakenBack]) -> TakenBack:
    return TakenBack(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _shard_savepoint(result: dict[str, Any], floors: Sequence[int], ends: Sequence[int]) -> ShardSavepoint:
    """What a late event can go back to needs all events after it, and of those before what it says."""
    held, kept = read_numbers(base64.b64decode(result["needed"])), []
    for index, end in enumerate(ends):
        floor = min(floors[index], end)
        mine = numbers_in(held, index, len(ends))
        mine = mine[mine <= floor]
        trim_sn = int(mine[0]) - 1 if mine.size else floor
        # States name their events themselves, so that places in a merged stream say nothing here.
        places = stored_numbers(np.concatenate([mine, np.arange(floor + 1, end + 1)])) if len(ends) > 1 else b""
        # Nothing is skipped above the floor, so that the gaps end there, however many events follow.
        kept.append(Kept(trim_sn, stored_gaps(mine, trim_sn, floor), places=places))
    return ShardSavepoint(result["shard"], result["shards"], tuple(kept), states=base64.b64decode(result["states"]))
