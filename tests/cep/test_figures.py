"""The worked examples of seed 000, to the number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.cep.order import Instant
from spark_jobs.cep.sequencer import Seed
from spark_jobs.recovery.savepoint import Edge, Kept, Savepoint, ShardSavepoint, fresh_savepoint
from spark_jobs.recovery.sets import EMPTY, read_numbers
from tests.cep import engine
from tests.cep.engine import operator_of, step
from tests.cep.oracle import Case, Event

# "ef" in count windows of five events, sliding by two (figure 6).
FIGURE_6 = Case("E -> F", "count", size=5, slide=2)
# Every event matches in every window that contains it; windows of four, sliding by one (figure 8).
FIGURE_8 = Case("E", "count", size=4, slide=1)


def numbered(events: pa.Table) -> list[tuple[int, int, int, tuple[int, ...]]]:
    return [row[:4] for row in engine.numbered(events)]


def stream(letters: str) -> list[Event]:
    return [Event(sn, sn, "x", letter) for sn, letter in enumerate(letters, 1)]


def test_figure_6_the_event_f_completes_theta_1_and_theta_2_in_windows_2_and_3() -> None:
    events, _ = step(operator_of(FIGURE_6), fresh_savepoint(operator_of(FIGURE_6)), stream("abcdef"), 6, 1)
    # Event f is the first to produce anything, so x is 1; window 1 closed with e.
    assert numbered(events) == [(1, 2, 1, (5, 6)), (1, 3, 2, (5, 6))]


def pairs(events: pa.Table) -> list[tuple[int, int]]:
    return [(x, y) for x, y, _, _ in numbered(events)]


def test_figure_8b_numbers_in_normal_operation() -> None:
    operator = operator_of(FIGURE_8)
    events, _ = step(operator, fresh_savepoint(operator), stream("eeeee"), 5, 1)
    assert pairs(events) == [
        (1, 1),
        (2, 1), (2, 2),
        (3, 1), (3, 2), (3, 3),
        (4, 1), (4, 2), (4, 3), (4, 4),
        (5, 2), (5, 3), (5, 4), (5, 5),
    ]  # fmt: skip


def test_figure_8b_a_restored_sequencer_stamps_the_same_pairs() -> None:
    """Complex event 5:4 is acknowledged: SN_trim is b, SN_seed is 3:3, windows 1 and 2 are gone."""
    operator = operator_of(FIGURE_8)
    events, _ = step(operator, acknowledged(b=2, seed=Seed(x=3, ordinal=6), seed_y=3), stream("eeeeeee"), 7, 1)
    # c gives 3:3, d gives 4:3 and 4:4: the numbers they had before the failure.
    assert pairs(events)[:6] == [(3, 3), (4, 3), (4, 4), (5, 3), (5, 4), (5, 5)]


def test_figure_8a_a_scalar_sequencer_would_stamp_wrong_numbers() -> None:
    """The negative control: counting on from 6, as the base method does, gives d the numbers 7 and 8, not 9 and 10."""
    operator = operator_of(FIGURE_8)
    before, _ = step(operator, fresh_savepoint(operator), stream("eeeeeee"), 7, 1)
    scalar = {(sns[-1], y): number for number, (_, y, _, sns) in enumerate(numbered(before), 1)}
    after, _ = step(operator, acknowledged(b=2, seed=Seed(x=3, ordinal=6), seed_y=3), stream("eeeeeee"), 7, 1)
    restored = {(sns[-1], y): number for number, (_, y, _, sns) in enumerate(numbered(after), 6)}
    assert (scalar[4, 3], scalar[4, 4]) == (9, 10)
    assert (restored[4, 3], restored[4, 4]) == (7, 8)


def test_the_stream_marked_with_a_dagger_skips_2_to_3_and_5_to_9() -> None:
    """a1 a2 a3 b4 a5 b6 d7 d8 b9 c10 under "abc": before c10 arrives, a1 and b4 are held."""
    operator = operator_of(Case("A -> B -> C"))
    _, savepoint = step(operator, fresh_savepoint(operator), stream("aaababddbc"), 9, 1)
    assert savepoint.residuals[0].numbers.tolist() == [1, 4]
    (kept,) = savepoint.shards[0].kept
    assert kept.trim_sn == 0
    assert ranges(read_numbers(kept.skip)) == [(2, 3), (5, 9)]


def test_after_the_match_nothing_is_held() -> None:
    operator = operator_of(Case("A -> B -> C"))
    events, savepoint = step(operator, fresh_savepoint(operator), stream("aaababddbc"), 10, 1)
    assert numbered(events) == [(1, 1, 1, (1, 4, 10))]
    assert savepoint.replayed == 0
    assert savepoint.shards[0].kept[0].trim_sn == 10


@pytest.mark.parametrize("end_sn", range(1, 8))
def test_figure_8_goes_on_with_the_right_pairs_from_every_savepoint(end_sn: int) -> None:
    operator = operator_of(FIGURE_8)
    log = stream("eeeeeee")
    whole, _ = step(operator, fresh_savepoint(operator), log, 7, 1)
    first, savepoint = step(operator, fresh_savepoint(operator), log, end_sn, 1)
    rest, _ = step(operator, savepoint, log, 7, 1) if end_sn < 7 else advance_nothing(savepoint)
    assert numbered(first) + numbered(rest) == numbered(whole)


def advance_nothing(savepoint: Savepoint) -> tuple[object, Savepoint]:
    return step(operator_of(FIGURE_8), savepoint, [], savepoint.read, 1)


def ranges(numbers: np.ndarray) -> list[tuple[int, int]]:
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    starts, ends = np.append(0, breaks + 1), np.append(breaks, numbers.size - 1)
    return [(int(numbers[s]), int(numbers[e])) for s, e in zip(starts, ends, strict=True)]


def acknowledged(b: int, seed: Seed, seed_y: int) -> Savepoint:
    """SN_trim is `b`, nothing above it is skipped or was read."""
    nothing_skipped = ShardSavepoint(0, 1, (Kept(b, EMPTY),))
    return Savepoint("op", 1, 0, seed, seed_y, Instant(b, b), b, (Edge("event_log", 0, b),), (nothing_skipped,))


# Figure 7: theta is acknowledged when the second window from the top, w, was the last one closed. The replay starts with the
# first event of the first window after w, which is c, so SN_trim is b.
FIGURE_7 = Case("A -> B -> C", "count", size=4, slide=1)


def test_figure_7_the_base_method_trims_up_to_the_event_before_the_first_open_window() -> None:
    """Windows of four, sliding by one, over a b c d e f: when f (6) has come, windows 1 to 3 are closed and 4 opened at d."""
    operator = operator_of(FIGURE_7)
    for end_sn, first_open, trimmed in ((4, 2, 1), (5, 3, 2), (6, 4, 3)):
        _, savepoint = step(operator, fresh_savepoint(operator), stream("abcdef"), end_sn, 1, skip=False)
        assert savepoint.seed_y == first_open, "the first window that is rebuilt"
        # The paper's SN_trim is the event before that window's first; ours may be later, as a window may need less than all.
        assert operator.window.reach(first_open, first_open)[0] == trimmed
        assert savepoint.shards[0].kept[0].trim_sn >= trimmed


def test_figure_7_the_replay_interval_regenerates_what_came_after_theta_with_its_numbers() -> None:
    """theta is the match of window 2 (b c d would be its events), SN_seed the first number that the replay gives again."""
    operator = operator_of(Case("E", "count", size=4, slide=1))
    log = stream("eeeeeeee")
    whole, _ = step(operator, fresh_savepoint(operator), log, 8, 1)
    # When SN 6 has come, window w = 2 (events 2 to 5) is the last one closed; replay starts with event 3, SN_trim = 2.
    first = next(row for row in numbered(whole) if row[3] == (3,) and row[1] == 3)
    again, _ = step(operator, acknowledged(b=2, seed=Seed(x=first[0], ordinal=first[2]), seed_y=3), log, 8, 1)
    replayed = [(x, y, sns) for x, y, _, sns in numbered(again)]
    assert replayed == [(x, y, sns) for x, y, _, sns in numbered(whole) if sns[0] > 2 and y >= 3]
