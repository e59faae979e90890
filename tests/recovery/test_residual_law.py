"""The law everything rests on: going on from a savepoint and its residual equals never having stopped."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.cep.arrays import NO_FLOORS
from spark_jobs.recovery.savepoint import Savepoint, fresh_savepoint
from spark_jobs.verify.reference import reference_events
from tests.cep.cases import examples, problems, skip_refused
from tests.cep.engine import in_batches, numbered, operator_of, step, table_of
from tests.cep.oracle import Case, Event, complex_events

Problem = tuple[Case, list[Event]]

# Thousands of cases, and make soak tries forty times as many; the machine may be busy.
pytestmark = pytest.mark.timeout(14_400)

# A cut after every event tries every prefix at once; random cuts try longer batches.
CUTS = st.one_of(st.just(list(range(1, 25))), st.lists(st.integers(1, 14), min_size=1, max_size=5))

# a3 is consumed by window 1's match (1, 2, 4) and starts a run of window 3. Replayed alone it would start one in
# window 1 too and report (3, 5, 6) there: the events of the match have to be replayed with it.
CONSUMED_IN_ONE_WINDOW = (
    Case("A -> B -> C", "count", size=8, slide=1),
    [Event(sn, sn, "x", letter) for sn, letter in enumerate("abacbc", 1)],
)

# Nothing of key x is matched again in the batch of y3, and still x has to say where it goes on: x2 is replayed for PREV.
SILENT_KEY = (
    Case("A", "keyed", size=1, slide=2, all_runs=True, define={"A": "letters LIKE '%a%' AND (v > PREV(v))"}),
    [Event(sn, 0, key, "a", v, "") for sn, key, v in ((1, "x", None), (2, "x", 0), (3, "y", None), (4, "x", 1))],
)


@settings(max_examples=examples(2500), deadline=None)
@given(problems(complete=False), CUTS, st.integers(1, 2))
@example(CONSUMED_IN_ONE_WINDOW, [4], 1)
def test_any_cut_into_batches_gives_the_oracles_complex_events(problem: Problem, cuts: list[int], shards: int) -> None:
    case, log = problem
    skip_refused(case)
    assert in_batches(case, log, cuts, shards) == complex_events(case, log)


@settings(max_examples=examples(500), deadline=None)
@given(problems(complete=False), CUTS, st.integers(1, 2))
@example(CONSUMED_IN_ONE_WINDOW, [4], 1)
@example(SILENT_KEY, list(range(1, 25)), 1)
def test_replaying_everything_above_the_trim_mark_gives_them_too(problem: Problem, cuts: list[int], shards: int) -> None:
    """The base method, without v_skip: more is replayed than was used, and nothing may come of it."""
    case, log = problem
    skip_refused(case)
    assert in_batches(case, log, cuts, shards, skip=False) == complex_events(case, log)


@settings(max_examples=examples(500), deadline=None)
@given(problems(complete=False, plain=True))
def test_the_reference_run_agrees_with_the_oracle(problem: Problem) -> None:
    """Plain sequences have a reference of their own."""
    case, log = problem
    assert numbered(reference_events(operator_of(case), table_of(log))) == complex_events(case, log)


@settings(max_examples=examples(500), deadline=None)
@given(problems(complete=False, plain=True), CUTS, st.integers(1, 2))
def test_plain_sequences_have_a_kernel_that_agrees_too(problem: Problem, cuts: list[int], shards: int) -> None:
    case, log = problem
    assert operator_of(case).plain
    assert in_batches(case, log, cuts, shards) == complex_events(case, log)


@settings(max_examples=examples(300), deadline=None)
@given(problems(complete=False), st.integers(0, 14))
def test_the_residual_lies_above_the_trim_mark_and_inside_the_processed_range(problem: Problem, cut: int) -> None:
    case, log = problem
    skip_refused(case)
    operator = operator_of(case)
    end_sn = min(cut, len(log))
    _, savepoint = step(operator, fresh_savepoint(operator), log, end_sn, 2)
    residual = savepoint.residuals[0].numbers
    assert all(0 < sn <= end_sn for sn in residual)
    assert all(residual.size == 0 or shard.kept[0].trim_sn >= residual.min() - 1 for shard in savepoint.shards)


def test_without_floors_an_event_kept_for_one_window_would_match_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the floors are what keeps window 1 from using a3 twice."""
    case, log = CONSUMED_IN_ONE_WINDOW
    monkeypatch.setattr(Savepoint, "floors", NO_FLOORS)
    wrong = in_batches(case, log, [4], 1)
    assert (3, 5, 6) in [sns for _, y, _, sns, _, _ in wrong if y == 1]
    assert wrong != complex_events(case, log)
