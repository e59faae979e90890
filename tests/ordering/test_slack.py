"""Dynamic K-slack: the worked streams of seeds 001 and 004, and laws against a buffer that takes one event at a time.

The figures are pictures; the streams below are what the text around them says, event by event.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.ordering.slack import BEFORE_ALL, NEVER, Slack, by_stream_time, follow, leaves_at


def stream(text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Events like a-4: names, times, and which of them come from source A, which sets the clock."""
    names = text.split()
    ts = np.array([int(name.lstrip("ABCabc-")) for name in names])
    return names, ts, np.array([name[0] in "aA" for name in names])


def emitted(names: list[str], ts: np.ndarray, at: np.ndarray) -> list[list[str]]:
    """What leaves with each arrival, in order of time."""
    return [[names[i] for i in np.lexsort((np.arange(ts.size), ts)) if at[i] == step] for step in range(len(names))]


def flat(steps: list[list[str]]) -> str:
    return " ".join(name for step in steps for name in step)


# Seed 001: source B is 2 late (figure 2-5), then c-15 is 6 late (figure 2-6).
FIGURE_2_5 = "a-4 b-3 c-6 a-7 a-9 c-11 b-10 a-13"
FIGURE_2_6 = FIGURE_2_5 + " b-14 b-16 a-19 c-15 a-21 a-27"


def test_figure_2_5_arrives_in_the_wrong_order() -> None:
    names, ts, _ = stream(FIGURE_2_5)
    late = [name for name, t, ahead in zip(names, ts, np.maximum.accumulate(ts), strict=True) if t < ahead]
    assert late == ["b-3", "b-10"]


def test_figure_2_6_fixed_k_of_3_fails_for_what_is_6_late() -> None:
    names, ts, _ = stream(FIGURE_2_6)
    ticks = by_stream_time(Slack(), ts)
    course = follow(Slack(k=3), ts, ticks)
    fixed = course._replace(k=np.full(ts.size, 3))
    order = flat(emitted(names, ts, leaves_at(fixed, ts, fixed.frontiers(1.0), only_at_ticks=True)))
    assert order.startswith("b-3 a-4 c-6 a-7 a-9 b-10 c-11 a-13 b-14 b-16 c-15")


def test_figure_3_2_dynamic_k() -> None:
    """K is 4 with a-7 (b-3), stays with a-13 (b-10 would say 3), is 5 with a-19; only the first order is wrong."""
    names, ts, ticks = stream(FIGURE_2_6)
    course = follow(Slack(), ts, ticks)
    k = dict(zip(names, course.k.tolist(), strict=True))
    assert (k["a-4"], k["a-7"], k["a-9"], k["a-13"], k["a-19"]) == (0, 4, 4, 4, 5)
    steps = emitted(names, ts, leaves_at(course, ts, course.frontiers(1.0), only_at_ticks=True))
    assert steps[0] == ["a-4"]
    assert steps[3] == ["b-3"], "with a-7 nothing else fulfils ts + 4 <= 7"
    assert steps[4] == []
    assert flat(steps) == "a-4 b-3 c-6 a-7 a-9 b-10 c-11 a-13 b-14 c-15 b-16 a-19 a-21"


def test_figure_3_3_half_of_k_is_faster_and_wrong_where_c_15_is_late() -> None:
    names, ts, ticks = stream(FIGURE_2_6)
    course = follow(Slack(), ts, ticks)
    steps = emitted(names, ts, leaves_at(course, ts, course.frontiers(0.5)))
    assert steps[names.index("a-19")] == ["a-13", "b-14", "b-16"], "16 + 0.5 * 5 <= 19"
    order = flat(steps).split()
    assert order.index("b-16") < order.index("c-15")
    sooner = leaves_at(course, ts, course.frontiers(0.5)) <= leaves_at(course, ts, course.frontiers(1.0), only_at_ticks=True)
    assert sooner.all()


