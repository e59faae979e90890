"""Ordered transactions: whatever ran ahead of what, the result is the sequential one, and nothing is seen before its commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.errors import RepriseError
from spark_jobs.transactions.operators import DEPTH, Balance, Chunk, HeavyHitters, StatefulOperator, chunk_of
from spark_jobs.transactions.predictor import Predictor
from spark_jobs.transactions.rounds import transact
from spark_jobs.transactions.state import LARGEST_CELL, Effect, State, committed
from tests.transactions import oracle
from tests.transactions.oracle import Event

# Few keys and small amounts, so that chunks meet; a narrow sketch, so that items share cells.
KEYS = st.sampled_from(["a", "b", "c", "d", "ä", "", None])
EVENTS = st.lists(st.tuples(KEYS, st.integers(-6, 6)), max_size=60)
OPERATORS = st.sampled_from([Balance(), *(HeavyHitters(t, DEPTH * w) for t in (1, 3, 5) for w in (1, 3, 64))])


def expected(operator: StatefulOperator, events: list[Event]) -> list[int]:
    if isinstance(operator, HeavyHitters):
        return oracle.heavy(events, operator.threshold, operator.width)
    return oracle.overdrawn(events)


def chunked(events: list[Event]) -> Chunk:
    coded = pa.array([key for key, _ in events], pa.string()).dictionary_encode()
    codes = np.array([len(coded.dictionary) if c is None else c for c in coded.indices.to_pylist()], np.int64)
    return chunk_of(codes, coded.dictionary, np.array([amount for _, amount in events], np.int64))


def cut(events: list[Event], sizes: list[int]) -> list[list[Event]]:
    parts, begin = [], 0
    for size in [*sizes, len(events)]:
        parts.append(events[begin : begin + size])
        begin += size
    return [part for part in parts if part]


@dataclass
class Shuffled:
    """Runs chunks against whatever state was committed before: this one, or one from long ago."""

    operator: StatefulOperator
    chunks: list[list[Event]]
    draw: st.DataObject | None = None
    known: list[State] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    ran: int = 0
    crash_at: int = -1

    def ahead(self, chunks: range, running: int, state: State) -> list[tuple[Effect, list[int]] | None]:
        self.known.append(state)
        seen = [self.draw.draw(st.sampled_from(self.known)) if self.draw else state for _ in chunks[:running]]
        ran = [self._run(chunk, s) for chunk, s in zip(chunks, seen, strict=False)]
        return [*ran, *[None for _ in chunks[running:]]]

    def alone(self, chunk: int, state: State) -> tuple[Effect, list[int]]:
        self.known.append(state)
        return self._run(chunk, state)

    def commit(self, chunk: int, result: list[int]) -> None:
        self.published += result

    def _run(self, chunk: int, state: State) -> tuple[Effect, list[int]]:
        if self.ran == self.crash_at:
            raise KeyboardInterrupt
        self.ran += 1
        effect = self.operator.run(chunked(self.chunks[chunk]), state)
        stored = Effect.of(effect.table())
        before = sum(len(part) for part in self.chunks[:chunk])
        return stored, [before + int(row) for row in stored.rows]


@settings(deadline=None)
@given(OPERATORS, EVENTS)
def test_one_chunk_means_what_the_oracle_says(operator: StatefulOperator, events: list[Event]) -> None:
    assert operator.run(chunked(events), operator.beginning()).rows.tolist() == expected(operator, events)


@settings(deadline=None)
@given(OPERATORS, EVENTS, st.lists(st.integers(1, 12), max_size=20), st.integers(1, 9), st.data())
def test_the_result_is_the_sequential_one_whatever_ran_ahead(
    operator: StatefulOperator, events: list[Event], sizes: list[int], limit: int, data: st.DataObject
) -> None:
    chunks = cut(events, sizes)
    executor = Shuffled(operator, chunks, data)
    predictor = Predictor(limit, data.draw(st.integers(1, limit)))
    state, _, tally = transact(executor, len(chunks), operator.beginning(), predictor)
    assert executor.published == expected(operator, events)
    assert tally.chunks == len(chunks)
    at_once = committed(operator.beginning(), operator.run(chunked(events), operator.beginning()))
    assert at_once is not None
    assert same(state, at_once)


@settings(deadline=None)
@given(OPERATORS, EVENTS, EVENTS, st.data())
def test_in_every_state_between_its_bounds_a_chunk_does_the_same(
    operator: StatefulOperator, before: list[Event], events: list[Event], data: st.DataObject
) -> None:
    """Which is why a chunk need not run again if what it has learned still holds."""
    start = operator.beginning()
    start = committed(start, operator.run(chunked(before), start)) or start
    effect = operator.run(chunked(events), start)
    cells = start.cells.copy()
    for cell, low, high in zip(effect.read, effect.low, effect.high, strict=True):
        if cell < cells.size:
            cells[cell] = data.draw(st.integers(max(int(low), 0), min(int(high), 100)))
    for cell in set(range(cells.size)) - set(effect.read.tolist()) if cells.size < 64 else ():
        cells[cell] = data.draw(st.integers(0, 100))
    again = operator.run(chunked(events), State(cells, start.keys))
    assert again.rows.tolist() == effect.rows.tolist()
    assert dict(zip(again.written, again.added, strict=True)) == dict(zip(effect.written, effect.added, strict=True))


@settings(deadline=None)
@given(OPERATORS, EVENTS, st.lists(st.integers(1, 12), max_size=20), st.integers(2, 9), st.integers(0, 30))
def test_a_crash_publishes_nothing_of_a_chunk_that_was_not_committed(
    operator: StatefulOperator, events: list[Event], sizes: list[int], limit: int, crash_at: int
) -> None:
    chunks = cut(events, sizes)
    executor = Shuffled(operator, chunks, crash_at=crash_at)
    try:
        transact(executor, len(chunks), operator.beginning(), Predictor(limit, limit))
    except KeyboardInterrupt:
        ends = np.cumsum([0, *(len(part) for part in chunks)])
        prefixes = [[place for place in expected(operator, events) if place < end] for end in ends]
        assert executor.published in prefixes
    else:
        assert executor.published == expected(operator, events)


@settings(deadline=None)
@given(OPERATORS, EVENTS)
def test_a_state_is_the_same_after_it_was_stored(operator: StatefulOperator, events: list[Event]) -> None:
    state = committed(operator.beginning(), operator.run(chunked(events), operator.beginning()))
    assert state is not None
    assert same(State.unpacked(state.packed()), state)


def test_money_that_an_earlier_chunk_has_taken_is_a_conflict() -> None:
    chunks = [[("a", 10)], [("a", -10)], [("a", -10)]]
    executor = Shuffled(Balance(), chunks)
    _, _, tally = transact(executor, 3, State(np.array([10]), pa.array(["a"])), Predictor(3, 3))
    # The account has 10, then 20, 10 and 0: nobody is refused, and everybody learned only that 10 are there.
    assert (executor.published, tally.again) == ([], 0)
    executor = Shuffled(Balance(), chunks[1:])
    _, _, tally = transact(executor, 2, State(np.array([10]), pa.array(["a"])), Predictor(2, 2))
    assert (executor.published, tally.again) == ([1], 1)


def test_counting_is_no_conflict_but_reaching_the_threshold_is() -> None:
    far = Shuffled(HeavyHitters(100, DEPTH * 64), [[("a", 0)] * 5] * 4)
    assert transact(far, 4, far.operator.beginning(), Predictor(4, 4))[2].again == 0
    near = Shuffled(HeavyHitters(8, DEPTH * 64), [[("a", 0)] * 5] * 4)
    # The second chunk reaches it; then the third and the fourth learn that it was reached before.
    assert transact(near, 4, near.operator.beginning(), Predictor(4, 4))[2].again == 3
    assert near.published == [7]


def test_accounts_that_come_up_in_two_chunks_at_once_are_one_account() -> None:
    executor = Shuffled(Balance(), [[("a", 3), ("b", 1)], [("c", 1), ("a", -3)], [("a", -1)]])
    state, _, tally = transact(executor, 3, Balance().beginning(), Predictor(3, 3))
    assert dict(zip(state.keys.to_pylist(), state.cells.tolist(), strict=True)) == {"a": 0, "b": 1, "c": 1}
    assert (executor.published, tally.again) == ([4], 1)


def test_a_sum_that_no_cell_can_hold_is_a_sentence() -> None:
    rich = State(np.array([LARGEST_CELL]), pa.array(["a"]))
    with pytest.raises(RepriseError, match="a sum has left the range"):
        committed(rich, Balance().run(chunked([("a", 1)]), rich))


def same(state: State, other: State) -> bool:
    return state.cells.tolist() == other.cells.tolist() and state.keys.to_pylist() == other.keys.to_pylist()
