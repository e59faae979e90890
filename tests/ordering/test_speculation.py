"""How alpha follows the load: algorithm 3 of seed 004, and the trace of its figure 11."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.ordering.speculation import Speculation, adapted, busy_factor


def course(speculation: Speculation, *busy: float) -> list[float]:
    found = []
    for load in busy:
        speculation = adapted(speculation, load)
        found.append(round(speculation.alpha, 4))
    return found


def test_figure_11() -> None:
    """Halving down to 0.125, at rest in the target zone, back to 1 at 0.95, halving to the bisection line 0.43, small steps."""
    assert course(Speculation(), 0.5, 0.6, 0.7, 0.82, 0.88, 0.95) == [0.5, 0.25, 0.125, 0.125, 0.125, 1.0]
    best = 0.125
    assert (1 - best) / 2 == 0.4375
    assert course(Speculation(1.0, best), 0.5, 0.5, 0.6, 0.7, 0.85) == [0.5, 0.45, 0.4, 0.35, 0.35]


def test_a_second_overload_begins_anew() -> None:
    speculation = Speculation(0.35, best=0.125, slowly=True)
    assert adapted(speculation, 0.99) == Speculation(1.0, best=0.35, slowly=False)


def test_the_busy_factor_of_section_4_4() -> None:
    assert busy_factor(0.41, 0.5) == pytest.approx(0.82)
    assert busy_factor(1.0, 0.0) == 0.0


@given(st.lists(st.floats(0, 2), max_size=60))
def test_alpha_stays_a_share(busy: list[float]) -> None:
    speculation = Speculation()
    for load in busy:
        speculation = adapted(speculation, load)
        assert 0 <= speculation.alpha <= 1
        assert speculation.alpha == 1 or load <= 0.9
