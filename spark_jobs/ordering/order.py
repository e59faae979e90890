"""What an operator knows of time after a batch: the clock, how much it speculates, and where to find what came after a time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np

from spark_jobs.cep.arrays import Int64s
from spark_jobs.ordering.slack import BEFORE_ALL, Bools, Course, Slack
from spark_jobs.ordering.speculation import Speculation


class Mark(NamedTuple):
    """Where a batch stood that had published everything up to a time."""

    upto: int = BEFORE_ALL
    ordinal: int = 1  # complex events decided later have this ordinal or a higher one
    floors: tuple[int, ...] = (0,)  # by input: events that happened later have a higher number


@dataclass(frozen=True)
class Order:
    """The same for all shards, and part of their savepoint."""

    slack: Slack = Slack()  # noqa: RUF009  # frozen
    speculation: Speculation = Speculation()  # noqa: RUF009  # frozen
    marks: tuple[Mark, ...] = (Mark(),)
    # SNs of events that came too late, or were corrected since, as long as they could still be read.
    left_out: tuple[int, ...] = field(default=())
    final: int = BEFORE_ALL  # all inputs are final up to here

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
            tuple(Mark(upto, ordinal, tuple(floors)) for upto, ordinal, floors in found["marks"]),
            tuple(found["left_out"]),
            found["final"],
        )


def finals_before(slack: Slack, course: Course, on_time: Bools) -> Int64s:
    """Up to when everything was final as each event came. Those that are not on time follow no clock, but find it somewhere."""
    known = np.concatenate([[slack.final], course.final])
    finals: Int64s = known[np.cumsum(on_time) - on_time]
    return finals


def too_late(finals: Int64s, ts: Int64s, revise: int) -> Int64s:
    """The places of events that are older than what can still be revised when they come: a time after it was final.

    What an event may still change is decided by the events before it, so batches do not show in it.
    """
    return np.flatnonzero((finals > BEFORE_ALL) & (ts <= finals - revise))


def floor_of(numbers: Int64s, reached: Int64s, upto: int, before: int) -> int:
    """The number above which all events lie that happened after `upto`; in order of arrival, after number `before`."""
    within = int(np.searchsorted(reached, upto, side="right"))
    return int(numbers[within - 1]) if within else before
