"""Verification since the last valid verdict: it finds all kinds of damage in what is new, and does not read what is old."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs import ingest
from spark_jobs.generate import Recipe, generate
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.trim import trim, vacuum
from spark_jobs.verify import chain, comparison, job
from spark_jobs.verify.expectations import Check
from spark_jobs.verify.job import FULL, INCREMENTAL, Verification, verify
from spark_jobs.verify.verdict import Verdict
from tests.conftest import PIPELINE, find, take_in
from tests.graphs import GRAPH


class Trusting:
    """In the place of Great Expectations, which takes seconds to load; tests/verify/test_job.py has it."""

    def __init__(self, *files: Path) -> None: ...

    def check(self, *_: object, **__: object) -> list[Check]:
        return []

    def __enter__(self) -> Trusting:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True, scope="module")
def _trusting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "Suite", Trusting)
        patch.setattr(ingest, "Suite", Trusting)
        yield


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    landing = tmp_path_factory.mktemp("landing") / "log"
    generate(Recipe(3_000, types=4, keys=20, rate=0.2, sources=1), landing)
    return sorted({file.parent for file in landing.rglob("*.parquet")})


@pytest.fixture(scope="module")
def halves(partitions: list[Path], tmp_path_factory: pytest.TempPathFactory, _trusting: None) -> tuple[Path, Path]:
    """A lake after a valid verdict on half of the log, and the same lake after all of it was detected."""
    folder = tmp_path_factory.mktemp("halves")
    pipeline, lake = parse_pipeline(PIPELINE, "p.yaml"), Lake(folder / "half")
    further(pipeline, lake, partitions[:2], folder / "landing")
    (verified,) = verify(pipeline, lake)
    assert (verified.verdict, verified.mode) == (Verdict.VALID, FULL)
    shutil.copytree(lake.root, folder / "whole")
    further(pipeline, Lake(folder / "whole"), partitions, folder / "landing")
    return folder / "half", folder / "whole"


def further(pipeline: Pipeline, lake: Lake, partitions: list[Path], landing: Path, batch_events: int = 300) -> None:
    for partition in partitions:
        target = landing / Path(*partition.parts[-3:])
        if not target.exists():
            shutil.copytree(partition, target)
    take_in(pipeline, landing, lake)
    find(pipeline, lake, batch_events)


@pytest.fixture
def lake(halves: tuple[Path, Path], tmp_path: Path) -> Lake:
    shutil.copytree(halves[1], tmp_path / "lake")
    return Lake(tmp_path / "lake")


def covered(lake: Lake) -> int:
    """Up to which ordinal there is a valid verdict."""
    return max(row["to_ordinal"] for row in lake.read("verdicts").to_pylist() if row["verdict"] == "valid")


def broken(verified: Verification) -> dict[str, int]:
    return {f.property: f.count for f in verified.findings if f.verdict is Verdict.INVALID}


def notes(verified: Verification) -> str:
    return " ".join(finding.note for finding in verified.findings)


def test_only_what_was_published_since_is_compared(lake: Lake, pipeline: Pipeline) -> None:
    before = covered(lake)
    (verified,) = verify(pipeline, lake)
    assert (verified.verdict, verified.mode) == (Verdict.VALID, INCREMENTAL)
    total = lake.read("complex_events").num_rows
    assert (verified.from_ordinal, verified.to_ordinal, verified.matches) == (before + 1, total, total)
    assert 0 < before < total
    assert (verified.from_sn, verified.to_sn) == (min(lake.read("verdicts")["to_sn"].to_pylist()) + 1, 3_000)
    (anew,) = verify(pipeline, lake, full=True)
    assert (anew.verdict, anew.mode, anew.from_ordinal, anew.matches) == (Verdict.VALID, FULL, 1, total)
    row = max(lake.read("verdicts").to_pylist(), key=lambda row: row["at"])
    assert (row["mode"], row["from_ordinal"], row["to_ordinal"], row["to_sn"]) == (FULL, 1, total, 3_000)


def test_what_is_old_is_not_read(lake: Lake, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the covered files, of which even the bytes may be other ones, nor the events of the log before the base."""
    read: list[str] = []
    stretches, events = comparison._batches, chain.read_events

    def noting(stretch: dict[str, Any], said: Any) -> Any:
        read.append(stretch["path"])
        return stretches(stretch, said)

    def noting_events(files: Any, schema: Any, columns: Any, residual: Any, after: int, end: int, **rest: Any) -> Any:
        assert after >= base
        return events(files, schema, columns, residual, after, end, **rest)

    base = lake.read("verdicts").to_pylist()[0]["to_sn"]
    monkeypatch.setattr(comparison, "_batches", noting)
    monkeypatch.setattr(chain, "read_events", noting_events)
    old = [
        file
        for file in Path(lake.path("complex_events")).glob("operator=*/**/*.parquet")
        if first_ordinal(file) <= covered(lake)
    ]
    for file in old:
        file.write_bytes(b"x" * file.stat().st_size)
    (verified,) = verify(pipeline, lake)
    assert verified.verdict is Verdict.VALID
    assert len(old) > 2
    assert not {str(file) for file in old} & set(read)
    assert any("/complex_events/" in path for path in read)