def test_figure_4_2_k_grows_after_b_16_has_left_for_good() -> None:
    """With K = 4 and the clock at 20, b-16 is final; then comes c-15. Plain K-slack has nothing left to go back to."""
    names, ts, ticks = stream(FIGURE_2_5 + " b-16 a-20 c-15")
    course = follow(Slack(), ts, ticks)
    assert course.k[names.index("a-20")] == 4
    assert course.final[names.index("a-20")] == 16
    assert ts[-1] <= course.final[-2], "it would have to stand before something final"
    assert course.final[-1] == 16


# Seed 004: figure 3(b) through the buffer of figure 4, and the stream of figures 7 and 8 with alpha = 1/3.
FIGURE_4 = "A0 A2 C1 A4 B3 A6 C5 A7 A8"
FIGURE_7 = "A0 A2 C1 A3 B4 A6 C5 B8 C7 A11 B10 A12 C9"


def test_figure_4_ordering_unit() -> None:
    names, ts, ticks = stream(FIGURE_4)
    course = follow(Slack(), ts, ticks)
    assert dict(zip(names, course.k.tolist(), strict=True)) == {
        "A0": 0, "A2": 0, "C1": 0, "A4": 3, "B3": 3, "A6": 3, "C5": 3, "A7": 3, "A8": 3,
    }  # fmt: skip
    steps = dict(zip(names, emitted(names, ts, leaves_at(course, ts, course.frontiers(1.0), only_at_ticks=True)), strict=True))
    assert (steps["A0"], steps["A2"], steps["C1"], steps["A4"]) == (["A0"], ["A2"], [], ["C1"])
    assert steps["A6"] == ["B3"]
    assert steps["A7"] == ["A4"], "A4 is buffered until the clock is 7"
    assert steps["A8"] == ["C5"], "C5 must wait at least until the clock is 8"


def test_speculation_of_section_4_1() -> None:
    """K = 5, ts = 20, received at clk = 22: final at 25, with alpha 0.6 at 23, with 0.4 or less at once."""

    def first(alpha: float) -> int:
        return next(clk for clk in range(22, 30) if Slack(clk=clk, k=5).frontier(alpha) >= 20)

    assert [first(alpha) for alpha in (1.0, 0.6, 0.4, 0.0)] == [25, 23, 22, 22]


class Unit:
    """What the ordering stage decides, arrival by arrival: figures 6 to 8 say it in these words."""

    def __init__(self, alpha: float) -> None:
        self.alpha, self.slack, self.upto = alpha, Slack(measured=False), BEFORE_ALL
        self.buffer: list[tuple[int, int, str]] = []  # time, number, name

    def receive(self, name: str) -> tuple[list[str], list[str], list[str]]:
        """The events replayed (with what was inserted before them), those that leave for the first time, those purged."""
        (name,), ts, ticks = stream(name)
        course = follow(self.slack, ts, ticks)
        upto = int(course.frontiers(self.alpha, self.upto)[-1])
        event = (int(ts[0]), len(self.buffer), name)
        emitted_before = sorted(e for e in self.buffer if e[0] <= self.upto)
        self.buffer.append(event)
        leaves = sorted(e for e in self.buffer if e[0] <= upto and e not in emitted_before)
        replayed = [e for e in emitted_before if leaves and e > leaves[0]]
        purged = [e for e in sorted(self.buffer) if self.slack.final < e[0] <= course.after.final]
        self.slack, self.upto = course.after, upto
        return [e[2] for e in replayed], [e[2] for e in leaves], [e[2] for e in purged]


