"""Numbers: how matches are cut into shards and slices never shows in `x:y` or the ordinal."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.cep.sequencer import EVERYTHING, Seed, Slice, in_order, marks, slices, stamp

Match = tuple[int, int, int, int]  # at_ts, at_sn, y, first_sn
Found = list[list[Match]]  # per shard

# Row n of the log has SN n and stream time n // 3: several rows share a time, and a deadline may come before each.
LAST_SN = 40


@st.composite
def found(draw: st.DrawFn) -> Found:
    """Matches of up to three shards. A row belongs to one of them; deadlines, and rows that close count windows, to all."""
    count = draw(st.integers(1, 3))
    shards: Found = []
    for shard in range(count):
        rows = st.sampled_from([sn for sn in range(1, LAST_SN) if sn % count == shard])
        closing = st.sampled_from([4, 8, 12, 16])
        deadlines = st.integers(0, LAST_SN // 3).map(lambda ts: (ts, 0))
        producer = st.one_of(st.one_of(rows, closing).map(lambda sn: (sn // 3, sn)), deadlines)
        # First rows of different shards differ, as rows do.
        first_sn = st.integers(0, 4).map(lambda n, shard=shard: n * 3 + shard)
        match = st.tuples(producer, st.integers(1, 3), first_sn).map(lambda m: (*m[0], m[1], m[2]))
        shards.append(draw(st.lists(match, max_size=12)))
    return shards


def tables(shards: Found) -> list[pa.Table]:
    return [in_order(_table(matches, shard)) for shard, matches in enumerate(shards)]


def _table(matches: list[Match], shard: int) -> pa.Table:
    columns = list(zip(*matches, strict=True)) if matches else [[], [], [], []]
    named = dict(zip(("_at_ts", "_at_sn", "y", "_first_sn"), (pa.array(c, pa.int64()) for c in columns), strict=True))
    names = pa.array([f"{shard}/{place}" for place in range(len(matches))], pa.string()).dictionary_encode()
    return pa.table({**named, "name": names})


def numbers(*parts: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for part in parts for row in part.select(["x", "y", "ordinal", "name"]).to_pylist()]


def written_out(shards: Found, seed: Seed) -> list[tuple[object, ...]]:
    """The definition (docs/LANGUAGE.md, "Numbers"), one match at a time."""
    matches = sorted(
        (*match, place, f"{shard}/{place}") for shard, matches in enumerate(shards) for place, match in enumerate(matches)
    )
    out: list[tuple[object, ...]] = []
    x, last = seed.x - 1, None
    for ordinal, (ts, sn, y, _, _, name) in enumerate(matches, seed.ordinal):
        x, last = x + ((ts, sn) != last), (ts, sn)
        out.append((x, y, ordinal, name))
    return out


@settings(max_examples=500, deadline=None)
@given(found(), st.integers(1, 9))
def test_the_numbers_are_those_of_the_definition(shards: Found, first: int) -> None:
    table, _ = stamp(Seed(first, 2 * first), 7, tables(shards), EVERYTHING)
    assert numbers(table) == written_out(shards, Seed(first, 2 * first))


@settings(max_examples=500, deadline=None)
@given(found(), st.integers(1, 8))
def test_any_number_of_slices_gives_the_same_numbers(shards: Found, count: int) -> None:
    whole, after = stamp(Seed(3, 5), 7, tables(shards), EVERYTHING)
    cut = slices([marks(table) for table in tables(shards)], count)
    parts = [stamp(Seed(3, 5), 7, tables(shards), part) for part in cut]
    assert 1 <= len(parts) <= count
    assert numbers(*(table for table, _ in parts)) == numbers(whole)
    assert parts[-1][1] == after


@settings(max_examples=500, deadline=None)
@given(found(), st.lists(st.tuples(st.integers(0, 13), st.integers(0, LAST_SN)), max_size=5))
def test_slices_may_be_cut_anywhere(shards: Found, cuts: list[tuple[int, int]]) -> None:
    bounds = [None, *sorted(set(cuts)), None]
    parts = [stamp(Seed(), 7, tables(shards), Slice(low, high))[0] for low, high in pairwise(bounds)]
    assert numbers(*parts) == written_out(shards, Seed())


def test_a_deadline_is_one_producer_for_all_shards_and_comes_before_the_rows_of_its_time() -> None:
    shards = [[(5, 0, 1, 1), (5, 15, 1, 2)], [(5, 0, 1, 3), (4, 14, 1, 4)]]
    table, after = stamp(Seed(), 1, tables(shards), EVERYTHING)
    assert numbers(table) == [(1, 1, 1, "1/1"), (2, 1, 2, "0/0"), (2, 1, 3, "1/0"), (3, 1, 4, "0/1")]
    assert after == Seed(4, 5)


def test_a_row_that_closes_a_window_in_two_shards_is_counted_once_below_a_slice() -> None:
    """Row 8 closes window 1 in both shards and completes a match in its own; row 9 is the next producer."""
    shards = [[(2, 8, 1, 1), (2, 8, 2, 5), (3, 9, 1, 4)], [(2, 8, 1, 2), (2, 7, 1, 3)]]
    table, after = stamp(Seed(), 1, tables(shards), Slice((3, 9), None))
    assert numbers(table) == [(3, 1, 5, "0/2")]
    assert after == Seed(4, 6)


def test_slices_have_about_equally_many_matches() -> None:
    shards = [[(sn // 3, sn, 1, sn) for sn in range(1, 4000, 2)], [(sn // 3, sn, 1, sn) for sn in range(3000, 3500, 2)]]
    cut = slices([marks(table) for table in tables(shards)], 4)
    sizes = [stamp(Seed(), 1, tables(shards), part)[0].num_rows for part in cut]
    assert sum(sizes) == 2250
    assert max(sizes) < 2250 / 4 * 1.15  # a mark stands for a 32nd of its shard
