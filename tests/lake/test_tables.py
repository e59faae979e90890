"""Tables that several processes create at the same time."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pyarrow as pa

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
