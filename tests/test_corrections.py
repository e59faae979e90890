"""A partition that comes again with other content: events under the same sequence numbers are corrected, and revised."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.strike import InjectedFailure
from spark_jobs.lake.tables import Lake
from spark_jobs.ordering.revisions import net
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from tests.conftest import PIPELINE, find, small_log, take_in

MORE = """
  pairs:
    from: probing
    pattern: P -> Q
    define: {P: loss > 1, Q: loss < P.loss}
    window: {count: 6, slide: 3}
"""
TEXT = f"{PIPELINE}{MORE}ordering: {{speculation: 0, revise: 1 h}}\n"
PIPE = parse_pipeline(TEXT, "corrected.yaml")


def corrected(landing: Path, *, number: int = 1, every: int = 7) -> Path:
    """A file more in the partition: every seventh event again, with another amount, type, card or time (that no other has)."""
    file = sorted(landing.rglob("part*.parquet"))[0]
    rows = pq.read_table(file, partitioning=None)
    rows = rows.take(pa.array(np.arange(number, rows.num_rows, every)))
    odd = pa.array(np.arange(rows.num_rows) % 2 == 1)
    columns = {
        "amount": pc.add(rows["amount"], 3.0 * number),
        "kind": pc.if_else(odd, rows["kind"], "b"),
        "card": pc.if_else(odd, "k3", rows["card"]),
        "time": pc.if_else(odd, pc.add(rows["time"], pa.scalar(-90_000_000 - number, pa.duration("us"))), rows["time"]),
    }
    for name, column in columns.items():
        field = rows.schema.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), name, column.cast(field.type))
    target = file.with_name(f"again-{number}.parquet")
    pq.write_table(rows, target)
    return target


def as_if_right_at_once(landing: Path, folder: Path) -> Path:
    """The same partitions, where every event is what its latest delivery says."""
    shutil.copytree(landing, folder)
    for again in sorted(folder.rglob("again-*.parquet")):
        original = sorted(again.parent.glob("part*.parquet"))[0]
        rows, new = (pq.read_table(path, partitioning=None) for path in (original, again))
        old = rows.filter(pc.invert(pc.is_in(rows["seq"], value_set=new["seq"].combine_chunks())))
        pq.write_table(pa.concat_tables([old, new.cast(old.schema)]), original)
        again.unlink()
    return folder


def said(lake: Lake) -> Counter[Any]:
    """What stands, without numbers: those of a log that was corrected are others."""
    hidden = {"x", "ordinal", "sns", "batch", "decided_sn", "revision", "of", "speculative"}
    found: Counter[Any] = Counter()
    rows = lake.read("complex_events")
    for name in PIPE.operators:
        mine = net(rows.filter(pc.field("operator") == name)).to_pylist()
        found.update(tuple((k, str(v)) for k, v in sorted(row.items()) if k not in hidden) for row in mine)
    return found


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    return small_log(tmp_path / "landing", 900, sources=1)


def test_a_corrected_partition_is_revised_not_published_again(landing: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    take_in(PIPE, landing, lake)
    find(PIPE, lake, 200)
    before = said(lake)
    for number in (1, 2):  # the second delivery corrects some events for the second time
        corrected(landing, number=number, every=7 if number == 1 else 3)
        done = take_in(PIPE, landing, lake)
        assert done.corrected == done.accepted > 50
        assert done.quarantined == 0
        find(PIPE, lake, 200)
    right = Lake(tmp_path / "right")
    take_in(PIPE, as_if_right_at_once(landing, tmp_path / "at-once"), right)
    find(PIPE, right, 200)
    assert said(lake) == said(right) != before
    rows = lake.read("complex_events")
    assert rows.filter(pc.field("revision") == "retract").num_rows > 0
    assert {done.verdict for done in verify(PIPE, lake)} == {Verdict.VALID}
    assert take_in(PIPE, landing, lake).accepted == 0, "delivered again, it changes nothing"
    assert lake.read("late_events").num_rows == 0


def test_a_correction_may_lie_ahead_of_everything(landing: Path, tmp_path: Path) -> None:
    """It comes after all others in order of time too, and still takes something away."""
    lake = Lake(tmp_path / "lake")
    take_in(PIPE, landing, lake)
    find(PIPE, lake, 200)
    before = said(lake)
    again = corrected(landing)
    rows = pq.read_table(again, partitioning=None)
    rows = rows.sort_by([("seen", "ascending"), ("seq", "ascending")])  # as they will be in the log
    ahead = pa.array(3_600_000_000 + 1_000 * np.arange(rows.num_rows), pa.duration("us"))
    times = pc.add(pc.max(rows["time"]), ahead).cast(rows.schema.field("time").type)
    pq.write_table(rows.set_column(rows.schema.get_field_index("time"), "time", times), again)
    take_in(PIPE, landing, lake)
    find(PIPE, lake, 200)
    assert said(lake) != before
    assert lake.read("complex_events").filter(pc.field("revision") == "retract").num_rows > 5
    assert {done.verdict for done in verify(PIPE, lake)} == {Verdict.VALID}


def test_a_correction_says_nothing_about_delays(landing: Path, tmp_path: Path) -> None:
    """One that comes an hour later would otherwise make everybody wait an hour."""
    lake = Lake(tmp_path / "lake")
    take_in(PIPE, landing, lake)
    find(PIPE, lake)
    slack = lake.read("savepoints").sort_by("batch")["ordering"].to_pylist()[-1]
    corrected(landing)
    take_in(PIPE, landing, lake)
    find(PIPE, lake)
    for name in ("clk", "k", "final"):
        after = lake.read("savepoints").sort_by("batch")["ordering"].to_pylist()[-1]
        assert slack.split(f'"{name}":')[1].split(",")[0] == after.split(f'"{name}":')[1].split(",")[0]


def test_a_correction_that_comes_too_late_is_set_aside_and_what_it_corrects_still_counts(landing: Path, tmp_path: Path) -> None:
    pipeline = parse_pipeline(TEXT.replace("revise: 1 h", "revise: 1 min"), "corrected.yaml")
    lake = Lake(tmp_path / "lake")
    take_in(pipeline, landing, lake)
    find(pipeline, lake)
    before = said(lake)
    again = corrected(landing)
    rows = pq.read_table(again, partitioning=None)
    pq.write_table(rows.slice(0, 10), again)
    take_in(pipeline, landing, lake)
    find(pipeline, lake)
    assert said(lake) == before
    late = lake.read("late_events").to_pylist()
    assert len(late) == 10
    assert all("corrects event" in row["reason"] and "still counts" in row["reason"] for row in late)
    assert {done.verdict for done in verify(pipeline, lake)} == {Verdict.VALID}


def test_without_an_order_of_time_it_is_quarantined(landing: Path, tmp_path: Path) -> None:
    pipeline, lake = parse_pipeline(PIPELINE, "plain.yaml"), Lake(tmp_path / "lake")
    take_in(pipeline, landing, lake)
    corrected(landing)
    with pytest.raises(Exception, match="was already taken by another event"):
        take_in(pipeline, landing, lake)


@pytest.mark.parametrize("phase", ["ingest.written", "ingest.listed", "ingest.committed"])
def test_an_ingest_that_dies_corrects_once(phase: str, landing: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    take_in(PIPE, landing, lake)
    corrected(landing)
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault(f"raise_error:{phase}@2"))
    with pytest.raises(InjectedFailure):
        take_in(PIPE, landing, lake)
    take_in(PIPE, landing, lake)
    find(PIPE, lake)
    right = Lake(tmp_path / "right")
    take_in(PIPE, as_if_right_at_once(landing, tmp_path / "at-once"), right)
    find(PIPE, right)
    assert said(lake) == said(right)
