"""The commit protocol: exactly one attempt publishes a step."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from spark_jobs.errors import CommitStateUnknown, FencedAttempt
from spark_jobs.lake.aside import Aside
from spark_jobs.lake.commit import Claim, add_file, claim, renewed

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> str:
    DeltaTable.create(str(tmp_path), SCHEMA)
    return str(tmp_path)


def file_with(table: str, value: int, name: str) -> object:
    pq.write_table(pa.table({"v": [value]}), f"{table}/{name}")
    return add_file(table, name, 1)


def values(table: str) -> list[int]:
    return sorted(v for uri in DeltaTable(table).file_uris() for v in pq.read_table(uri)["v"].to_pylist())


def test_steps_are_published_one_after_the_other(table: str) -> None:
    place = claim(DeltaTable(table), "op")
    for step in (1, 2, 3):
        place.publish([file_with(table, step, f"{step}.parquet")], SCHEMA, attempt=7)
    again = claim(DeltaTable(table), "op")
    assert (again.step, again.attempt) == (3, 7)
    assert values(table) == [1, 2, 3]


def test_a_zombie_cannot_publish_after_its_retry(table: str) -> None:
    zombie, retry = claim(DeltaTable(table), "op"), claim(DeltaTable(table), "op")
    retry.publish([file_with(table, 2, "retry.parquet")], SCHEMA, attempt=2)
    with pytest.raises(FencedAttempt, match="attempt 1 lost its place to attempt 2"):
        zombie.publish([file_with(table, 1, "zombie.parquet")], SCHEMA, attempt=1)
    assert values(table) == [2]


def test_a_zombie_that_reads_the_table_again_is_still_fenced(table: str) -> None:
    """A retry that overtook by several steps between two publishes of the zombie."""
    zombie = claim(DeltaTable(table), "op")
    zombie.publish([], SCHEMA, attempt=1)
    retry = claim(DeltaTable(table), "op")
    retry.publish([], SCHEMA, attempt=2)
    retry.publish([], SCHEMA, attempt=2)
    with pytest.raises(FencedAttempt):
        zombie.publish([], SCHEMA, attempt=1)
    assert claim(DeltaTable(table), "op").step == 3


def test_without_the_fence_the_zombie_would_publish_a_duplicate(table: str) -> None:
    """The negative control: a claim that skips the check is accepted by Delta, and the event is there twice."""
    claim(DeltaTable(table), "op").publish([file_with(table, 1, "a.parquet")], SCHEMA, attempt=1)
    unchecked = Claim(DeltaTable(table), "op", step=0, attempt=0, renew=lambda _: DeltaTable(table))
    unchecked.publish([file_with(table, 1, "b.parquet")], SCHEMA, attempt=2)
    assert values(table) == [1, 1]


def test_another_operator_in_the_same_table_is_no_rival(table: str) -> None:
    mine, theirs = claim(DeltaTable(table), "mine"), claim(DeltaTable(table), "theirs")
    theirs.publish([file_with(table, 10, "theirs.parquet")], SCHEMA, attempt=1)
    mine.publish([file_with(table, 20, "mine.parquet")], SCHEMA, attempt=2)
    assert values(table) == [10, 20]


class Handle:
    """A table handle whose answers get lost."""

    def __init__(self, table: str, *, after_commit: bool) -> None:
        self._real = DeltaTable(table)
        self.table_uri = self._real.table_uri
        self._after_commit = after_commit

    def create_write_transaction(self, *args: object, **kwargs: object) -> None:
        if self._after_commit:
            self._real.create_write_transaction(*args, **kwargs)
        raise OSError("connection reset")


def test_an_answer_lost_after_the_commit_is_found_by_looking(table: str) -> None:
    place = Claim(Handle(table, after_commit=True), "op", 0, 0, lambda _: DeltaTable(table))
    place.publish([file_with(table, 5, "a.parquet")], SCHEMA, attempt=4)
    assert values(table) == [5]
    place.publish([file_with(table, 6, "b.parquet")], SCHEMA, attempt=4)
    assert values(table) == [5, 6]


def test_an_answer_lost_before_the_commit_is_not_retried_blindly(table: str) -> None:
    place = Claim(Handle(table, after_commit=False), "op", 0, 0, lambda _: DeltaTable(table))
    with pytest.raises(CommitStateUnknown, match="connection reset"):
        place.publish([file_with(table, 5, "a.parquet")], SCHEMA, attempt=4)
    assert values(table) == []


def test_a_stale_handle_is_what_makes_the_fence_hold(table: str) -> None:
    """What the protocol relies on in deltalake: with no retries, a stale handle cannot commit."""
    stale = DeltaTable(table)
    claim(DeltaTable(table), "op").publish([], SCHEMA, attempt=1)
    from deltalake import CommitProperties

    with pytest.raises(CommitFailedError):
        stale.create_write_transaction([], "append", SCHEMA, [], commit_properties=CommitProperties(max_commit_retries=0))


# What is done beside the work


@pytest.mark.parametrize("looked", ["before the retry", "after the retry"])
def test_a_zombie_that_looks_at_its_own_commit_later_is_fenced_all_the_same(table: str, looked: str) -> None:
    zombie, now = claim(DeltaTable(table), "op", renewed), Event()
    zombie.aside = Aside()
    zombie.aside.do(now.wait)  # what comes after it waits, too
    zombie.publish([], SCHEMA, attempt=1)
    if looked == "before the retry":
        now.set()
        zombie.settle()
    claim(DeltaTable(table), "op").publish([file_with(table, 2, "retry.parquet")], SCHEMA, attempt=2)
    now.set()
    with pytest.raises(FencedAttempt, match="attempt 1 lost its place to attempt 2"):
        zombie.publish([file_with(table, 1, "zombie.parquet")], SCHEMA, attempt=1)
    assert values(table) == [2]


def test_delta_checkpoints_are_made_beside_the_commits(table: str) -> None:
    place, aside = claim(DeltaTable(table), "op", renewed), Aside()
    place.aside = aside
    for step in range(1, 26):
        place.publish([file_with(table, step, f"{step}.parquet")], SCHEMA, attempt=1)
        aside.wait()  # or it would be one of a later commit
    found = sorted(int(file.name.split(".")[0]) for file in Path(table, "_delta_log").glob("*.checkpoint.parquet"))
    assert found == [10, 20]
    assert values(table) == list(range(1, 26))
    assert place.handle.version() == 25
