"""The one order of everything: instants of the log, and the merging of several inputs into one stream.

Whatever an operator reads goes back to one event log, so every event of every edge has an instant: the stream time and the
SN of the log's event that brought it about; SN 0 where only time had to pass, which comes before all events of that time.
Instants never go back along an edge. What is known of the log up to one instant is known of every edge, so inputs can be
merged up to there without waiting, and the same however they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spark_jobs.cep.arrays import NOT_HELD, Int64s


class Instant(NamedTuple):
    """A moment of the log: stream time in microseconds, and the SN reached (0: before all events of that time)."""

    ts: int = NOT_HELD
    sn: int = 0


class Instants(NamedTuple):
    """The instants of consecutive events of an edge, never decreasing."""

    ts: Int64s
    sn: Int64s

    def upto(self, end: Instant) -> int:
        """How many of them are not after `end`."""
        first, last = (int(np.searchsorted(self.ts, end.ts, side)) for side in ("left", "right"))
        return first + int(np.searchsorted(self.sn[first:last], end.sn, side="right"))


NO_INSTANTS = Instants(np.empty(0, np.int64), np.empty(0, np.int64))


def merge(inputs: Sequence[Instants], first: int) -> tuple[list[Int64s], Instants]:
    """Number the events of several inputs as one stream, from `first` on: by instant, then input, then place in it.

    The numbers per input, and the instants of the stream.
    """
    ts, sn = (np.concatenate(column) for column in zip(*inputs, strict=True))
    source = np.repeat(np.arange(len(inputs)), [part.ts.size for part in inputs])
    order = np.lexsort((source, sn, ts))  # stable, so events of one input stay in their order
    numbers = np.empty(ts.size, np.int64)
    numbers[order] = first + np.arange(ts.size)
    bounds = np.cumsum([part.ts.size for part in inputs])[:-1]
    return np.split(numbers, bounds), Instants(ts[order], sn[order])
