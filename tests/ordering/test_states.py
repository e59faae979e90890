"""Late events: whatever the order of arrival, what stands after each batch is what was right all along."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_jobs.cep.operator import Operator
from spark_jobs.ordering.states import State, corrected, forward
from spark_jobs.streams import in_time
from tests.cep import oracle
from tests.cep.cases import examples, problems, skip_refused
from tests.cep.engine import operator_of, table_of
from tests.cep.oracle import Case, Event

PATIENCE = 100_000  # looks of the oracle at one batch: some seconds, where most take a few hundred
Problem = tuple[Case, list[Event]]
Row = tuple[int, int, int, tuple[int, ...], tuple[str, ...], bool]  # when decided, by what, window, events, symbols, timed out

pytestmark = pytest.mark.timeout(14_400)


def right(case: Case, arrived: list[Event], upto: int) -> set[Row]:
    """What the oracle finds in the events up to a time, in the order in which they happened."""
    order = sorted((e for e in arrived if e.ts <= upto), key=lambda e: (e.ts, e.sn))
    if not order:
        return set()
    name = {0: 0, **{place: e.sn for place, e in enumerate(order, 1)}}
    log = [replace(e, sn=place) for place, e in enumerate(order, 1)]
    found = set()
    for m in oracle.matches(case, log, upto, PATIENCE):
        ts, _, place = m.producer
        y = name[m.y] if case.kind in ("keyed", "opened") else m.y
        bound = tuple(name[e.sn] for _, e in m.bound)
        found.add((ts, name[place], y, bound, tuple(s for s, _ in m.bound), m.timed_out))
    return found


def rows(matches: pa.Table) -> set[Row]:
    listed = matches.select(["_at_ts", "_at_sn", "y", "sns", "symbols", "timed_out"]).to_pylist()
    found = [(r["_at_ts"], r["_at_sn"], r["y"], tuple(r["sns"]), tuple(r["symbols"]), r["timed_out"]) for r in listed]
    assert len(set(found)) == len(found)
    return set(found)


class Shard:
    """One shard that takes events as they come and corrects itself."""

    def __init__(self, operator: Operator, every: int = 1) -> None:
        self.operator, self.every = operator, every
        self.states: tuple[State, ...] = (State(),)
        self.arrived: list[Event] = []
        self.published: set[Row] = set()
        self.again = 0

    def take(self, batch: list[Event], upto: int) -> None:
        self.arrived += batch
        events = in_time(table_of(self.arrived))
        late = np.array(sorted(e.ts for e in batch if e.ts <= self.states[-1].upto), np.int64)
        if late.size:
            done = corrected(self.operator, self.states, events, late)
            touched = {row for row in self.published for after, until in done.stretches if after < row[0] <= until}
            self.published, self.states = (self.published - touched) | rows(done.matches), done.states
            self.again += done.again
        before = self.states[-1].upto
        for cut in [*range(max(before, -1) + self.every, upto, self.every), upto]:
            if cut > before:
                found, state = forward(self.operator, self.states[-1], events, cut)
                self.published |= rows(found)
                self.states += (state,)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[Case, list[tuple[list[Event], int]]]:
    """Events in any order of arrival, in batches, each with the time that may be published up to then."""
    case, log = draw(problems(complete=False))
    order = draw(st.permutations(log))
    arrived = [replace(event, sn=sn) for sn, event in enumerate(order, 1)]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(arrived) - 1)), max_size=4)))
    bounds = [0, *cuts, len(arrived)]
    batches, upto = [], 0
    for low, high in pairwise(bounds):
        upto = draw(st.integers(upto, 40))
        batches.append((arrived[low:high], upto))
    return case, batches


@settings(max_examples=examples(100), deadline=None)
@given(arrivals(), st.integers(1, 9))
def test_after_every_batch_stands_what_is_right(problem: tuple[Case, list[tuple[list[Event], int]]], every: int) -> None:
    case, batches = problem
    skip_refused(case)
    shard = Shard(operator_of(case), every)
    for batch, upto in batches:
        shard.take(batch, upto)
        try:
            expected = right(case, shard.arrived, shard.states[-1].upto)
        except oracle.OutOfPatience:
            assume(False)
        assert shard.published == expected


def events(text: str) -> list[Event]:
    """Like a4: a type and a time, in order of arrival."""
    return [Event(sn, int(word[1:]), "x", word[0]) for sn, word in enumerate(text.split(), 1)]


def test_figure_9_on_demand_stops_where_nothing_differs_any_more() -> None:
    """A!BC of seed 004: B4 takes D3 = A3 C5 away, D6 = A6 C7 stays, and is not even looked at again."""
    case = Case("A -> !N -> C")
    shard = Shard(operator_of(case))
    log = events("a3 c5 a6 c7 n8")
    shard.take(log, 8)
    assert {row[3] for row in shard.published} == {(1, 2), (3, 4)}
    shard.take([Event(6, 4, "x", "n")], 8)
    assert {row[3] for row in shard.published} == {(3, 4)}
    assert shard.again < 4, "A6, C7 and B8 were left alone"


def test_a_late_event_that_matters_to_nobody_costs_one_state() -> None:
    shard = Shard(operator_of(Case("A -> B")))
    shard.take(events(" ".join(f"{'ab'[t % 2]}{t}" for t in range(30))), 30)
    before = set(shard.published)
    shard.take([Event(31, 4, "x", "-")], 30)
    assert shard.published == before
    assert shard.again == 2, "itself and the event of its time"


def test_figure_4_2_an_older_state_is_what_saves_a_k_that_grows_late() -> None:
    """c-15 comes when b-16 is final. With the states before it gone, which is the plain method, the output stays wrong."""
    case, late = Case("A -> B -> C"), Event(12, 15, "x", "c")
    ours, plain = Shard(operator_of(case)), Shard(operator_of(case))
    for shard in (ours, plain):
        shard.take(events("a4 b3 c6 a7 a9 c11 b10 a13 b14 b16 a20"), 16)
    ours.take([late], 16)
    assert ours.published == right(case, ours.arrived, 16)
    plain.states = plain.states[-1:]  # whatever is final is forgotten
    with pytest.raises(ValueError, match="no state lies before 15"):
        plain.take([late], 16)
    assert plain.published != right(case, plain.arrived, 16)
