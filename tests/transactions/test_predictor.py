"""The conflict predictor: under conflicts it stops speculating, and finds out when they are over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.transactions.predictor import LONGEST_PATIENCE, Predictor


def course(predictor: Predictor, rounds: int, conflicts: bool) -> tuple[Predictor, list[int]]:
    """Rounds of chunks that always or never conflict: the predictor after them, and how many chunks of each ran ahead."""
    ahead = []
    for _ in range(rounds):
        ahead.append(predictor.ahead)
        predictor = predictor.after(predictor.ahead, (predictor.ahead - 1) if conflicts else 0)
    return predictor, ahead


def test_without_conflicts_it_stays_at_the_limit() -> None:
    assert course(Predictor.beginning(8), 20, conflicts=False)[1] == [8] * 20


def test_where_everything_conflicts_it_runs_one_after_the_other() -> None:
    _, ahead = course(Predictor.beginning(8), 1_000, conflicts=True)
    # 8 and 2 in the first rounds, then two are tried after 4, 8, 16, 32, 64, 64, .. rounds.
    assert ahead[:8] == [8, 2, 1, 1, 1, 1, 2, 1]
    assert sum(running > 1 for running in ahead) <= 2 + 5 + 1_000 // LONGEST_PATIENCE


@given(st.integers(2, 64), st.integers(0, 500))
def test_it_grows_back_when_conflicts_are_over(limit: int, before: int) -> None:
    predictor, _ = course(Predictor.beginning(limit), before, conflicts=True)
    predictor, _ = course(predictor, LONGEST_PATIENCE + 10, conflicts=False)
    assert predictor.ahead == limit


@given(st.integers(1, 64), st.lists(st.floats(0, 1), max_size=100))
def test_it_never_leaves_its_limits(limit: int, shares: list[float]) -> None:
    predictor = Predictor.beginning(limit)
    for share in shares:
        predictor = predictor.after(predictor.ahead, round(share * (predictor.ahead - 1)))
        assert 1 <= predictor.ahead <= limit
