"""A brute-force oracle that shares no code with the engine: plain lists, no windows arithmetic, no kernel.

An event is (sn, ts, key, letters): `letters` are the symbols it fits. Windows are found by asking, for every
event and every candidate window, whether the one lies in the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    sn: int
    ts: int
    key: str
    letters: str


@dataclass(frozen=True)
class Case:
    """A query over a stream; `size` 0 means no window."""

    steps: str
    kind: str = "none"
    size: int = 0
    slide: int = 0
    within: int = 0
    to_next_row: bool = False


def complex_events(case: Case, events: list[Event]) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """All (x, y, ordinal, sns), in order."""
    found = []
    for y, members in _windows(case, events):
        for key in sorted({event.key for event in members}):
            for bound in _matches(case, [event for event in members if event.key == key]):
                found.append((bound[-1].sn, y, tuple(event.sn for event in bound)))
    found.sort(key=lambda match: (match[0], match[1], match[2][0]))
    producing = sorted({match[0] for match in found})
    return [(producing.index(last) + 1, y, i + 1, sns) for i, (last, y, sns) in enumerate(found)]


def _windows(case: Case, events: list[Event]) -> list[tuple[int, list[Event]]]:
    if case.kind == "none":
        return [(1, events)]
    highest = max([e.sn for e in events] + [e.ts for e in events] + [0])
    windows = []
    for y in range(-case.size // case.slide - 1 if case.kind == "time" else 1, highest // case.slide + 2):
        opens = (y - 1) * case.slide
        place = [(e.sn - 1 if case.kind == "count" else e.ts) for e in events]
        windows.append((y, [e for e, p in zip(events, place, strict=True) if opens <= p < opens + case.size]))
    return windows


def _matches(case: Case, events: list[Event]) -> list[list[Event]]:
    """SQL's rule: try every row as a start, in order; take the first event that fits each next step."""
    matches = []
    start = 0
    while start < len(events):
        bound: list[Event] = []
        for event in events[start:]:
            if not bound and event is not events[start]:
                break
            if len(bound) < len(case.steps) and case.steps[len(bound)] in event.letters:
                bound.append(event)
        complete = len(bound) == len(case.steps)
        if complete and (case.within == 0 or bound[-1].ts - bound[0].ts < case.within):
            matches.append(bound)
            start = start + 1 if case.to_next_row else events.index(bound[-1]) + 1
        else:
            start += 1
    return matches