@pytest.mark.parametrize("alpha", [float(Fraction(1, 3))])
def test_figures_7_and_8_speculative_ordering_unit(alpha: float) -> None:
    unit = Unit(alpha)
    seen = {name: [*unit.receive(name), unit.slack.k] for name in FIGURE_7.split()}
    replayed = {name: row[0] for name, row in seen.items() if row[0]}
    assert replayed == {"C1": ["A2"], "C9": ["B10"]}, "two wrong speculations, each replays what came after"
    left = {name: row[1] for name, row in seen.items()}
    assert left["A0"] == ["A0"]
    assert left["A2"] == ["A2"]
    assert left["C1"] == ["C1"]
    assert left["A3"] == [], "3 + 2/3 > 3"
    assert left["A6"] == ["A3", "B4"]
    assert left["C5"] == ["C5"], "although the clock is not set: 5 + 2/3 <= 6, and A6 has not left"
    assert left["B8"] == left["C7"] == []
    assert left["A11"] == ["A6", "C7", "B8"]
    assert left["A12"] == ["B10"], "10 + 6/3 <= 12"
    assert left["C9"] == ["C9"]
    k = {name: row[3] for name, row in seen.items()}
    assert (k["A2"], k["A3"], k["A6"], k["A11"], k["A12"]) == (0, 2, 2, 6, 6)
    purged = {name: row[2] for name, row in seen.items()}
    assert {name: gone for name, gone in purged.items() if gone} == {
        "A3": ["A0", "C1"], "A6": ["A2", "A3", "B4"], "A11": ["C5"], "A12": ["A6"],
    }  # fmt: skip


def test_figure_6_insertion_before_and_behind_what_has_left() -> None:
    """(a) A3 comes when A0 to A2 have left: nothing is replayed. (b) B4 has left too: it is replayed after A3."""
    for upto, expected in ((2, []), (4, ["B4"])):
        unit = Unit(0.0)
        for name in ("A0", "A1", "A2", "B4"):
            unit.receive(name)
        unit.upto = upto
        replayed, left, _ = unit.receive("A3")
        assert replayed == expected
        assert left == ["A3"]


# Laws

arrivals = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40)


def one_at_a_time(events: list[tuple[int, bool]]) -> list[tuple[int, int, int]]:
    """Clock, K and final frontier after each arrival, as the seeds' pseudo-code computes them."""
    clk, k, final, since = BEFORE_ALL, 0, BEFORE_ALL, []
    found = []
    for ts, sets_clock in events:
        since.append(ts)
        if sets_clock:
            clk = max(clk, ts)
            k = max(k, *(clk - t for t in since))
            final = max(final, clk - k)
            since = []
        found.append((clk, k, final))
    return found


@given(arrivals, st.lists(st.integers(0, 40), max_size=4))
def test_it_is_what_the_pseudo_code_says_however_arrivals_are_cut(events: list[tuple[int, bool]], cuts: list[int]) -> None:
    ts, ticks = np.array([e[0] for e in events], np.int64), np.array([e[1] for e in events], bool)
    slack, found = Slack(), []
    bounds = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    for low, high in pairwise(bounds):
        course = follow(slack, ts[low:high], ticks[low:high])
        found += zip(course.clk.tolist(), course.k.tolist(), course.final.tolist(), strict=True)
        slack = course.after
    assert found == one_at_a_time(events)


@given(arrivals, st.floats(0, 1))
def test_nothing_leaves_before_its_time_and_everything_leaves_in_the_end(events: list[tuple[int, bool]], alpha: float) -> None:
    events = [*events, (1_000, True)]
    ts, ticks = np.array([e[0] for e in events], np.int64), np.array([e[1] for e in events], bool)
    course = follow(Slack(), ts, ticks)
    early, late = course.frontiers(alpha), course.frontiers(1.0)
    assert (early >= late).all()
    assert (np.diff(early) >= 0).all()
    at = leaves_at(course, ts, early)
    assert (at >= np.arange(ts.size)).all()
    gone = at < ts.size
    assert (ts[gone] <= early[at[gone]]).all()
    assert gone[:-1][ts[:-1] <= course.after.final].all()


def test_the_clock_without_a_source_is_the_largest_time() -> None:
    ts = np.array([5, 3, 5, 9, 8])
    assert by_stream_time(Slack(), ts).tolist() == [True, False, True, True, False]
    assert by_stream_time(Slack(clk=6), ts).tolist() == [False, False, False, True, False]
    assert follow(Slack(), ts[:0], by_stream_time(Slack(), ts[:0])).after == Slack(waiting=NEVER)
