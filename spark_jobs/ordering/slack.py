"""Dynamic K-slack: how long events wait for others that happened before them (seeds 001, section 3.2, and 004, section 3.2).

A clock follows the times of the events that set it. Whenever it is set, the delays of the events that have come since then
are known; K is the largest delay ever seen. An event may leave for good when `ts + K <= clk`, and leaves speculatively when
`ts + alpha * K <= clk`. All of this follows from the events in their order of arrival, whatever batches they came in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_jobs.cep.arrays import Int64s

# No event has such a time: later than all of them, and before all of them. Differences of both fit into 64 bits.
NEVER = 2**61
BEFORE_ALL = -(2**61)

_NOTHING = 1e-6

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Slack:
    """What is known of time and delays after some events. A savepoint has it."""

    clk: int = BEFORE_ALL
    k: int = 0  # the largest delay seen, or the least one to be waited for
    waiting: int = NEVER  # the smallest time of the events since the clock was last set
    final: int = BEFORE_ALL  # events up to here have left for good
    measured: bool = True  # False: nothing is known of delays yet, so nothing is final

    @property
    def started(self) -> bool:
        return self.clk > BEFORE_ALL

    def frontier(self, alpha: float) -> int:
        """Events up to this time may leave now, if a share of K is waited for."""
        return self.clk - int(_wait(np.array([self.k]), alpha)[0]) if self.started else BEFORE_ALL


class Course(NamedTuple):
    """The same after each of some events."""

    clk: Int64s
    k: Int64s
    sets_clock: Bools
    final: Int64s  # never goes back: what has left has left
    after: Slack

    def frontiers(self, alpha: float, before: int = BEFORE_ALL) -> Int64s:
        """Up to which time events have left after each of them, if a share of K is waited for."""
        early = np.where(self.clk > BEFORE_ALL, self.clk - _wait(self.k, alpha), BEFORE_ALL)
        return np.maximum.accumulate(np.maximum(early, before)) if early.size else early


def follow(slack: Slack, ts: Int64s, sets_clock: Bools) -> Course:
    """Let events arrive: their times, and which of them set the clock. A clock that is set back stays where it is."""
    count = ts.size
    clock = np.maximum.accumulate(np.where(sets_clock, ts, BEFORE_ALL)) if count else ts
    clk = np.maximum(clock, slack.clk)
    ticks = np.flatnonzero(sets_clock)
    k = np.full(count, slack.k, np.int64)
    final = np.full(count, slack.final, np.int64)
    waiting, sure = slack.waiting, slack.measured
    if ticks.size:
        # The events of a turn are those after the last tick, up to and with this one.
        begins = np.concatenate([[0], ticks[:-1] + 1])
        earliest = np.minimum.reduceat(ts[: ticks[-1] + 1], begins)
        earliest[0] = min(int(earliest[0]), waiting)
        known = np.maximum.accumulate(np.maximum(clk[ticks] - earliest, slack.k))
        others = ticks > begins  # events that say something about delays, besides the one that sets the clock
        others[0] |= waiting < NEVER
        measured = np.logical_or.accumulate(others | slack.measured)
        released = np.maximum.accumulate(np.maximum(np.where(measured, clk[ticks] - known, BEFORE_ALL), slack.final))
        sure = bool(measured[-1])
        turn = np.searchsorted(ticks, np.arange(count), side="right") - 1
        since = turn >= 0
        k[since], final[since] = known[turn[since]], released[turn[since]]
        waiting = NEVER
        rest = ts[ticks[-1] + 1 :]
    else:
        rest = ts
    if rest.size:
        waiting = min(waiting, int(rest.min()))
    after = slack
    if count:
        after = Slack(int(clk[-1]), int(k[-1]), waiting, int(final[-1]), sure)
    return Course(clk, k, np.asarray(sets_clock, bool), final, after)


def by_stream_time(slack: Slack, ts: Int64s) -> Bools:
    """The clock where no source was chosen for it: the largest time so far. Whoever reaches it sets it."""
    return ts >= np.maximum(np.maximum.accumulate(ts) if ts.size else ts, slack.clk)


def leaves_at(course: Course, ts: Int64s, frontiers: Int64s, *, only_at_ticks: bool = False) -> Int64s:
    """With which arrival (a place among these) each event leaves; their number for one that has not left yet.

    Plain buffering looks at its events only when the clock is set, speculation whenever one arrives.
    """
    count = ts.size
    own = np.arange(count)
    if only_at_ticks:
        ticks = np.append(np.flatnonzero(course.sets_clock), count)
        own = ticks[np.searchsorted(ticks, own)]
        settled = np.where(course.sets_clock, frontiers, BEFORE_ALL)
        frontiers = np.maximum.accumulate(settled) if count else settled
    return np.maximum(np.searchsorted(frontiers, ts, side="left"), own)


def _wait(k: Int64s, alpha: float) -> Int64s:
    """A share of K in whole units of time; what a product of floats has too much is not waited for."""
    whole: Int64s = np.ceil(alpha * k - _NOTHING).astype(np.int64)
    return whole
