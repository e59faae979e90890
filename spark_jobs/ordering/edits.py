"""Internal replay: what a late event changes about windows, as edits of the windows that were there (seed 001, section 6).

The splitter derives the windows anew from the events after the last sound state, and tells what is different: an event is
added in front of a window, a window is deleted, is not closed after all, closes elsewhere, or is new. Nothing else is sent
again. A window is known by the event that opens it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spark_jobs.cep.arrays import Int64s

# Not closed: no event has this number.
OPEN = 0


class Spans(NamedTuple):
    """Windows in the order of their opening events; `close` is the last event of each, or OPEN."""

    start: Int64s
    close: Int64s


class Pairs(NamedTuple):
    """Events, and the windows they are about."""

    event: Int64s
    window: Int64s


@dataclass(frozen=True)
class Edits:
    """What to do to windows, in this order; every window is named by its opening event at that point."""

    deleted: Int64s
    added: Pairs  # the event becomes the first of the window, and its name
    opened: Int64s
    reopened: Int64s
    closed: Pairs

    @property
    def touched(self) -> Int64s:
        """The windows that have to be matched again, by their new names; those deleted only lose their matches."""
        return np.unique(np.concatenate([self.added.event, self.opened, self.reopened, self.closed.window]))


def edits(events: Int64s, old: Spans, new: Spans) -> Edits:
    """The difference between two splittings of a stream. `events` are those replayed, in their right order."""
    required, found = np.isin(events, new.start), np.isin(events, old.start)
    missing, wrong = required & ~found, found & ~required
    # Look ahead: if the next event had opened a window by mistake, that window only lacks this event.
    takes_over = missing & np.append(wrong[1:], False)
    taken = np.append(False, takes_over[:-1])
    added = Pairs(events[takes_over], events[taken])
    closed_at = dict(zip(old.start.tolist(), old.close.tolist(), strict=True))
    closed_at |= {event: closed_at[window] for event, window in zip(*(part.tolist() for part in added), strict=True)}
    before = np.array([closed_at.get(start, OPEN) for start in new.start.tolist()], np.int64)
    differs = before != new.close
    closing = differs & (new.close != OPEN)
    return Edits(
        deleted=events[wrong & ~taken],
        added=added,
        opened=events[missing & ~takes_over],
        reopened=new.start[differs & (before != OPEN)],
        closed=Pairs(new.close[closing], new.start[closing]),
    )


def edited(old: Spans, todo: Edits, order: Int64s) -> Spans:
    """Do to windows what the edits say; `order` are all events in their right order."""
    windows = dict(zip(old.start.tolist(), old.close.tolist(), strict=True))
    for window in todo.deleted.tolist():
        del windows[window]
    for event, window in zip(todo.added.event.tolist(), todo.added.window.tolist(), strict=True):
        windows[event] = windows.pop(window)
    windows |= dict.fromkeys(todo.opened.tolist(), OPEN)
    windows |= dict.fromkeys(todo.reopened.tolist(), OPEN)
    windows |= dict(zip(todo.closed.window.tolist(), todo.closed.event.tolist(), strict=True))
    place = {event: index for index, event in enumerate(order.tolist())}
    start = sorted(windows, key=place.__getitem__)
    return Spans(np.array(start, np.int64), np.array([windows[s] for s in start], np.int64))
