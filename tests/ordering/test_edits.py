"""Internal replay: figures 6-1 to 6-4 of seed 001, and the law that edits are enough."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.ordering.edits import OPEN, Edits, Spans, edited, edits


def spans(*windows: tuple[int, int]) -> Spans:
    return Spans(np.array([w[0] for w in windows], np.int64), np.array([w[1] for w in windows], np.int64))


def said(todo: Edits) -> dict[str, list[object]]:
    """What is not empty, in plain numbers."""
    parts = {
        "DEL": todo.deleted.tolist(),
        "ADD": list(zip(*(part.tolist() for part in todo.added), strict=True)),
        "open": todo.opened.tolist(),
        "NOTCLOSE": todo.reopened.tolist(),
        "close": list(zip(*(part.tolist() for part in todo.closed), strict=True)),
    }
    return {name: found for name, found in parts.items() if found}


EVENTS = np.array([10, 11, 12, 13])


def test_figure_6_3_window_open() -> None:
    """Start required, window found -> what is sent."""
    assert said(edits(EVENTS, spans((11, OPEN)), spans((11, OPEN)))) == {}, "true, true"
    assert said(edits(EVENTS, spans(), spans((13, OPEN)))) == {"open": [13]}, "true, false, at the last event"
    assert said(edits(EVENTS, spans((12, OPEN)), spans((11, OPEN)))) == {"ADD": [(11, 12)]}, "true, false, the next was wrong"
    assert said(edits(EVENTS, spans(), spans((11, OPEN)))) == {"open": [11]}, "true, false, the next was not wrong"
    assert said(edits(EVENTS, spans((12, OPEN)), spans())) == {"DEL": [12]}, "false, true"
    assert said(edits(EVENTS, spans(), spans())) == {}, "false, false"


def test_the_look_ahead_looks_one_event_ahead_and_no_further() -> None:
    assert said(edits(EVENTS, spans((13, OPEN)), spans((11, OPEN)))) == {"DEL": [13], "open": [11]}
    # Two that ask for a window in a row: the first gets one of its own, the second takes over.
    assert said(edits(EVENTS, spans((12, OPEN)), spans((10, OPEN), (11, OPEN)))) == {"ADD": [(11, 12)], "open": [10]}


def test_figure_6_4_window_close() -> None:
    """End required, window found closed there -> what is sent."""
    assert said(edits(EVENTS, spans((10, 13)), spans((10, 13)))) == {}, "true, true"
    assert said(edits(EVENTS, spans((10, OPEN)), spans((10, 12)))) == {"close": [(12, 10)]}, "true, false"
    assert said(edits(EVENTS, spans((10, 12)), spans((10, OPEN)))) == {"NOTCLOSE": [10]}, "false, true"
    assert said(edits(EVENTS, spans((10, OPEN)), spans((10, OPEN)))) == {}, "false, false"
    moved = edits(EVENTS, spans((10, 12)), spans((10, 13)))
    assert said(moved) == {"NOTCLOSE": [10], "close": [(13, 10)]}, "not closed there, but later"
    assert moved.touched.tolist() == [10]


def test_figure_6_1_an_event_inside_open_windows_edits_none() -> None:
    """Windows from 1, 6 and 13; 14 comes after 15: it only joins them."""
    before = spans((1, OPEN), (6, OPEN), (13, OPEN))
    assert said(edits(np.array([10, 11, 13, 14, 15]), before, before)) == {}


def test_figure_6_2_the_window_from_13_now_begins_with_12() -> None:
    before, after = spans((1, OPEN), (6, OPEN), (13, OPEN)), spans((1, OPEN), (6, OPEN), (12, OPEN))
    todo = edits(np.array([10, 11, 12, 13, 15]), before, after)
    assert said(todo) == {"ADD": [(12, 13)]}
    assert todo.touched.tolist() == [12]
    # The late event was 8: every later place moves by one, and 11 takes over from 13... if 13 came next.
    assert said(edits(np.array([8, 9, 10, 11, 13, 15]), before, spans((1, OPEN), (6, OPEN), (11, OPEN)))) == {"ADD": [(11, 13)]}


def by_count(events: list[int], size: int, slide: int) -> Spans:
    starts = list(range(0, len(events), slide))
    return spans(*((events[s], events[s + size - 1] if s + size <= len(events) else OPEN) for s in starts))


def by_time(events: list[int], size: int) -> Spans:
    """A window opens at every event whose time is a multiple of three and closes with the last event within `size`."""
    found = []
    for event in (e for e in events if e % 3 == 0):
        inside = [e for e in events if event <= e < event + size]
        found.append((event, inside[-1] if events[-1] >= event + size else OPEN))
    return spans(*found)


@given(st.sets(st.integers(1, 60), min_size=1), st.sets(st.integers(1, 60)), st.integers(1, 7), st.integers(1, 7))
def test_edits_turn_the_old_windows_into_the_right_ones(seen: set[int], late: set[int], size: int, slide: int) -> None:
    """For windows by count and by time, and any number of late events."""
    known, right = sorted(seen), sorted(seen | late)
    order = np.array(right)
    for split in (lambda e: by_count(e, size, slide), lambda e: by_time(e, size)):
        old, new = split(known), split(right)
        got = edited(old, edits(order, old, new), order)
        assert (got.start.tolist(), got.close.tolist()) == (new.start.tolist(), new.close.tolist())


@given(st.sets(st.integers(1, 200), min_size=40), st.integers(1, 200))
def test_one_late_event_by_count_adds_and_deletes_no_window_but_the_last(seen: set[int], late: int) -> None:
    """Everything behind it moves by one place, which the look-ahead says in one word per window."""
    known, right = sorted(seen), sorted(seen | {late})
    old, new = by_count(known, 10, 4), by_count(right, 10, 4)
    todo = edits(np.array(right), old, new)
    assert todo.deleted.size == 0
    assert todo.opened.size <= 1
    untouched = [s for s, c in zip(*new, strict=True) if c != OPEN and c < late]
    assert not np.isin(untouched, todo.touched).any(), "windows that lie before it are left alone"
