"""The strategy `checkpoint`: shards keep the events they need again, and what is lost of that costs reading, nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.detect import Detected, Settings, detect
from spark_jobs.errors import RepriseError
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.recovery import checkpoint
from spark_jobs.runner import InlineRunner
from tests.conftest import PIPELINE, find, output
from tests.graphs import GRAPH
from tests.recovery.test_save_policies import Dying, Killed
from tests.test_detect import WINDOWED

BATCH = 250  # of 2,000 events
KEPT = "recovery: {strategy: checkpoint}\n"
SELDOM = "recovery: {strategy: checkpoint, save: {events: 500}}\n"


@pytest.fixture(autouse=True)
def forgetful() -> None:
    """Every test begins as a new process does."""
    checkpoint.forget()


def copy(ingested: Path, folder: Path, name: str = "lake") -> Lake:
    shutil.copytree(ingested, folder / name)
    return Lake(folder / name)


def restarted(lake: Lake, pipeline: Pipeline, shards: int = 3, attempt: Attempt | None = None) -> tuple[list[Detected], str]:
    """Detect in what could be a new process: nothing is remembered."""
    checkpoint.forget()
    lines: list[str] = []
    done = detect(pipeline, lake, InlineRunner(), attempt or Attempt(lake, "detect", lines.append), Settings(BATCH, shards))
    return done, "\n".join(lines)


def killed(lake: Lake, pipeline: Pipeline, batch: int, operator: str | None = None) -> None:
    with pytest.raises(Killed):
        restarted(lake, pipeline, attempt=Dying(lake, batch, operator))


def files(lake: Lake, operator: str = "probing") -> list[Path]:
    return sorted(checkpoint.folder_of(lake, operator, 1).glob("*.parquet"))


def read_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events of the residual are asked of files, read by read."""
    asked: list[int] = []
    from spark_jobs import tasks

    real = tasks.read_events

    def counting(*args: object, **named: object) -> pa.Table:
        residual, after = args[3], args[4]
        asked.append(int((np.asarray(residual) <= after).sum()))
        return real(*args, **named)

    monkeypatch.setattr(tasks, "read_events", counting)
    return asked


