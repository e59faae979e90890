"""Sets of SNs as bytes: smaller of two formats, nothing lost, damage noticed, and old bytes readable for ever."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from spark_jobs.errors import SavepointDamaged
from spark_jobs.recovery.sets import (
    RANGES,
    ROARING,
    count_kept,
    read_columns,
    read_kept,
    read_numbers,
    stored_columns,
    stored_gaps,
    stored_numbers,
    union,
)

FROZEN = Path(__file__).parent / "frozen"
NUMBERS = st.lists(st.integers(1, 2**62), unique=True, max_size=60).map(lambda found: np.array(sorted(found), np.int64))
SMALL = st.lists(st.integers(1, 80), unique=True, max_size=60).map(lambda found: np.array(sorted(found), np.int64))


@settings(deadline=None)  # the first one may compile
@given(st.one_of(NUMBERS, SMALL))
def test_a_set_comes_back(numbers: np.ndarray) -> None:
    assert read_numbers(stored_numbers(numbers)).tolist() == numbers.tolist()


@settings(deadline=None)
@given(SMALL, st.integers(0, 5), st.integers(0, 20))
def test_what_is_kept_comes_back_from_what_is_skipped(numbers: np.ndarray, low: int, more: int) -> None:
    kept = numbers[numbers > low]
    high = int(kept[-1]) + more if kept.size else low + more
    stored = stored_gaps(kept, low, high)
    assert read_kept(stored, low, high).tolist() == kept.tolist()
    assert read_numbers(stored).tolist() == sorted(set(range(low + 1, high + 1)) - set(kept.tolist()))


@settings(deadline=None)
@given(st.lists(st.tuples(SMALL, st.integers(0, 5)), max_size=4), st.integers(0, 90), st.integers(0, 20))
def test_what_several_keep_is_counted_once(shards: list[tuple[np.ndarray, int]], high: int, floor: int) -> None:
    """Also where a set of gaps ends below: everything above it is kept."""
    kept = [(numbers[(numbers > low) & (numbers <= max(floor, low))], low) for numbers, low in shards]
    stored = [(stored_gaps(numbers, low, max(floor, low)), low) for numbers, low in kept]
    expected = union([read_kept(data, low, high) for data, low in stored]) if stored else []
    assert count_kept(stored, high) == len(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(-(2**62), 2**62)] * 3), max_size=20))
def test_columns_come_back(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array([row[k] for row in rows], np.int64) for k in range(3)]
    assert [column.tolist() for column in read_columns(stored_columns(columns))] == [column.tolist() for column in columns]


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.5, 0.9])
def test_the_smaller_format_is_chosen(share: float) -> None:
    numbers = np.flatnonzero(np.random.default_rng(1).random(300_000) < share) + 1
    bitmap = BitMap64(numbers.tolist())
    bitmap.run_optimize()
    stored = stored_numbers(numbers)
    assert stored[0] == (RANGES if share == 0.0001 else ROARING), "bits that change often are what a bitmap is for"
    assert len(stored) <= 1 + len(bitmap.serialize())
    assert read_numbers(stored).tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("1-few.bin", [2, 3, 5, 6, 7, 8, 9]),
        ("1-big.bin", [2**40 + 1, 2**40 + 2, 2**62]),
        ("2-few.bin", [2, 3, 5, 6, 7, 8, 9]),
        ("2-big.bin", [2**40 + 1, 2**40 + 2, 2**62]),
    ],
)
def test_bytes_of_earlier_versions_stay_readable(name: str, numbers: list[int]) -> None:
    """These files are never written anew: they are what is in people's lakes."""
    stored = (FROZEN / name).read_bytes()
    assert read_numbers(stored).tolist() == numbers
    assert read_kept(stored, 0, 12).tolist() == sorted(set(range(1, 13)) - set(numbers))


def test_floors_of_earlier_versions_stay_readable() -> None:
    columns = read_columns((FROZEN / "3-floors.bin").read_bytes())
    assert [column.tolist() for column in columns] == [[1, 5, 9], [3, 5, 2**40], [-7, 0, 7], [2**62, -(2**62), 0]]


@pytest.mark.parametrize(
    "stored", [b"", b"\x00", b"\x09abc", b"\x02\x05\x01", b"\x02\x80", b"\x02" + b"\xff" * 11 + b"\x01", b"\x01abc"]
)
def test_bytes_that_are_no_set_are_damage_and_not_a_set(stored: bytes) -> None:
    with pytest.raises(SavepointDamaged):
        read_numbers(stored)
    with pytest.raises(SavepointDamaged):
        read_kept(stored, 0, 10)


@settings(deadline=None)
@given(NUMBERS, st.data())
def test_a_cut_never_reads_as_the_same_set(numbers: np.ndarray, data: st.DataObject) -> None:
    """The checksum is what guards a row; the format still notices most of it by itself, and never crashes."""
    stored = stored_numbers(numbers)
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))]
    with suppress(SavepointDamaged):
        assert read_numbers(cut).tolist() != numbers.tolist()
