"""States of a shard along the time of its events, and how a late event corrects what was found after it (seeds 001 and 004).

A shard keeps some of the states it went through. An event that comes late sends it back to the last state before that
event; from there it goes forward again over the same events with the late one among them, until a state is what it was
before: from there on nothing can differ. What is found on the way is compared with what was published.

Nothing here depends on how many events came before: places are numbers in order of time, and a state names its events by
their SNs in the log, which never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import NO_FLOORS, Floors, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.matcher import NOTHING, Known, Replay, match_shard
from spark_jobs.cep.operator import Operator
from spark_jobs.errors import TrimmedEventNeeded
from spark_jobs.ordering.slack import BEFORE_ALL


class State(NamedTuple):
    """A shard when everything up to a time has been matched: the events it still needs, and from where its windows go on."""

    upto: int = BEFORE_ALL
    read: int = 0  # the place of the last event
    needed: Int64s = NOTHING  # SNs, in order of time
    places: Int64s = NOTHING
    context: Int64s = NOTHING  # SNs of those that are not matched again
    floors: Floors = NO_FLOORS  # in places

    def same_as(self, other: State, operator: Operator) -> bool:
        """Will the same be found from here on? Places may differ, unless windows count them."""
        counted = operator.window.kind == "count"
        return (
            self.upto == other.upto
            and (not counted or self.read == other.read)
            and np.array_equal(self.needed, other.needed)
            and np.array_equal(self.context, other.context)
            and np.array_equal(self._named_floors(), other._named_floors())
        )

    def _named_floors(self) -> Int64s:
        """The floors, each by the first needed event that lies above it: others do not come again. In one order."""
        named = [
            np.append(self.needed, 0)[np.searchsorted(self.places, part)] for part in (self.floors.witness, self.floors.sn)
        ]
        rows = np.array([*named, self.floors.low, self.floors.high])
        return rows[:, np.lexsort(rows)]


class Forward(NamedTuple):
    """What a stretch of time brought."""

    matches: pa.Table
    state: State


def forward(operator: Operator, state: State, events: pa.Table, upto: int, places: Int64s | None = None) -> Forward:
    """Match what happened after a state, up to a time.

    `events` are in order of time and hold those that the state needs, besides others; `places` are those of the new ones where
    windows count the events of other shards too.
    """
    ts, sn = int64s(events["stream_ts"]), int64s(events["sn"])
    begin, end = np.searchsorted(ts, [state.upto, upto], side="right")
    old = np.flatnonzero(np.isin(sn[:begin], state.needed))
    rows = np.concatenate([old, np.arange(begin, end)])
    is_new = rows >= begin
    if old.size != state.needed.size:
        raise TrimmedEventNeeded(
            f"operator '{operator.name}' needs {state.needed.size:,} earlier events to go on, but {old.size:,} are there. "
            "Nothing was published. A file of its input was removed or damaged; restore it, or detect into a new lake."
        )
    if places is None:
        places = state.read + 1 + np.arange(end - begin)
    place = np.empty(rows.size, np.int64)
    place[is_new] = places
    place[~is_new] = state.places  # both in order of time
    taken = events.take(pa.array(rows))
    numbered = taken.set_column(taken.schema.get_field_index("sn"), "sn", pa.array(place))
    read = int(places[-1]) if places.size else state.read
    known = Known(state.read, read, state.upto, upto, first_window(operator, state))
    replay = Replay(state.places[np.isin(state.needed, state.context)], state.floors)
    found = match_shard(operator, numbered, known, replay=replay)
    named = _Names(place, sn[rows])
    needed = np.union1d(found.held_sn, found.context_sn) if found.context_sn.size else found.held_sn
    context = np.setdiff1d(found.context_sn, found.held_sn) if found.context_sn.size else NOTHING
    after = State(
        upto,
        read,
        named.sns(needed),
        needed,
        named.sns(context),
        found.floors,
    )
    return Forward(_with_sns(operator, found.matches, named), after)


class Corrected(NamedTuple):
    """What late events changed: the states to go on from, and what is now found in some stretches of time."""

    states: tuple[State, ...]
    stretches: list[tuple[int, int]]  # each after a time, up to another one
    matches: pa.Table  # of all of them
    again: int  # events that were matched again


def corrected(
    operator: Operator, states: Sequence[State], events: pa.Table, late: Int64s, *, to_the_end: bool = False
) -> Corrected:
    """Go back to the last state before a late event and forward again, until a state is what it was; then to the next one.

    `states` are in order of time, the last one is where the shard stands. `events` holds what the first state gone back to
    needs and all events after it, the late ones among them; `late` are their times, in order. `to_the_end` looks for no
    state that is what it was, which is full retraction.
    """
    kept, parts, stretches, again = list(states), [], [], 0
    ts = int64s(events["stream_ts"])
    while late.size:
        place = base_of(kept, int(late[0]))
        if place < 0:
            raise ValueError(f"no state lies before {late[0]}; the first one stands at {kept[0].upto}")
        began, state = kept[place].upto, kept[place]
        while True:
            place += 1
            before = kept[place]
            again += int(((ts > state.upto) & (ts <= before.upto)).sum())
            found, state = forward(operator, state, events, before.upto)
            parts.append(found)
            late = late[late > before.upto]
            if place == len(kept) - 1 or (not to_the_end and state.same_as(before, operator)):
                break
            kept[place] = state
        kept[place] = state
        stretches.append((began, state.upto))
    return Corrected(tuple(kept), stretches, pa.concat_tables(parts), again)


def base_of(states: Sequence[State], late_from: int) -> int:
    """The last state that a late event leaves as it is; -1 if there is none."""
    return int(np.searchsorted([state.upto for state in states], late_from)) - 1


class _Names:
    """The SNs of the events that have places here."""

    def __init__(self, places: Int64s, sns: Int64s) -> None:
        order = np.argsort(places)
        self._places, self._sns = places[order], sns[order]

    def sns(self, places: Int64s) -> Int64s:
        if not places.size:
            return NOTHING
        at = np.minimum(np.searchsorted(self._places, places), self._places.size - 1)
        if (self._places[at] != places).any():
            raise AssertionError("a place without an event")
        return self._sns[at]


def _with_sns(operator: Operator, matches: pa.Table, named: _Names) -> pa.Table:
    """Matches that name events by their SNs; deadlines (0) stay what they are."""
    at = int64s(matches["_at_sn"]).copy()
    at[at > 0] = named.sns(at[at > 0])
    bound = matches["sns"].combine_chunks()
    columns = {
        "_at_sn": pa.array(at),
        "_first_sn": pa.array(named.sns(int64s(matches["_first_sn"]))),
        "sns": pa.ListArray.from_arrays(bound.offsets, pa.array(named.sns(int64s(bound.values)))),
    }
    if operator.window.kind in ("keyed", "opened"):  # numbered by the event that opens them
        columns["y"] = pa.array(named.sns(int64s(matches["y"])))
    for name, column in columns.items():
        matches = matches.set_column(matches.schema.get_field_index(name), name, column)
    return matches


def first_window(operator: Operator, state: State) -> int:
    """The first window that events after a state may fall into."""
    window = operator.window
    return window.first_open(state.read, state.upto) if state.upto > BEFORE_ALL else window.first_window()
