"""What the columns of a landing file are converted to, value by value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.landing import LandingFile, _cast, read_landing_file
from spark_jobs.pipeline import Source


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-01T07:00:00+14:00", "2025-12-31 17:00:00"),
        ("2026-01-01T07:00:00", "2026-01-01 07:00:00"),  # after a row with a zone: it must not inherit it
        ("2026-01-01 07:00:00.5", "2026-01-01 07:00:00.500000"),
        ("2026-01-01", "2026-01-01 00:00:00"),
        ("2026-01-01T07:00:00-0530", "2026-01-01 12:30:00"),
        ("now", None),
        ("2026", None),
        ("2026-02-30T00:00:00Z", None),
    ],
)
def test_time_stamps_in_text(text: str, utc: str | None) -> None:
    values, failed = _cast(pa.array(["2026-01-01T07:00:00+14:00", text, None]), pa.timestamp("us", "UTC"), None)
    assert (f"{values[1].as_py():%Y-%m-%d %H:%M:%S}" if utc else None) == (utc[:19] if utc else None)
    assert failed.tolist() == [False, utc is None, False]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_whole_numbers_in_text_use_all_64_bits(kind: pa.DataType) -> None:
    texts = pa.array(["1876543210987654321", "9223372036854775807", "9223372036854775808", "+7", "1.0", None]).cast(kind)
    values, failed = _cast(texts, pa.int64(), None)
    assert values.to_pylist() == [1876543210987654321, 9223372036854775807, None, 7, None, None]
    assert failed.tolist() == [False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.34", "12.34"),
        ("+0012.3400", "12.34"),
        ("-.5", "-0.50"),
        ("7", "7.00"),
        ("7.", "7.00"),
        ("0", "0.00"),
        ("1.5e3", "1500.00"),
        ("12.345", None),  # a digit too many is a wrong value, not one to round
        ("123456", None),  # and so is one before the point
        ("99999.99", "99999.99"),
        ("1e400", None),
        ("NaN", None),
        ("1,5", None),
        ("٣", None),
        ("", None),
    ],
)
def test_decimals_in_text_are_exact(text: str, value: str | None) -> None:
    values, failed = _cast(pa.array([text, None]), pa.decimal128(7, 2), None)
    assert values.to_pylist() == [None if value is None else Decimal(value), None]
    assert failed.tolist() == [value is None, False]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([0.1, 2.5, 0.123, float("nan"), 1e20]), ["0.10", "2.50", None, None, None]),
        (pa.array([7, 10**6]), ["7.00", None]),
        (pa.array([Decimal("1.100"), Decimal("1.101")]), ["1.10", None]),
        (pa.array([True]), [None]),
        (pa.array(["1.1"]).dictionary_encode(), ["1.10"]),
    ],
)
def test_decimals_from_other_types(column: pa.Array, values: list[str | None]) -> None:
    found, failed = _cast(column, pa.decimal128(7, 2), None)
    assert found.to_pylist() == [None if value is None else Decimal(value) for value in values]
    assert failed.tolist() == [value is None for value in values]


@pytest.mark.parametrize(("type_", "text"), [(pa.decimal128(2, 2), "0.25"), (pa.decimal128(38, 0), "9" * 38)])
def test_decimals_of_fractions_only_and_of_whole_numbers_only(type_: pa.DataType, text: str) -> None:
    values, failed = _cast(pa.array([text, "1.5"]), type_, None)
    assert values.to_pylist() == [Decimal(text), None]
    assert failed.tolist() == [False, True]


def test_dates() -> None:
    texts = ["2026-01-31", " 9999-12-31 ", "2026-02-30", "2026-1-1", "now", "2026-01-31T00:00:00", None]
    values, failed = _cast(pa.array(texts), pa.date32(), None)
    assert values.to_pylist() == [dt.date(2026, 1, 31), dt.date(9999, 12, 31), None, None, None, None, None]
    assert failed.tolist() == [False, False, True, True, True, True, False]
    times = pa.array([dt.datetime(2026, 1, 31), dt.datetime(2026, 1, 31, 1)], pa.timestamp("ms"))
    values, failed = _cast(times, pa.date32(), None)
    assert values.to_pylist() == [dt.date(2026, 1, 31), None]
    assert failed.tolist() == [False, True]


@pytest.mark.parametrize("broken", ["", "{\n"], ids=["whole file", "line by line"])
def test_decimals_and_dates_in_json_are_not_guessed(tmp_path: Path, broken: str) -> None:
    """As a double, the second amount would have lost its last digits; as a time stamp, a date would have found a time."""
    lines = [
        '{"ts": "2026-01-01T00:00:00Z", "amount": 1.25, "due": "2026-01-31", "type": "a", "key": "1"}',
        '{"ts": "2026-01-01T00:00:00Z", "amount": 1234567890123456789012.34, "due": null, "type": "a", "key": "2"}',
        '{"ts": "2026-01-01T00:00:00Z", "amount": "7.5", "due": "2026-01-01", "type": "a", "key": "2"}',
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(lines) + "\n" + broken)
    source = Source.model_validate({"attributes": {"amount": "decimal(30,2)", "due": "date"}})
    read = read_landing_file(LandingFile(str(file), "log.jsonl"), source)
    assert read.events["amount"].to_pylist() == [Decimal("1.25"), Decimal("1234567890123456789012.34"), Decimal("7.50")]
    assert read.events["due"].to_pylist() == [dt.date(2026, 1, 31), None, dt.date(2026, 1, 1)]
    assert [row for row, _, _ in read.rejected] == ([4] if broken else [])


def test_a_wrong_decimal_or_date_goes_to_quarantine_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("ts,type,key,amount,due\n2026-01-01,a,k,1.234,2026-01-01\n2026-01-01,a,k,1.23,soon\n2026-01-01,a,k,,\n")
    source = Source.model_validate({"attributes": {"amount": "decimal(9,2)", "due": "date"}})
    read = read_landing_file(LandingFile(str(file), "log.csv"), source)
    assert [reason for _, reason, _ in read.rejected] == [
        "amount: '1.234' is not a valid decimal(9,2)",
        "due: 'soon' is not a valid date",
    ]
    assert read.events.num_rows == 1
