"""Savepoints that are missing, cut off or changed: recovery falls back to what is sound, says so, and is never wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas import savepoints
from spark_jobs.detect import Settings, detect
from spark_jobs.errors import RepriseError, TrimmedEventNeeded
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.plan import recovery_plan
from spark_jobs.recovery.store import checksum
from spark_jobs.runner import InlineRunner
from spark_jobs.versions import registry, upgrade
from tests.conftest import find, output

BATCH, FIRST = 250, 1_500  # events; the last batches are left to be done after the damage


@pytest.fixture
def half_done(pipeline: Pipeline, ingested: Path, tmp_path: Path) -> tuple[Lake, list[dict[str, object]]]:
    """A lake in which six of eight batches are published, and what all eight give."""
    shutil.copytree(ingested, tmp_path / "whole")
    find(pipeline, Lake(tmp_path / "whole"), BATCH)
    shutil.copytree(ingested, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")

    class Enough(Exception):
        pass

    class Stopping(Attempt):
        def phase(self, name: str, batch: int, operator: str | None = None, **detail: Any) -> None:
            super().phase(name, batch, operator, **detail)
            if (name, batch) == ("detect.finished", FIRST // BATCH):
                raise Enough

    with pytest.raises(Enough):
        detect(pipeline, lake, InlineRunner(), Stopping(lake, "detect"), Settings(BATCH, 3))
    return lake, output(Lake(tmp_path / "whole"))


def file_of(lake: Lake, batch: int) -> Path:
    (file,) = Path(lake.path("savepoints")).glob(f"probing-1-{batch:08}-*.parquet")
    return file


def said(pipeline: Pipeline, lake: Lake) -> str:
    """Go on, and collect what the person who watches is told."""
    lines: list[str] = []
    detect(pipeline, lake, InlineRunner(), Attempt(lake, "detect", lines.append), Settings(BATCH, 3))
    return "\n".join(lines)


def rewrite(file: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    rows = change(pq.read_table(file, partitioning=None).to_pylist())
    pq.write_table(pa.Table.from_pylist(rows, savepoints.SCHEMA), file)


def flipped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    skip = bytearray(rows[1]["skip"])
    skip[-1] ^= 4
    return [rows[0], {**rows[1], "skip": bytes(skip)}, rows[2]]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (Path.unlink, "cannot be read"),
    "cut off file": (lambda file: file.write_bytes(file.read_bytes()[:-100]), "cannot be read"),
    "empty file": (lambda file: file.write_bytes(b""), "cannot be read"),
    "missing row": (lambda file: rewrite(file, lambda rows: rows[:2]), "no usable row of shard 2 of 3"),
    "flipped bit": (lambda file: rewrite(file, flipped), "its checksum does not fit"),
    "changed number": (
        lambda file: rewrite(file, lambda rows: [{**r, "seed_x": 7} for r in rows]),
        "its checksum does not fit",
    ),
    "no row": (lambda file: rewrite(file, lambda rows: []), "has no row for it"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_last_savepoint_is_made_anew_from_the_one_before(
    kind: str, pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]]
) -> None:
    lake, expected = half_done
    damage, message = DAMAGE[kind]
    damage(file_of(lake, 6))
    told = said(pipeline, lake)
    assert message in told
    assert "the savepoint of batch 6 is damaged" in told
    assert "from the savepoint of batch 5" in told
    assert output(lake) == expected
    assert [row for row in read_history(lake) if row["kind"] == "repair"]


@pytest.mark.parametrize("kind", ["missing row", "flipped bit"])
def test_one_shards_loss_replays_one_shard(
    kind: str, pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, expected = half_done
    DAMAGE[kind][0](file_of(lake, 6))
    runs: list[list[int]] = []
    real = InlineRunner.run

    def noted(self: InlineRunner, task: Any, payloads: Any) -> Any:
        runs.append([payload["shard"] for payload in payloads if "shard" in payload])
        return real(self, task, payloads)

    monkeypatch.setattr(InlineRunner, "run", noted)
    told = said(pipeline, lake)
    lost = 2 if kind == "missing row" else 1
    assert runs[0] == [lost], "the first job makes the lost shard anew, and no other"
    assert f"shard {lost} of 3 replayed" in told
    assert output(lake) == expected


def test_a_remade_savepoint_is_stored_and_not_made_twice(
    pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]]
) -> None:
    lake, expected = half_done
    file_of(lake, 6).unlink()
    log_end = Settings(BATCH, 3)

    class Enough(Exception):
        pass

    class Stopping(Attempt):
        def phase(self, name: str, batch: int, operator: str | None = None, **detail: Any) -> None:
            raise Enough  # before anything of the next batch is done

    with pytest.raises(Enough):
        detect(pipeline, lake, InlineRunner(), Stopping(lake, "detect"), log_end)
    assert "damaged" not in said(pipeline, lake)
    assert output(lake) == expected


def test_several_bad_savepoints_are_passed_over(pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]]) -> None:
    lake, expected = half_done
    file_of(lake, 6).unlink()
    rewrite(file_of(lake, 5), flipped)
    file_of(lake, 4).write_bytes(b"PAR1")
    assert "from the savepoint of batch 3" in said(pipeline, lake)
    assert output(lake) == expected


@pytest.mark.parametrize("how", ["all files", "whole table", "broken log"])
def test_without_any_savepoint_it_recomputes_from_the_log_and_says_so(
    how: str, pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]]
) -> None:
    lake, expected = half_done
    if how == "all files":
        for batch in range(1, 7):
            file_of(lake, batch).write_bytes(b"")
    elif how == "whole table":
        shutil.rmtree(lake.path("savepoints"))
    else:
        (Path(lake.path("savepoints")) / "_delta_log" / f"{0:020}.json").write_text("{")
        with pytest.raises(RepriseError, match=r"table 'savepoints' cannot be (opened|written)"):
            said(pipeline, lake)
        assert output(lake) == [row for row in expected if row["ordinal"] <= len(output(lake))], "nothing wrong was published"
        return
    assert "the beginning, as no savepoint is left" in said(pipeline, lake)
    assert output(lake) == expected


def test_another_number_of_shards_makes_it_anew_too(
    pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]]
) -> None:
    lake, expected = half_done
    file_of(lake, 6).unlink()
    find(pipeline, lake, BATCH, shards=2)
    assert output(lake) == expected


def test_what_was_trimmed_cannot_be_made_anew(pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]]) -> None:
    from spark_jobs.trim import trim

    lake, _ = half_done
    before = output(lake)
    assert trim(pipeline, lake, Attempt(lake, "trim"))[0].removed > 0
    for batch in range(1, 7):
        file_of(lake, batch).unlink()
    with pytest.raises(TrimmedEventNeeded, match=r"the savepoint of operator 'probing', batch 6, is damaged.*--again probing"):
        said(pipeline, lake)
    assert output(lake) == before
    graph = Graph(pipeline, lake)
    (plan,) = recovery_plan(graph, registry(lake).matching(pipeline))
    assert "cannot be made anew" in plan.note
    upgrade(lake, pipeline, graph.admit, FIRST, ["probing"])
    said(pipeline, lake)
    assert [row for row in output(lake) if row["version"] == 1] == before


def test_a_published_output_that_does_not_fit_the_log_is_refused(
    pipeline: Pipeline, half_done: tuple[Lake, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay gives another number of complex events than were published: one of the two is damaged."""
    from spark_jobs import detect as module

    lake, _ = half_done
    shutil.rmtree(lake.path("savepoints"))
    real = module.committed_of

    def one_more(*args: Any) -> Any:
        found = real(*args)
        return found and type(found)(found.batch, found.attempt, found.at, found.seed._replace(ordinal=found.seed.ordinal + 1))

    monkeypatch.setattr(module, "committed_of", one_more)
    with pytest.raises(RepriseError, match=r"were published\. The log or the output is damaged too"):
        said(pipeline, lake)


def test_a_checksum_sees_every_column() -> None:
    row: dict[str, Any] = {}
    for field in savepoints.SCHEMA:
        row[field.name] = "a" if pa.types.is_string(field.type) else b"a" if pa.types.is_binary(field.type) else 1
    sums = {checksum(row)}
    for field in savepoints.SCHEMA:
        if field.name != "checksum":
            other: Any = "b" if pa.types.is_string(field.type) else b"b" if pa.types.is_binary(field.type) else 2
            sums.add(checksum({**row, field.name: other}))
    assert len(sums) == len(savepoints.SCHEMA)
