"""The conflict predictor: under conflicts it stops speculating, and finds out when they are over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.transactions.predictor import LONGEST_PATIENCE, Predictor


def course(predictor: Predictor, chunks: int, conflicts: bool) -> tuple[Predictor, int, int]:
    """Chunks that always or never conflict: the predictor after them, the rounds, and how many ran again."""
    rounds = again = 0
    while chunks > 0:
        ran = min(predictor.ahead, chunks)
        again += (ran - 1) if conflicts else 0
        predictor = predictor.after(ran, (ran - 1) if conflicts else 0)
        chunks -= ran
        rounds += 1
    return predictor, rounds, again


def test_without_conflicts_it_goes_to_the_limit() -> None:
    predictor, rounds, _ = course(Predictor.beginning(8), 86, conflicts=False)
    assert (predictor.ahead, rounds) == (8, 2 + 10)  # 2, 4, then always 8


def test_where_everything_conflicts_it_runs_one_after_the_other() -> None:
    _, _, again = course(Predictor.beginning(8), 1_000, conflicts=True)
    # The first round of two, then tries after 4, 8, 16, 32, 64, 64, .. chunks.
    assert again <= 1 + 5 + 1_000 // LONGEST_PATIENCE


@given(st.integers(2, 64), st.integers(0, 500))
def test_it_grows_back_when_conflicts_are_over(limit: int, before: int) -> None:
    predictor, _, _ = course(Predictor.beginning(limit), before, conflicts=True)
    predictor, _, _ = course(predictor, LONGEST_PATIENCE + 4 * limit, conflicts=False)
    assert predictor.ahead == limit


@given(st.integers(1, 64), st.lists(st.floats(0, 1), max_size=100))
def test_it_never_leaves_its_limits(limit: int, shares: list[float]) -> None:
    predictor = Predictor.beginning(limit)
    for share in shares:
        predictor = predictor.after(predictor.ahead, round(share * (predictor.ahead - 1)))
        assert 1 <= predictor.ahead <= limit
