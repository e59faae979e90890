"""When to save: the checkpoint models of seed 001, section 4.7."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.recovery.policy import CAP, Adaptive, EveryEvents, EverySpeculative, Since


def flags(*places: int, count: int) -> np.ndarray:
    found = np.zeros(count, bool)
    found[list(places)] = True
    return found


def test_every_n_events() -> None:
    assert EveryEvents(3).places(np.zeros(8, bool), Since()) == [3, 6]
    assert EveryEvents(3).places(np.zeros(8, bool), Since(events=2)) == [1, 4, 7]
    assert EveryEvents(1).places(np.zeros(3, bool), Since(events=1)) == [0, 1, 2]


def test_every_n_speculative_events_with_a_cap() -> None:
    assert EverySpeculative(2).places(flags(1, 3, 4, 6, count=8), Since()) == [4, 7]
    assert EverySpeculative(2).places(flags(1, 3, 4, 6, count=8), Since(speculative=1)) == [2, 5]
    nothing_speculative = EverySpeculative(2).places(np.zeros(2_500, bool), Since())
    assert nothing_speculative == [CAP, 2 * CAP], "or memory would fill with what came since"


def test_adaptive_saves_when_doing_it_again_would_take_longer() -> None:
    """n * t_proc > t_cp."""
    assert Adaptive(event_seconds=1e-3, save_seconds=2.5e-3).places(np.zeros(10, bool), Since()) == [3, 6, 9]
    assert Adaptive(event_seconds=0.0, save_seconds=1.0).places(np.zeros(10, bool), Since()) == []


@pytest.mark.parametrize("policy", [EveryEvents(4), EverySpeculative(3, cap=7), EverySpeculative(1)], ids=repr)
@given(st.lists(st.booleans(), max_size=60), st.integers(0, 60))
def test_where_it_saves_does_not_depend_on_how_events_come(
    policy: EveryEvents | EverySpeculative, flags_: list[bool], cut: int
) -> None:
    whole = np.array(flags_, bool)
    cut = min(cut, whole.size)
    first = policy.places(whole[:cut], Since())
    last = first[-1] if first else 0
    since = Since(cut - last, int(whole[last:cut].sum()))
    rest = [cut + place for place in policy.places(whole[cut:], since)]
    assert first + rest == policy.places(whole, Since())
