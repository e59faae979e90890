"""Tables: created by several processes at the same time, and opened without reading all that ever happened to them."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Barrier, Thread

import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.lake.tables import Lake

SCHEMA = pa.schema([("a", pa.int64())])
# Of four that begin together, two or more tried to create the table in every second round before it was made safe.
ROUNDS, TOGETHER = 20, 4


def test_a_table_that_several_create_at_once_is_created_once(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        lake, together, versions = Lake(tmp_path / str(number)), Barrier(TOGETHER), list[int]()

        def begin(lake: Lake = lake, together: Barrier = together, versions: list[int] = versions) -> None:
            together.wait()
            versions.append(lake.open("t", SCHEMA).version())

        threads = [Thread(target=begin) for _ in range(TOGETHER)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert versions == [0] * TOGETHER


def test_a_table_is_opened_from_a_delta_checkpoint_that_is_never_far_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for n in range(12):
        lake.append("notes", pa.table({"n": [n]}))
    last = json.loads((tmp_path / "notes" / "_delta_log" / "_last_checkpoint").read_text())["version"]
    assert 0 <= DeltaTable(lake.path("notes")).version() - last < 10
    assert sorted(lake.read("notes")["n"].to_pylist()) == list(range(12))
