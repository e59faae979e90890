"""What an operator knows of time after a batch: the clock, how much it speculates, and where to find what came after a time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np

from spark_jobs.cep.arrays import Int64s
from spark_jobs.ordering.slack import BEFORE_ALL, Course, Slack
from spark_jobs.ordering.speculation import Speculation


class Mark(NamedTuple):
    """Where a batch stood that had published everything up to a time."""

    upto: int = BEFORE_ALL
    ordinal: int = 1  # complex events decided later have this ordinal or a higher one
    floor: int = 0  # events that happened later have a higher SN


@dataclass(frozen=True)
class Order:
    """The same for all shards, and part of their savepoint."""

    slack: Slack = Slack()  # noqa: RUF009  # frozen
    speculation: Speculation = Speculation()  # noqa: RUF009  # frozen
    marks: tuple[Mark, ...] = (Mark(),)
    left_out: tuple[int, ...] = field(default=())  # SNs of events that came too late, as long as they could still be read

    @property
    def upto(self) -> int:
        """Everything up to this time has been published, speculatively or for good."""
        return self.marks[-1].upto

    def mark(self, upto: int) -> Mark:
        """The last mark that is not after a time."""
        return max((mark for mark in self.marks if mark.upto <= upto), default=self.marks[0])

    def kept_from(self, upto: int) -> Order:
        """Without the marks that nobody will ask for who goes back no further than to a time."""
        first = self.mark(upto)
        return replace(self, marks=tuple(mark for mark in self.marks if mark >= first))

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Order:
        found = json.loads(text)
        return cls(
            Slack(**found["slack"]),
            Speculation(**found["speculation"]),
            tuple(Mark(*mark) for mark in found["marks"]),
            tuple(found["left_out"]),
        )


def too_late(slack: Slack, course: Course, ts: Int64s, revise: int) -> Int64s:
    """The places of events that are older than what can still be revised when they come: a time after it was final.

    What an event may still change is decided by the events before it, so batches do not show in it.
    """
    before = np.concatenate([[slack.final], course.final[:-1]]) if ts.size else ts
    return np.flatnonzero((before > BEFORE_ALL) & (ts <= before - revise))


def floor_of(sns: Int64s, stream_ts: Int64s, upto: int, before: int) -> int:
    """The SN above which all events lie that happened after `upto`; both columns are in order of arrival, after SN `before`."""
    within = int(np.searchsorted(stream_ts, upto, side="right"))
    return int(sns[within - 1]) if within else before
