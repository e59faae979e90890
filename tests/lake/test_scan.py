"""Reading the log: only what is wanted is opened, and what comes next is fetched while somebody else works."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.lake import scan
from spark_jobs.lake.scan import file_name, read_ahead, read_events

SCHEMA = pa.schema([("sn", pa.int64()), ("stream_ts", pa.int64()), ("type", pa.string()), ("amount", pa.float64())])
NONE = np.empty(0, np.int64)
IN_FILE, IN_GROUP = 100, 20


@pytest.fixture
def files(tmp_path: Path) -> list[dict[str, Any]]:
    """Three files of five row groups each."""
    made = []
    for first in (1, 101, 201):
        sn = np.arange(first, first + IN_FILE)
        table = pa.table({"sn": sn, "stream_ts": sn, "type": ["a"] * IN_FILE, "amount": sn / 2}, SCHEMA)
        path = tmp_path / file_name(first, first + IN_FILE - 1, 1)
        pq.write_table(table, path, row_group_size=IN_GROUP, compression="none", use_dictionary=False)
        made.append({"path": str(path), "first_sn": first, "last_sn": first + IN_FILE - 1})
    return made


def test_files_without_anything_wanted_are_not_opened(files: list[dict[str, Any]]) -> None:
    Path(files[0]["path"]).unlink()
    found = read_events(files, SCHEMA, ["type"], np.array([150]), 200, 230, in_sn_order=True)
    assert found["sn"].to_pylist() == [150, *range(201, 231)]
    with pytest.raises(FileNotFoundError):
        read_events(files, SCHEMA, ["type"], np.array([50, 150]), 200, 230, in_sn_order=True)


def test_what_the_next_batch_reads_is_fetched_and_nothing_else(
    files: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, int, int]] = []

    def advise(place: int, begin: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        fetched.append((os.readlink(f"/proc/self/fd/{place}"), begin, length))

    monkeypatch.setattr(scan.os, "posix_fadvise", advise)
    read_ahead(files, ["type"], 90, 130)
    expected = set()
    for file, groups in ((files[0], [4]), (files[1], [0, 1])):
        metadata = pq.read_metadata(file["path"])
        for group in groups:
            chunks = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
            wanted = [chunk for chunk in chunks if chunk.path_in_schema != "amount"]
            expected |= {(file["path"], chunk.data_page_offset, chunk.total_compressed_size) for chunk in wanted}
    assert len(fetched) == len(expected)
    assert set(fetched) == expected


def test_a_file_that_is_gone_is_left_to_who_reads_it(files: list[dict[str, Any]]) -> None:
    Path(files[0]["path"]).unlink()
    read_ahead(files, ["type"], 0, 300)
    assert read_events(files[1:], SCHEMA, [], NONE, 100, 300, in_sn_order=True).num_rows == 200


@given(st.sets(st.integers(1, 60)), st.booleans(), st.randoms())
def test_numbers_are_put_in_order_with_gaps_and_without(numbers: set[int], apart: bool, chance: random.Random) -> None:
    mixed = [number * (1_000 if apart else 1) for number in numbers]
    chance.shuffle(mixed)
    array = np.array(mixed, np.int64)
    assert array[scan._order(array)].tolist() == sorted(mixed)
