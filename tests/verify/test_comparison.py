"""The comparison in parts, whatever the damage and however the rows lie in files, finds what the simple one finds."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import complex_events
from spark_jobs.runner import InlineRunner, Runner
from spark_jobs.verify import comparison
from spark_jobs.verify.comparison import EVERYTHING, Comparison, Piece, Scope, compare
from spark_jobs.verify.records import records_of, said_columns
from tests.verify.simple import KINDS, reconciled

SCHEMA = complex_events.schema({"loss": pa.float64(), "paid": pa.decimal128(10, 2), "of": pa.string(), "day": pa.date32()})
MEASURES = ["loss", "paid", "of", "day"]
Rows = list[dict[str, Any]]


def event(number: int, **changed: Any) -> dict[str, Any]:
    row = {"operator": "op", "version": 1, "x": number, "y": 1, "ordinal": number, "key": "k", "ts": number}
    said = {"symbols": ["A", "B"], "sns": [2 * number - 1, 2 * number], "decided_ts": number, "decided_sn": 2 * number}
    return {**row, **said, "timed_out": False, "batch": (number - 1) // 3 + 1, "loss": 1.5, "of": "it", **changed}


def written(rows: Rows, cuts: list[int], folder: Path) -> list[Piece]:
    """The rows as files of the given sizes, each with several row groups."""
    pieces = []
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        path = str(folder / f"{len(pieces)}.parquet")
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows[begin:end], SCHEMA), path, row_group_size=2)
        pieces.append(Piece(path, end - begin))
    return pieces


def found(
    ours: Rows,
    reference: Rows,
    cuts: list[int],
    scope: Scope = EVERYTHING,
    runner: Runner | None = None,
) -> Comparison:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mine = written(ours, sorted(min(cut, len(ours)) for cut in cuts), folder / "output")
        theirs = written(reference, [], folder / "reference")
        return compare(runner or InlineRunner(), folder / "scratch", mine, theirs, MEASURES, scope)


def counts(of: Comparison) -> dict[str, int]:
    return {kind: getattr(of, kind) for kind in KINDS}


@pytest.fixture(autouse=True, params=["one part", "many parts"])
def _parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many parts":
        monkeypatch.setattr(comparison, "TASK_ROWS", 2)
        monkeypatch.setattr(comparison, "PART_ROWS", 3)


# Small ranges, so that identities and numbers meet by chance.
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "y": st.integers(1, 2),
    "x": st.integers(1, 8),
    "ordinal": st.integers(1, 8),
    "batch": st.integers(1, 4),
    "sns": st.lists(st.integers(1, 3), min_size=1, max_size=2),
    "symbols": st.lists(st.sampled_from(["A", "B", "AB"]), min_size=1, max_size=2),
    "inputs": st.sampled_from([None, [], ["log"], ["log", "op"]]),
    "timed_out": st.booleans(),
    "key": st.sampled_from([None, "", "k", "NULL"]),
    "loss": st.sampled_from([None, 0.0, 1.5, float("nan")]),
    "paid": st.sampled_from([None, Decimal("1.00"), Decimal("1.10")]),
    "of": st.sampled_from([None, "", "it", "NULL", "longer than eight bytes"]),
}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """A reference, and an output that was damaged: rows lost, said twice, changed, made up, moved."""
    reference = [event(n) for n in range(1, draw(st.integers(1, 9)))]
    if reference and draw(st.booleans()):  # the same complex event may come out twice, with two numbers
        reference.append(event(len(reference) + 1, **{k: reference[0][k] for k in ("y", "sns", "symbols")}))
    ours = [dict(row) for row in reference]
    for _ in range(draw(st.integers(0, 3))):
        if not ours:
            break
        place = draw(st.integers(0, len(ours) - 1))
        kind = draw(st.sampled_from(["lose", "repeat", "change", "swap", "move"]))
        other = draw(st.integers(0, len(ours) - 1))
        if kind == "lose":
            del ours[place]
        elif kind == "repeat":
            ours.insert(other, dict(ours[place]))
        elif kind == "swap":
            for name in ("x", "ordinal"):
                ours[place][name], ours[other][name] = ours[other][name], ours[place][name]
        elif kind == "move":
            ours.insert(other, ours.pop(place))
        else:
            name = draw(st.sampled_from(sorted(CHANGES)))
            ours[place][name] = draw(CHANGES[name])
    return ours, reference


@settings(max_examples=150, deadline=None)
@given(histories(), st.lists(st.integers(0, 9), max_size=2), st.integers(0, 18))
def test_it_finds_what_the_simple_comparison_finds(histories: tuple[Rows, Rows], cuts: list[int], detected_sn: int) -> None:
    ours, reference = histories
    expected = reconciled(ours, reference, said_columns(MEASURES), detected_sn)
    assert counts(found(ours, reference, cuts, Scope(detected_sn=detected_sn))) == expected


GOOD = [event(n) for n in range(1, 10)]


def test_it_runs_through_spark(spark: Runner) -> None:
    lost = found(GOOD[:4] + GOOD[5:], GOOD, [3], runner=spark)
    assert counts(lost) == {**dict.fromkeys(KINDS, 0), "false_negatives": 1}
    assert lost.missing_ordinals == 1
    assert [example["expected"] for example in lost.examples["false_negatives"]] == ["5:1 (no. 5)"]


def test_what_was_judged_before_is_not_compared_again() -> None:
    """Old rows that lie in new files are counted: as many as were written anew are in order, more are duplicates."""
    scope = Scope(after=4, batch=2, rewritten=2)
    new = GOOD[4:]
    assert counts(found(GOOD[2:], new, [], scope)) == dict.fromkeys(KINDS, 0)
    again = found(GOOD[1:], new, [], scope)
    assert (again.duplicates, again.false_positives, again.lost) == (1, 0, 0)
    assert again.examples["duplicates"][0]["found"] == "2:1 (no. 2)"
    assert found(GOOD[3:], new, [], scope).lost == 1


def test_a_batch_that_was_judged_before_is_out_of_turn_afterwards() -> None:
    late = [*GOOD[4:8], event(9, batch=1)]
    assert found(late, GOOD[4:], [], Scope(after=4, batch=2)).false_order == 1
    early = [event(5, batch=1), *GOOD[5:]]
    assert found(early, GOOD[4:], [], Scope(after=4, batch=2)).false_order == 1, "also at the edge"


def test_what_was_trimmed_is_not_judged() -> None:
    assert counts(found(GOOD[2:3] + GOOD[4:], GOOD[4:], [], Scope(floor=4, after=4))) == dict.fromkeys(KINDS, 0)


def test_an_example_names_the_attempt_where_the_file_does(tmp_path: Path) -> None:
    from spark_jobs.lake.outputs import output_name

    path = tmp_path / output_name(1, 1, 7, 12, 0)
    pq.write_table(pa.Table.from_pylist([event(1, batch=7)], SCHEMA), path)
    done = compare(InlineRunner(), tmp_path / "scratch", [Piece(str(path), 1)], [], MEASURES)
    (example,) = done.examples["false_positives"]
    assert (example["batch"], example["attempt"], example["expected"]) == (7, 12, None)


@pytest.mark.parametrize("kind", ["string", "list"])
def test_where_one_value_ends_and_the_next_begins_shows_in_the_hash(kind: str) -> None:
    """('ab', 'c') is not ('a', 'bc'), nor [1, 2], [3] the same as [1], [2, 3]."""
    columns = {
        "string": [{"a": "ab", "b": "c"}, {"a": "a", "b": "bc"}],
        "list": [{"a": [1, 2], "b": [3]}, {"a": [1], "b": [2, 3]}],
    }
    numbers = [{"x": 1, "ordinal": 1, "batch": 1, "y": 1, "sns": [1], "symbols": ["A"], **row} for row in columns[kind]]
    one, other = records_of(pa.Table.from_pylist(numbers), ["a", "b"], 0, [0, 1])
    assert one["content"] != other["content"]
    assert (one["high"], one["low"]) == (other["high"], other["low"])
    assert one["high"] != one["low"]
