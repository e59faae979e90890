"""Revisions: what differs is touched, and nothing else; the net of all rows is what is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.cep.arrays import Floors
from spark_jobs.ordering.packed import packed, unpacked
from spark_jobs.ordering.revisions import ASSERT, RETRACT, net, revision, within
from spark_jobs.ordering.states import State

TIMESTAMP = pa.timestamp("us", "UTC")


def matches(*rows: tuple[int, str | None]) -> pa.Table:
    """As a matcher gives them: the time they were decided, which is also their event, and a measure."""
    return pa.table({
        "y": pa.array([1] * len(rows), pa.int64()),
        "_at_ts": pa.array([t for t, _ in rows], pa.int64()),
        "_at_sn": pa.array([t for t, _ in rows], pa.int64()),
        "key": pa.array(["k"] * len(rows), pa.string()).dictionary_encode(),
        "ts": pa.array([t for t, _ in rows], TIMESTAMP),
        "symbols": pa.array([["A"]] * len(rows), pa.list_(pa.string())),
        "sns": pa.array([[t] for t, _ in rows], pa.list_(pa.int64())),
        "timed_out": pa.array([False] * len(rows), pa.bool_()),
        "m": pa.array([m for _, m in rows], pa.string()),
    })


def published(*rows: tuple[int, int, str | None]) -> pa.Table:
    """As a table has them, with their ordinals."""
    table = matches(*((t, m) for _, t, m in rows)).rename_columns([
        "y",
        "decided_ts",
        "decided_sn",
        "key",
        "ts",
        "symbols",
        "sns",
        "timed_out",
        "m",
    ])
    table = table.set_column(1, "decided_ts", table["decided_ts"].cast(TIMESTAMP))
    return table.append_column("ordinal", pa.array([o for o, _, _ in rows], pa.int64()))


def times(table: pa.Table) -> list[int]:
    return np.asarray(table["ts"].cast(pa.int64())).tolist()


def test_what_says_the_same_is_left_alone_whatever_its_number() -> None:
    done = revision(published((7, 1, "x"), (8, 2, "x")), matches((1, "x"), (3, "x")), ["m"])
    assert times(done.retract) == [2]
    assert done.retract["ordinal"].to_pylist() == [8]
    assert times(done.assert_) == [3]


def test_another_measure_is_another_complex_event_and_null_is_not_a_text() -> None:
    done = revision(published((1, 1, "x"), (2, 2, None), (3, 3, "")), matches((1, "y"), (2, None), (3, None)), ["m"])
    assert times(done.retract) == [1, 3]
    assert times(done.assert_) == [1, 3]


def test_stretches_are_open_at_their_beginning() -> None:
    decided = pa.chunked_array([pa.array([1, 2, 3, 4, 5], TIMESTAMP)])
    assert within(decided, [(1, 2), (4, 9)]).tolist() == [False, True, False, False, True]


@given(st.lists(st.sets(st.integers(1, 9)), min_size=1, max_size=5))
def test_the_net_of_all_revisions_is_what_was_right_last(rights: list[set[int]]) -> None:
    table = published().append_column("revision", pa.array([], pa.string())).append_column("of", pa.array([], pa.int64()))
    for right in rights:
        standing = net(table)
        done = revision(standing, matches(*((t, "x") for t in sorted(right))), ["m"])
        first = table.num_rows + 1
        count = done.retract.num_rows
        rows = [(first + i, t, "x") for i, t in enumerate(times(done.retract) + times(done.assert_))]
        more = published(*rows)
        kinds = [RETRACT] * count + [ASSERT] * done.assert_.num_rows
        of = [*done.retract["ordinal"].to_pylist(), *[None] * done.assert_.num_rows]
        more = more.append_column("revision", pa.array(kinds, pa.string())).append_column("of", pa.array(of, pa.int64()))
        table = pa.concat_tables([table, more])
        assert sorted(times(net(table))) == sorted(right)


def test_states_survive_as_bytes() -> None:
    def numbers(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    floors = Floors(numbers(1), numbers(9), numbers(4), numbers(3))
    states = [State(), State(17, 5, numbers(3, 8), numbers(2, 4), numbers(3), floors)]
    again = unpacked(packed(states))
    assert [str(state) for state in again] == [str(state) for state in states]


def test_states_of_an_older_version_are_read() -> None:
    """The bytes were written by it."""
    first, second = unpacked((Path(__file__).parent / "frozen" / "states-1.arrow").read_bytes())
    assert str(first) == str(State())
    told = [second.upto, second.read, *(part.tolist() for part in (*second[2:5], *second.floors))]
    assert told == [7, 3, [5, 2, 9], [1, 2, 3], [2], [1, 2], [3, 4], [5, 6], [7, 8]]
