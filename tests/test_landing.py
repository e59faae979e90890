"""What the columns of a landing file are converted to, value by value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_jobs.landing import _cast


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