@pytest.mark.parametrize("recovery", [KEPT, SELDOM], ids=["every batch", "seldom"])
@pytest.mark.parametrize("text", [PIPELINE + WINDOWED, GRAPH], ids=["windows", "graph"])
def test_kills_anywhere_never_show_and_nothing_that_is_kept_is_read_again(
    text: str, recovery: str, ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds of operators: by key, by other columns, by windows, without either, over others, over several."""
    without, lake = copy(ingested, tmp_path, "without"), copy(ingested, tmp_path)
    find(parse_pipeline(text, "p.yaml"), without, 2_000)
    pipeline, random = parse_pipeline(text + recovery, "p.yaml"), Random(7)  # noqa: S311 - repeats itself
    asked = read_again(monkeypatch)
    for _ in range(3):
        try:
            restarted(lake, pipeline, attempt=Dying(lake, random.randint(1, 4), random.choice(pipeline.order)))
        except Killed:
            continue
    restarted(lake, pipeline)
    assert output(lake) == output(without)
    assert [row for row in read_history(lake) if row["kind"] == "repair"] == []
    assert sum(asked) == 0, "checkpoints, or memory, had everything"
    restored = [sum(row["detail"]["restored"]) for row in read_history(lake) if row["name"] == "detect.matched"]
    assert sum(restored) > 100, "nothing needed again would prove nothing"


def test_only_one_file_per_shard_of_two_savepoints_is_left(ingested: Path, tmp_path: Path) -> None:
    lake, pipeline = copy(ingested, tmp_path), parse_pipeline(PIPELINE + KEPT, "p.yaml")
    killed(lake, pipeline, 6)
    assert [int(file.name[:8]) for file in files(lake)] == [4, 4, 4, 5, 5, 5, 6, 6, 6], "it died before it could tidy up"
    restarted(lake, pipeline)
    assert [int(file.name[:8]) for file in files(lake)] == [7, 7, 7, 8, 8, 8]
    # Another strategy has no use for them.
    shutil.rmtree(lake.path("complex_events"))
    shutil.rmtree(lake.path("savepoints"))
    find(parse_pipeline(PIPELINE, "p.yaml"), lake, BATCH)
    assert files(lake) == []


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (Path.unlink, "it is gone"),
    "cut off": (lambda file: file.write_bytes(file.read_bytes()[:-40]), "do not fit the checksum"),
    "changed": (lambda file: file.write_bytes(file.read_bytes()[:-40] + bytes(40)), "do not fit the checksum"),
    "empty": (lambda file: file.write_bytes(b""), "do not fit the checksum"),
}


@pytest.mark.parametrize(
    ("text", "operator", "kind"),
    [*((PIPELINE, "probing", kind) for kind in DAMAGE), (PIPELINE + WINDOWED, "sliding", "changed"), (GRAPH, "echo", "gone")],
    ids=[*DAMAGE, "windows", "graph"],
)
def test_a_damaged_file_costs_its_shard_the_log_and_nobody_else(
    text: str, operator: str, kind: str, ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, lake = copy(ingested, tmp_path, "without"), copy(ingested, tmp_path)
    pipeline = parse_pipeline(text + KEPT, "p.yaml")
    find(parse_pipeline(text, "p.yaml"), without, 2_000)
    killed(lake, pipeline, 2, operator)
    newest = [file for file in files(lake, operator) if file.name.startswith("00000002")]
    assert len(newest) > 1 or operator == "echo"
    damage, message = DAMAGE[kind]
    damage(newest[-1])
    asked = read_again(monkeypatch)
    _, told = restarted(lake, pipeline)
    assert message in told
    assert f"{operator}: checkpoint {newest[-1].name}" in told
    assert output(lake) == output(without)
    repairs = [row for row in read_history(lake) if row["kind"] == "repair"]
    assert {(row["name"], row["operator"]) for row in repairs} == {("checkpoint", operator)}
    shards = [count for count in asked if count]
    assert len(shards) <= (1 if operator == "probing" else 2), "one shard, or the input of one"


def test_another_number_of_shards_reads_the_log(ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without, lake = copy(ingested, tmp_path, "without"), copy(ingested, tmp_path)
    pipeline = parse_pipeline(PIPELINE + KEPT, "p.yaml")
    find(parse_pipeline(PIPELINE, "p.yaml"), without, 2_000)
    killed(lake, pipeline, 4)
    asked = read_again(monkeypatch)
    restarted(lake, pipeline, shards=2)
    assert sum(count > 0 for count in asked) == 2, "both of them, once"
    assert output(lake) == output(without)
    assert [row for row in read_history(lake) if row["kind"] == "repair"] == []


def test_a_strategy_may_change_between_attempts(ingested: Path, tmp_path: Path) -> None:
    without, lake = copy(ingested, tmp_path, "without"), copy(ingested, tmp_path)
    plain, kept = parse_pipeline(PIPELINE, "p.yaml"), parse_pipeline(PIPELINE + KEPT, "p.yaml")
    find(plain, without, 2_000)
    for batch, pipeline in ((2, plain), (4, kept), (6, plain)):
        killed(lake, pipeline, batch)
    restarted(lake, kept)
    assert output(lake) == output(without)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = pa.table({"sn": np.arange(1_000)})
    monkeypatch.setattr(checkpoint, "REMEMBERED_BYTES", 3 * held.nbytes)
    paths = [checkpoint.keep(f"{tmp_path}/{k:08}-000001-000.parquet", held, write=k < 2) for k in range(5)]
    assert list(checkpoint._remembered) == paths[2:]
    found = checkpoint.restored(paths[:3])
    assert (found.events.num_rows, found.lost) == (1_000, ())  # each event once, from a file or from memory
    assert checkpoint.restored([f"{tmp_path}/00000009-000001-000.parquet"]) == checkpoint.Restored(), (
        "only remembered, elsewhere"
    )


def test_without_v_skip_it_is_refused(ingested: Path, tmp_path: Path) -> None:
    lake, pipeline = copy(ingested, tmp_path), parse_pipeline(PIPELINE + KEPT, "p.yaml")
    with pytest.raises(RepriseError, match="cannot do without v_skip"):
        detect(pipeline, lake, InlineRunner(), Attempt(lake, "detect"), Settings(BATCH, skip=False))
