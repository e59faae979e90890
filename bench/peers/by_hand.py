"""The pattern as somebody writes it by hand into a stateful operator of Structured Streaming: plain Python, per key.

A run is what one start has bound so far. State is a list of runs, in the order of their first events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bench.peers.workloads import Workload


class Row(NamedTuple):
    sn: int
    ts: int  # microseconds
    type: str
    v: float


Runs = list[Any]
Found = list[tuple[int, ...]]
Advance = Callable[[Runs, Iterable[Row]], tuple[Runs, Found]]


def by_hand(workload: Workload) -> Advance:
    within = workload.within * 1_000_000
    if workload.rising:
        return _rising(within)
    return _sequence([(frozenset(step.types), frozenset(step.nots)) for step in workload.steps], within)


def _sequence(steps: list[tuple[frozenset[str], frozenset[str]]], within: int) -> Advance:
    first, length = steps[0][0], len(steps)

    def advance(runs: Runs, rows: Iterable[Row]) -> tuple[Runs, Found]:
        found: Found = []
        for sn, ts, type_, _ in rows:
            going: Runs = []
            for run in runs:
                began, taken = run
                if ts - began >= within:
                    continue
                fits, nots = steps[len(taken)]
                if type_ in fits:
                    taken += (sn,)
                    if len(taken) == length:
                        found.append(taken)
                        break
                    going.append((began, taken))
                elif type_ not in nots:
                    going.append(run)
            else:
                if type_ in first:
                    going.append((ts, (sn,)))
                runs = going
                continue
            runs = []  # the match has consumed all rows up to this one
        return runs, found

    return advance


def _rising(within: int) -> Advance:
    """A R+ T: a run is when it began, the value of A, the last value, and what was taken."""

    def advance(runs: Runs, rows: Iterable[Row]) -> tuple[Runs, Found]:
        found: Found = []
        for sn, ts, type_, v in rows:
            going: Runs = []
            for began, low, last, taken in runs:
                if ts - began >= within:
                    continue
                if v > last:
                    going.append((began, low, v, (*taken, sn)))
                elif v < low and len(taken) > 1:
                    found.append((*taken, sn))
                    break
            else:
                if type_ == "a":
                    going.append((ts, v, v, (sn,)))
                runs = going
                continue
            runs = []
        return runs, found

    return advance
