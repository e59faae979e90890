"""The law everything rests on: going on from a savepoint and its residual equals never having stopped."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.cep.matcher import match_shard
from spark_jobs.cep.operator import Operator
from spark_jobs.recovery.savepoint import Savepoint, advance, fresh_savepoint
from spark_jobs.verify.reference import reference_events
from tests.cep.cases import cases, numbered, operator_of, streams, table_of
from tests.cep.oracle import Case, Event, complex_events


def step(operator: Operator, savepoint: Savepoint, log: list[Event], end_sn: int, shards: int) -> tuple[pa.Table, Savepoint]:
    """One micro-batch in memory: only the residual and the new events are handed over."""
    replayed = set(savepoint.residual().tolist())
    events = [e for e in log if e.sn in replayed or savepoint.end_sn < e.sn <= end_sn]
    reports = [
        match_shard(
            operator,
            table_of([e for e in events if "xy".index(e.key) % shards == shard]),
            first_window=savepoint.seed_y,
            after_sn=savepoint.end_sn,
            end_sn=end_sn,
        )
        for shard in range(shards)
    ]
    return advance(operator, savepoint, reports, end_sn)


def run_in_batches(case: Case, log: list[Event], cuts: list[int], shards: int) -> list[tuple[int, int, int, tuple[int, ...]]]:
    operator = operator_of(case)
    savepoint = fresh_savepoint(operator)
    found = []
    for end_sn in [*sorted({c for c in cuts if 0 < c < len(log)}), len(log)]:
        complex_events_, savepoint = step(operator, savepoint, log, end_sn, shards)
        found += numbered(complex_events_)
    return found


# A cut after every event tries every prefix at once; random cuts try longer batches.
CUTS = st.one_of(st.just(list(range(1, 25))), st.lists(st.integers(1, 24), max_size=6))

# a3 is consumed by window 1's match (1, 2, 4) and starts a run of window 3. Replayed alone it would start one in
# window 1 too and report (3, 5, 6) there: the events of the match have to be replayed with it.
CONSUMED_IN_ONE_WINDOW = (
    Case("abc", "count", size=8, slide=1),
    [Event(sn, sn, "x", letter) for sn, letter in enumerate("abacbc", 1)],
)


@settings(max_examples=1500, deadline=None)
@given(cases(), streams(), CUTS, st.integers(1, 2))
@example(*CONSUMED_IN_ONE_WINDOW, [4], 1)
def test_any_cut_into_batches_gives_the_oracles_complex_events(
    case: Case, log: list[Event], cuts: list[int], shards: int
) -> None:
    assert run_in_batches(case, log, cuts, shards) == complex_events(case, log)


@settings(max_examples=500, deadline=None)
@given(cases(), streams())
def test_the_reference_run_agrees_with_the_oracle(case: Case, log: list[Event]) -> None:
    assert numbered(reference_events(operator_of(case), table_of(log))) == complex_events(case, log)


@settings(max_examples=300, deadline=None)
@given(cases(), streams(), st.integers(0, 24))
def test_the_residual_lies_above_the_trim_mark_and_inside_the_processed_range(case: Case, log: list[Event], cut: int) -> None:
    operator = operator_of(case)
    end_sn = min(cut, len(log))
    _, savepoint = step(operator, fresh_savepoint(operator), log, end_sn, 2)
    residual = savepoint.residual()
    assert all(0 < sn <= end_sn for sn in residual)
    assert all(residual.size == 0 or shard.trim_sn >= residual.min() - 1 for shard in savepoint.shards)