def first_ordinal(file: Path) -> int:
    return int(file.name.split("-")[1])


def test_nothing_new_is_valid_and_reads_nothing(lake: Lake, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(pipeline, lake)
    monkeypatch.setattr(comparison, "_batches", None)
    (verified,) = verify(pipeline, lake)
    assert (verified.verdict, verified.mode) == (Verdict.VALID, INCREMENTAL)
    assert verified.from_ordinal == verified.to_ordinal + 1


# Damage

Damage = Callable[[Lake, int], None]


def new_row(lake: Lake, **changed: Any) -> pa.Table:
    rows = lake.read("complex_events")
    last = max(rows.to_pylist(), key=lambda row: row["ordinal"])
    return pa.Table.from_pylist([{**last, **changed}], rows.schema)


def added(lake: Lake, row: pa.Table) -> None:
    write_deltalake(lake.path("complex_events"), row, mode="append")


def lose(lake: Lake, old: int) -> None:
    DeltaTable(lake.path("complex_events")).delete(f"ordinal = {old + 3}")


def invent(lake: Lake, old: int) -> None:
    added(lake, new_row(lake, sns=[1, 2, 3], ordinal=10_000, x=10_000, batch=1_000))


def say_twice(lake: Lake, old: int) -> None:
    added(lake, new_row(lake))


def say_again_what_is_old(lake: Lake, old: int) -> None:
    rows = lake.read("complex_events").to_pylist()
    (row,) = [row for row in rows if row["ordinal"] == old]
    added(lake, pa.Table.from_pylist([row], lake.read("complex_events").schema))


def renumber(lake: Lake, old: int) -> None:
    DeltaTable(lake.path("complex_events")).update(predicate=f"ordinal = {old + 3}", updates={"x": "x + 1"})


def change_a_measure(lake: Lake, old: int) -> None:
    DeltaTable(lake.path("complex_events")).update(predicate=f"ordinal = {old + 3}", updates={"loss": "loss + 1"})


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lose, {"no false negatives": 1, "completeness": 1}),
        (invent, {"no false positives": 1}),
        (say_twice, {"no duplicates": 1}),
        (say_again_what_is_old, {"no duplicates": 1}),
        (renumber, {"no false order": 1}),
        (change_a_measure, {"no false positives": 1}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_every_kind_of_damage_in_the_new_part_is_found(
    damage: Damage, found: dict[str, int], lake: Lake, pipeline: Pipeline
) -> None:
    old = covered(lake)
    damage(lake, old)
    (verified,) = verify(pipeline, lake)
    assert (broken(verified), verified.verdict, verified.mode) == (found, Verdict.INVALID, INCREMENTAL), notes(verified)
    assert verified.from_ordinal == old + 1
    (again,) = verify(pipeline, lake)
    assert (again.verdict, again.from_ordinal) == (Verdict.INVALID, old + 1), "it is no base to go on from"


def test_old_rows_that_are_gone_are_found(lake: Lake, pipeline: Pipeline) -> None:
    """Their file was written anew without them, so everything is compared anew."""
    DeltaTable(lake.path("complex_events")).delete("ordinal = 3")
    (verified,) = verify(pipeline, lake)
    assert (broken(verified), verified.mode) == ({"no false negatives": 1, "completeness": 1}, FULL)


def test_a_base_that_was_found_damaged_is_none(lake: Lake, pipeline: Pipeline) -> None:
    """Bytes changed in place are not seen by a look at names and sizes; a full comparison sees them."""
    verify(pipeline, lake)
    file = min(Path(lake.path("complex_events")).glob("operator=*/**/*.parquet"), key=first_ordinal)
    size = file.stat().st_size
    file.write_bytes(b"x" * size)
    (full,) = verify(pipeline, lake, full=True)
    assert full.verdict is Verdict.UNKNOWN
    assert "do not fit the checksum in its name" in notes(full)


def test_after_an_invalid_verdict_on_everything_nobody_goes_on_from_an_older_one(lake: Lake, pipeline: Pipeline) -> None:
    verify(pipeline, lake)
    changed = DeltaTable(lake.path("complex_events"))
    changed.update(predicate="ordinal = 3", updates={"loss": "loss + 1"})
    (full,) = verify(pipeline, lake, full=True)
    assert full.verdict is Verdict.INVALID
    changed.update(predicate="ordinal = 3", updates={"loss": "loss - 1"})
    (healed,) = verify(pipeline, lake)
    assert (healed.verdict, healed.mode) == (Verdict.VALID, FULL)


def test_a_covered_file_with_another_size_is_unknown(lake: Lake, pipeline: Pipeline) -> None:
    file = min(Path(lake.path("complex_events")).glob("operator=*/**/*.parquet"), key=first_ordinal)
    file.write_bytes(file.read_bytes()[:100])
    (verified,) = verify(pipeline, lake)
    assert verified.verdict is Verdict.UNKNOWN
    assert "when a verdict covered it" in notes(verified)


# A log that was trimmed


def trimmed(pipeline: Pipeline, lake: Lake) -> int:
    done = trim(pipeline, lake, Attempt(lake, "trim"))
    vacuum(lake, 0)
    return done[0].removed


@pytest.mark.parametrize("text", [PIPELINE, GRAPH], ids=["one operator", "graph"])
def test_trimmed_after_every_valid_verdict_it_stays_verified(text: str, partitions: list[Path], tmp_path: Path) -> None:
    """Of a graph every level goes on from what it kept itself, those that match more than plain sequences too."""
    pipeline, lake = parse_pipeline(text, "p.yaml"), Lake(tmp_path / "lake")
    removed = 0
    for end in range(1, len(partitions) + 1):
        further(pipeline, lake, partitions[:end], tmp_path / "landing", 1_500)
        done = verify(pipeline, lake)
        assert {v.operator: v.verdict for v in done} == dict.fromkeys(pipeline.order, Verdict.VALID)
        assert {v.mode for v in done} == ({FULL} if end == 1 else {INCREMENTAL})
        removed += trimmed(pipeline, lake)
    assert removed > 2_000
    assert len(list((lake.root / "_reference").glob("*/*/link.json"))) == len(pipeline.operators), "older links are forgotten"
    (first, *_) = verify(pipeline, lake, full=True)
    assert first.verdict is Verdict.VALID or "the log was trimmed up to event" in notes(first)


def test_damage_after_a_trim_is_found_too(lake: Lake, pipeline: Pipeline, halves: tuple[Path, Path]) -> None:
    verify(pipeline, lake)
    trimmed(pipeline, lake)
    DeltaTable(lake.path("complex_events")).delete("ordinal = 3")
    (verified,) = verify(pipeline, lake)
    assert verified.verdict is Verdict.INVALID
    assert "1 are gone" in notes(verified)


def test_covered_files_that_were_written_anew_after_a_trim_are_unknown(lake: Lake, pipeline: Pipeline) -> None:
    """They hold as many rows, and there is nothing left to hold these against."""
    verify(pipeline, lake)
    trimmed(pipeline, lake)
    DeltaTable(lake.path("complex_events")).update(predicate="ordinal = 3", updates={"loss": "loss + 1"})
    (verified,) = verify(pipeline, lake)
    assert verified.verdict is Verdict.UNKNOWN
    assert "lie in files written since" in notes(verified)


def test_trimmed_before_it_was_verified_is_unknown(lake: Lake, pipeline: Pipeline) -> None:
    trimmed(pipeline, lake)
    (verified,) = verify(pipeline, lake)
    assert verified.verdict is Verdict.UNKNOWN
    assert "the log was trimmed up to event" in notes(verified)


def test_a_queue_that_is_trimmed_stays_verified(partitions: list[Path], tmp_path: Path) -> None:
    pipeline = parse_pipeline(GRAPH.replace("  rising:\n", "  rising:\n    keep: false\n"), "p.yaml")
    lake = Lake(tmp_path / "lake")
    for end in (2, 3, 5):
        further(pipeline, lake, partitions[:end], tmp_path / "landing", 1_500)
        done = verify(pipeline, lake)
        assert {v.operator: v.verdict for v in done} == dict.fromkeys(pipeline.order, Verdict.VALID), [notes(v) for v in done]
        trimmed(pipeline, lake)


# What the reference kept


def test_a_wrong_savepoint_cannot_vouch_for_itself(lake: Lake, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference reads no savepoint, so it does not notice that all of them are gone."""
    shutil.rmtree(lake.path("savepoints"))
    (verified,) = verify(pipeline, lake)
    assert (verified.verdict, verified.mode) == (Verdict.VALID, INCREMENTAL)


@pytest.mark.parametrize("pattern", ["*/*/link.json", "*/*/*.npz", "*/covered-*.json"])
def test_without_what_was_kept_everything_is_compared_anew(pattern: str, lake: Lake, pipeline: Pipeline) -> None:
    for file in (lake.root / "_reference").glob(pattern):
        file.unlink()
    (verified,) = verify(pipeline, lake)
    assert (verified.verdict, verified.mode) == (Verdict.VALID, FULL)


def test_another_definition_does_not_go_on_from_it(lake: Lake) -> None:
    rows = [json.dumps(row, default=str) for row in lake.read("verdicts").to_pylist()]
    other = parse_pipeline(PIPELINE.replace("amount > 5", "amount > 6"), "p.yaml")
    (verified,) = verify(other, lake)
    assert verified.verdict is Verdict.UNKNOWN
    assert "as the pipeline file defines it is not in the lake" in notes(verified)
    assert len(lake.read("verdicts")) == len(rows) + 1


def test_a_comparison_that_crashes_is_unknown(lake: Lake, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def crashing(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(job, "compare", crashing)
    (verified,) = verify(pipeline, lake)
    assert verified.verdict is Verdict.UNKNOWN
    assert "the comparison failed: ZeroDivisionError: a bug" in notes(verified)


def test_a_table_of_an_earlier_release_is_no_base_and_no_hindrance(lake: Lake, pipeline: Pipeline) -> None:
    rows = lake.read("verdicts")
    names = rows.column_names[: rows.column_names.index("fingerprint")]
    shutil.rmtree(lake.path("verdicts"))
    write_deltalake(lake.path("verdicts"), rows.select(names))
    (verified,) = verify(pipeline, lake)
    assert (verified.verdict, verified.mode) == (Verdict.VALID, FULL)
    assert [row["mode"] for row in lake.read("verdicts").to_pylist()].count(None) == 1


def test_the_reference_has_its_own_copies(lake: Lake) -> None:
    """What is kept is what unfinished runs have bound, not the log."""
    (folder,) = [file.parent for file in (lake.root / "_reference").glob("*/*/link.json")]
    kept = sum(pa.ipc.open_file(file).read_all().num_rows for file in folder.glob("kept-*.events"))
    read = json.loads((folder / "link.json").read_text())["read"]
    assert 0 < kept < read / 10
    assert sum(pq.read_metadata(part).num_rows for part in folder.glob("part-*")) == covered(lake)


@pytest.mark.parametrize("pattern", ["A -> B", "A+ -> B"])
def test_a_part_of_the_keys_may_bring_nothing_new(pattern: str, tmp_path: Path) -> None:
    """And still have something open: what was kept of them is put together with no events at all."""
    text = "name: few\nsource: {columns: {ts: ts, type: type, key: key}, attributes: {}}\noperators:\n"
    text += f"  found: {{partition_by: key, pattern: {pattern}, define: {{A: type = 'a', B: type = 'b'}}}}\n"
    pipeline, lake = parse_pipeline(text, "few.yaml"), Lake(tmp_path / "lake")
    for hour, rows in ((7, "a,x a,y a,z"), (8, "b,x"), (9, "b,y b,z")):
        folder = tmp_path / "landing" / "date=2026-01-31" / f"hour={hour:02}" / "source=shop"
        folder.mkdir(parents=True)
        lines = [f"2026-01-31T{hour:02}:00:{second:02},{row}" for second, row in enumerate(rows.split())]
        (folder / "rows.csv").write_text("\n".join(["ts,type,key", *lines]) + "\n")
        take_in(pipeline, tmp_path / "landing", lake)
        find(pipeline, lake)
        (verified,) = verify(pipeline, lake)
        assert verified.verdict is Verdict.VALID, notes(verified)
    assert verified.mode == INCREMENTAL
    assert verified.matches == 3
