"""The splitter: which windows an event lies in, from its position alone (seed 000, section II-A).

A window never depends on how many events are left after skipping. Count windows over the whole input follow from
the dense SN, time windows from stream time; both are half-open stretches of one axis:

    window y covers [(y - 1) * slide, (y - 1) * slide + size)      axis: SN - 1, or microseconds since 1970

so no event has to be kept only to reopen or close such a window during a replay. Count windows per key and windows
that a predicate opens begin at an event, whose SN is their number; while one is open, all its events are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

# One window around everything: its number, as in seed 000, is 1.
WHOLE_STREAM = 1
# Far enough below any window number of a real time stamp, and safe to multiply by a slide in 64 bits.
NO_LOWER_BOUND = -(2**31)


@dataclass(frozen=True)
class Window:
    """How an operator cuts its input. `none` is one window that never closes.

    `count` and `time` lie on a grid over the whole input; `keyed` are count windows per key; `opened` are windows
    that `open_when` opens in each key, for `size` rows (`by_rows`) or microseconds.
    """

    kind: Literal["none", "count", "time", "keyed", "opened"] = "none"
    size: int = 0
    slide: int = 0
    open_when: str | None = None
    close_when: str | None = None
    by_rows: bool = False

    @property
    def on_grid(self) -> bool:
        return self.kind in ("count", "time")

    @property
    def overlapping(self) -> bool:
        return self.kind == "opened" or (self.kind != "none" and self.slide < self.size)

    def first_window(self) -> int:
        """The lowest window number that exists: counting starts at 1, time has no beginning."""
        return NO_LOWER_BOUND if self.kind == "time" else WHOLE_STREAM

    def first_open(self, end_sn: int, watermark: int) -> int:
        """The first window that an event after `end_sn` and not before `watermark` may still fall into."""
        if not self.on_grid:
            return WHOLE_STREAM
        # The next event stands at SN end_sn + 1, which is axis position end_sn.
        position = end_sn if self.kind == "count" else watermark
        return max(self.first_window(), self.lowest(position))

    def lowest(self, position: int) -> int:
        """The first window on the grid that contains a position, or the next one to open where the slide leaves gaps."""
        return (position - self.size) // self.slide + 2

    def groups(self, first: int, position: int, count: int) -> list[tuple[int, int]]:
        """The windows from `first` to the last one that contains `position`, in at most `count` groups of about equal size."""
        last = max(first, position // self.slide + 1)
        edges = [first + (last + 1 - first) * k // count for k in range(count + 1)]
        return [(low, high - 1) for low, high in pairwise(edges) if low < high]

    def reach(self, first: int, last: int) -> tuple[int, int]:
        """The stretch of the axis that a group of windows covers, half-open."""
        return (first - 1) * self.slide, (last - 1) * self.slide + self.size
