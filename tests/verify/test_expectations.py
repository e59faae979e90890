"""Great Expectations made to fail closed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.errors import RepriseError
from spark_jobs.verify.expectations import SUITES, Suite

RECONCILED = {
    "operator": ["op", "op"],
    "x": [1, 2],
    "ordinal": [1, 2],
    "false_positive": [False, False],
    "false_negative": [False, False],
    "duplicate": [False, False],
    "false_order": [False, False],
}


def test_the_shipped_suite_sees_a_duplicate() -> None:
    with Suite(SUITES / "complex_events.yaml") as suite:
        checks = suite.check(pa.table({**RECONCILED, "duplicate": [False, True]}))
        assert all(check.met for check in suite.check(pa.table(RECONCILED))), "it can be asked again"
    assert [check.expectation for check in checks if not check.met] == ["expect_column_values_to_be_in_set(duplicate)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expectations: []", "is empty and would pass anything"),
        ("suite: none", "not a suite"),
        ("expectations: [{type: expect_the_moon}]", "has no 'expect_the_moon'"),
        ("expectations: [{type: expect_column_values_to_be_in_set, kwargs: {column: x}}]", "did not run"),
    ],
)
def test_a_suite_that_would_prove_nothing_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(text)
    with pytest.raises(RepriseError, match=message), Suite(file) as suite:
        suite.check(pa.table(RECONCILED))


def test_an_expectation_on_a_column_that_is_missing_is_not_met(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text("expectations: [{type: expect_column_values_to_not_be_null, kwargs: {column: nowhere}}]")
    with Suite(file) as suite:
        (check,) = suite.check(pa.table(RECONCILED))
    assert not check.met
