"""Checkers on hand-made bad histories: each must see its own kind of damage, and only that."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas import complex_events
from spark_jobs.cep.arrays import FOREVER
from spark_jobs.runner import InlineRunner
from spark_jobs.verify.checkers import Evidence, run_checkers
from spark_jobs.verify.comparison import Comparison, Piece, Scope, compare
from spark_jobs.verify.examples import MAX_EXAMPLES
from spark_jobs.verify.verdict import Finding, Verdict, worst

SCHEMA = complex_events.schema({})
COUNT = 30


def event(number: int, **changed: Any) -> dict[str, Any]:
    fixed = {"operator": "op", "x": number, "y": 1, "ordinal": number, "key": "k", "ts": number, "symbols": ["A", "B"]}
    decided = {"version": 1, "decided_ts": number, "decided_sn": 2 * number, "timed_out": False}
    return {**fixed, **decided, "sns": [2 * number - 1, 2 * number], "batch": (number - 1) // 10 + 1, **changed}


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


GOOD = [event(n) for n in range(1, COUNT + 1)]


def compared(actual: pa.Table, expected: pa.Table, detected_sn: int = FOREVER) -> Comparison:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(actual, folder / "actual")
        pq.write_table(expected, folder / "expected")
        pieces = [[Piece(str(folder / side), rows.num_rows)] for side, rows in (("actual", actual), ("expected", expected))]
        measures = set(expected.column_names) - set(complex_events.FIXED_NAMES)
        return compare(InlineRunner(), folder / "scratch", *pieces, measures, Scope(detected_sn=detected_sn))


def judge(rows: list[dict[str, Any]], **evidence: int) -> dict[str, Finding]:
    known = {"detected_sn": 2 * COUNT, "log_sn": 2 * COUNT, "reference_sn": 2 * COUNT, **evidence}
    found = compared(table(rows), table(GOOD), known["detected_sn"])
    return {finding.property: finding for finding in run_checkers(Evidence(found, **known))}


def broken(findings: dict[str, Finding]) -> dict[str, int]:
    return {name: finding.count for name, finding in findings.items() if finding.verdict is Verdict.INVALID}


def test_what_was_trimmed_before_a_verdict_or_not_taken_yet_is_unknown() -> None:
    assert judge(GOOD, trimmed=5)["earlier verdicts"].verdict is Verdict.UNKNOWN
    assert judge(GOOD, unread=5)["completeness"].verdict is Verdict.UNKNOWN


def test_an_undamaged_output_is_valid() -> None:
    findings = judge(GOOD)
    assert {finding.verdict for finding in findings.values()} == {Verdict.VALID}
    assert list(findings) == ["no false positives", "no false negatives", "no duplicates", "no false order", "completeness"]


def test_a_row_that_should_not_be_there_is_a_false_positive() -> None:
    assert broken(judge([*GOOD, event(31, sns=[1, 60])])) == {"no false positives": 1}


def test_a_lost_row_is_a_false_negative_and_not_misordered() -> None:
    assert broken(judge(GOOD[:7] + GOOD[9:])) == {"no false negatives": 2, "completeness": 2}


def test_a_row_published_twice_is_a_duplicate_only() -> None:
    assert broken(judge([*GOOD, GOOD[4]])) == {"no duplicates": 1}


def test_a_row_published_twice_in_another_batch_is_a_duplicate_only() -> None:
    assert broken(judge([*GOOD, event(5, batch=2)])) == {"no duplicates": 1}


def test_swapped_numbers_are_a_false_order() -> None:
    swapped = [*GOOD]
    swapped[3], swapped[4] = event(4, x=5, ordinal=5), event(5, x=4, ordinal=4)
    assert broken(judge(swapped)) == {"no false order": 2}


def test_shifted_numbers_are_a_false_order() -> None:
    """What a sequencer that lost its seed would do."""
    shifted = GOOD[:10] + [event(n, x=n - 10, ordinal=n + 100) for n in range(11, COUNT + 1)]
    assert broken(judge(shifted)) == {"no false order": 20}


def test_a_number_published_in_an_earlier_batch_than_a_smaller_one_is_a_false_order() -> None:
    assert broken(judge([*GOOD[:-1], event(COUNT, batch=1)])) == {"no false order": 1}


def test_the_same_number_for_two_matches_is_found() -> None:
    assert "no duplicates" in broken(judge([*GOOD[:-1], event(COUNT, ordinal=1)]))


def test_the_same_events_in_another_window_are_another_match() -> None:
    assert broken(judge([event(1, y=2), *GOOD[1:]])) == {"no false positives": 1, "no false negatives": 1, "completeness": 1}


def test_a_match_with_another_key_time_or_measure_is_a_false_positive() -> None:
    assert broken(judge([event(1, key="WRONG"), *GOOD[1:]])) == {"no false positives": 1}
    assert broken(judge([event(1, ts=99), *GOOD[1:]])) == {"no false positives": 1}
    schema = complex_events.schema({"loss": pa.float64()})
    expected = pa.Table.from_pylist([event(1, loss=2.5)], schema)
    actual = pa.Table.from_pylist([event(1, loss=None)], schema)
    findings = {f.property: f for f in run_checkers(Evidence(compared(actual, expected), 2, 2, 2))}
    assert broken(findings) == {"no false positives": 1}


def test_what_is_not_processed_yet_is_unknown_not_lost() -> None:
    findings = judge(GOOD[:15], detected_sn=30)
    assert broken(findings) == {}
    assert findings["completeness"].verdict is Verdict.UNKNOWN
    assert worst(finding.verdict for finding in findings.values()) is Verdict.UNKNOWN


def test_a_reference_that_does_not_reach_as_far_proves_nothing() -> None:
    findings = judge(GOOD, reference_sn=20)
    assert findings["no false positives"].verdict is Verdict.UNKNOWN


def test_evidence_is_capped_and_names_both_numbers() -> None:
    finding = judge(GOOD[:10] + [event(n, ordinal=n + 100) for n in range(11, COUNT + 1)])["no false order"]
    assert finding.count == 20
    assert len(finding.examples) == MAX_EXAMPLES
    assert finding.examples[0] == {
        "found": "11:1 (no. 111)",
        "expected": "11:1 (no. 11)",
        "events": "21,22",
        "key": "k",
        "batch": 2,
    }


def test_an_empty_output_against_an_empty_reference_is_valid() -> None:
    nothing = table([])
    findings = run_checkers(Evidence(compared(nothing, nothing), 5, 5, 5))
    assert {finding.verdict for finding in findings} == {Verdict.VALID}


def test_a_checker_that_crashes_is_unknown_never_a_pass() -> None:
    def crashing(evidence: Evidence) -> Finding:
        raise ZeroDivisionError("a bug")

    (finding,) = run_checkers(Evidence(Comparison(), 60, 60, 60), {"mine": crashing})
    assert finding.verdict is Verdict.UNKNOWN
    assert "ZeroDivisionError: a bug" in finding.note


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], Verdict.UNKNOWN),
        ([Verdict.VALID], Verdict.VALID),
        ([Verdict.VALID, Verdict.UNKNOWN], Verdict.UNKNOWN),
        ([Verdict.UNKNOWN, Verdict.INVALID, Verdict.VALID], Verdict.INVALID),
    ],
)
def test_unknown_beats_valid_and_invalid_beats_both(verdicts: list[Verdict], expected: Verdict) -> None:
    assert worst(verdicts) is expected


def test_exit_codes() -> None:
    assert [verdict.exit_code for verdict in (Verdict.VALID, Verdict.INVALID, Verdict.UNKNOWN)] == [0, 1, 2]
