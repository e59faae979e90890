"""How events of a generated log come late: per source and FIFO (seed 001, section 7.2.1), with jitter, and in bursts.

s1 from 20 s for 50 s by 3 s                every event of source s1 in that time comes 3 s late
s1 from 20 s for 50 s by 3 s every 10 s     the delay begins at zero and grows by 3 s every 10 s
from 20 s for 5 s times 10                  ten times as many events in that time
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.words import duration
from spark_jobs.errors import RepriseError

_SPAN = r"from (?P<start>[\w ]+?) for (?P<length>[\w ]+?)"
_DELAY = re.compile(rf"s(?P<source>\d{{1,6}}) {_SPAN} by (?P<by>[\w ]+?)(?: every (?P<every>[\w ]+))?")
_BURST = re.compile(rf"{_SPAN} times (?P<times>\d{{1,6}}(?:\.\d{{1,6}})?)")


@dataclass(frozen=True)
class Delay:
    """A source that is late for a while; times in microseconds from the beginning of the log."""

    source: int
    start: int
    length: int
    by: int
    every: int | None = None  # the delay grows from zero; otherwise it is there at once

    def of(self, since: Int64s) -> Int64s:
        """The delay of events at some times."""
        within = (since >= self.start) & (since < self.start + self.length)
        steps = (since - self.start) // self.every if self.every else 1
        delays: Int64s = np.where(within, self.by * steps, 0)
        return delays


@dataclass(frozen=True)
class Burst:
    """A time in which there are more events."""

    start: int
    length: int
    times: float


def parse_delay(text: str) -> Delay:
    found = _DELAY.fullmatch(" ".join(text.split()))
    if not found:
        raise RepriseError(
            f"'{text}' is not a delay; write it like 's1 from 20 s for 50 s by 3 s', or with 'every 10 s' to grow"
        )
    words = _durations(text, found, ("length", "by", "every"))
    return Delay(int(found["source"]), _start(text, found), words["length"], words["by"], words.get("every"))


def parse_burst(text: str) -> Burst:
    found = _BURST.fullmatch(" ".join(text.split()))
    if not found or float(found["times"]) <= 0:
        raise RepriseError(f"'{text}' is not a burst; write it like 'from 20 s for 5 s times 10'")
    return Burst(_start(text, found), _durations(text, found, ("length",))["length"], float(found["times"]))


def parse_jitter(text: str) -> int:
    try:
        return duration(text) if text else 0
    except ValueError as error:
        raise RepriseError(f"--jitter: {error}") from None


def times(count: int, rate: float, bursts: Sequence[Burst]) -> Int64s:
    """When events happen: evenly at `rate` per second, faster in bursts. In microseconds from the beginning."""
    if not bursts:
        return np.arange(count, dtype=np.int64) * int(1_000_000 / rate)
    edges = sorted({0.0, *(float(t) for b in bursts for t in (b.start, b.start + b.length))})
    speeds = [rate / 1e6 * np.prod([b.times for b in bursts if b.start <= edge < b.start + b.length]) for edge in edges]
    # How many events there were at each edge; between edges their number grows evenly, and it can be read backwards.
    numbers = np.concatenate([[0.0], np.cumsum(np.diff(edges) * speeds[:-1])])
    wanted = np.arange(count)
    inside = np.interp(wanted, numbers, edges)
    beyond = edges[-1] + (wanted - numbers[-1]) / speeds[-1]
    found: Int64s = np.where(wanted <= numbers[-1], inside, beyond).astype(np.int64)
    return found


def late(since: Int64s, source: Int64s, delays: Sequence[Delay], jitter: int, random: np.random.Generator) -> Int64s:
    """When each event is seen, no sooner than it happens. Those of one source are seen in the order in which they happen."""
    seen = since + (random.integers(0, jitter + 1, since.size) if jitter else 0)
    for delay in delays:
        mine = source == delay.source
        seen[mine] += delay.of(since[mine])
    for number in np.unique(source):
        mine = source == number
        seen[mine] = np.maximum.accumulate(seen[mine])
    return seen


def _durations(text: str, found: re.Match[str], names: Sequence[str]) -> dict[str, int]:
    try:
        return {name: duration(found[name]) for name in names if found[name]}
    except ValueError as error:
        raise RepriseError(f"in '{text}': {error}") from None


def _start(text: str, found: Any) -> int:
    """The one duration that may be nothing."""
    return 0 if re.fullmatch(r"0+ ?[a-z]+", found["start"]) else _durations(text, found, ("start",))["start"]
