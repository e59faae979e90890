"""Generated logs: reproducible, partitioned as asked, disordered and poisoned as asked."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.errors import RepriseError
from spark_jobs.generate import Recipe, generate


def rows(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(file, partitioning=None) for file in sorted(folder.rglob("*.parquet"))])


def test_the_same_seed_gives_the_same_log(tmp_path: Path) -> None:
    for name in ("a", "b"):
        generate(Recipe(500, seed=3), tmp_path / name)
    generate(Recipe(500, seed=4), tmp_path / "c")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert rows(tmp_path / "a") != rows(tmp_path / "c")


def test_partitions_are_date_hour_and_source(tmp_path: Path) -> None:
    generate(Recipe(100, sources=3, rate=0.005), tmp_path / "in")  # one event every 200 s: 5.5 hours
    places = {str(file.parent.relative_to(tmp_path / "in")) for file in (tmp_path / "in").rglob("*.parquet")}
    assert "date=2026-01-01/hour=05/source=s2" in places
    assert len(places) == 6 * 3


def test_disorder_delays_a_share_of_the_events_and_files_stay_in_arrival_order(tmp_path: Path) -> None:
    generate(Recipe(2000, sources=1, disorder=0.2, max_delay_s=30), tmp_path / "in")
    table = rows(tmp_path / "in")
    seen = table["seen"].to_pylist()
    late = sum(s != t for s, t in zip(seen, table["time"].to_pylist(), strict=True))
    assert seen == sorted(seen)
    assert 300 < late < 500


def test_poison_makes_rows_without_a_time(tmp_path: Path) -> None:
    generate(Recipe(100, poison=7), tmp_path / "in")
    assert rows(tmp_path / "in")["time"].null_count == 7


@pytest.mark.parametrize("wrong", [{"types": 27}, {"keys": 0}, {"disorder": 2.0}, {"poison": 101}, {"rate": 0.0}])
def test_a_wrong_recipe_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RepriseError):
        Recipe(100, **wrong)
