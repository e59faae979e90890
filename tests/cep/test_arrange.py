"""Arranging rows by key: whatever the number of keys and the rows that are wanted, it is a stable sort."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jobs.cep.kernel import MANY_KEYS, arrange

ROWS = 20_000


@pytest.mark.parametrize("keys", [1, 7, MANY_KEYS, MANY_KEYS + 1, 100_003])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_rows_come_by_key_and_then_in_their_order(keys: int, share: float) -> None:
    rng = np.random.default_rng(keys)
    codes = rng.integers(0, keys, ROWS).astype(np.int32)
    mask, sn, ts = rng.integers(1, 9, ROWS), np.arange(ROWS) * 2, np.arange(ROWS) * 7
    wanted = np.where(rng.random(ROWS) < share, mask, 0)
    rows, offsets, *columns = arrange(codes, keys, wanted, mask, sn, ts)
    expected = np.flatnonzero(wanted)
    expected = expected[np.argsort(codes[expected], kind="stable")]
    assert np.array_equal(rows, expected)
    assert np.array_equal(np.diff(offsets), np.bincount(codes[expected], minlength=keys))
    assert all(np.array_equal(found, column[expected]) for found, column in zip(columns, (mask, sn, ts), strict=True))
