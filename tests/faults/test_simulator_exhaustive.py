"""Every phase, every kind of crash, two attempts around every moment, in the real protocol over tables in memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from spark_jobs.faults.phases import DETECT_PHASES
from spark_jobs.lake.commit import Claim
from spark_jobs.simulator.schedules import BATCHES, Simulated, exhaustive, replay, simulate
from spark_jobs.simulator.table import Table
from spark_jobs.simulator.world import BREAK, CRASH, DENY, LATE, LOSE, ORPHAN, PAUSE, RAISE

# Of the 5,000 random schedules; the others are in test_simulator_random.py, which the other worker runs.
SEEDS = range(1500)


@pytest.fixture(scope="module")
def all_of_them() -> list[Simulated]:
    return list(exhaustive())


def test_no_schedule_leads_to_an_anomaly(all_of_them: list[Simulated]) -> None:
    assert [str(done) for done in all_of_them if done.anomalies] == []
    assert len(all_of_them) > 4_000
    assert all(done.complex_events for done in all_of_them)


@pytest.mark.parametrize("kind", [CRASH, RAISE, PAUSE])
def test_every_phase_of_the_first_a_middle_and_the_last_batch_is_struck(kind: str, all_of_them: list[Simulated]) -> None:
    for phase in DETECT_PHASES:
        for batch in range(1, BATCHES + 1):
            assert any(f"1:{kind} {phase}@{batch}" in done.said for done in all_of_them), f"{kind} at {phase}@{batch}"


@pytest.mark.parametrize("kind", [LOSE, BREAK, LATE, ORPHAN, DENY])
def test_every_batch_meets_every_failure_of_the_network(kind: str, all_of_them: list[Simulated]) -> None:
    for batch in range(1, BATCHES + 1):
        assert any(f"1:{kind}" in done.said and f"commit.requested@{batch}" in done.said for done in all_of_them) or any(
            f"1:{kind} commit.answered@{batch}" in done.said for done in all_of_them
        )


def test_attempts_end_in_every_way_they_can(all_of_them: list[Simulated]) -> None:
    ends = {end for done in all_of_them for end in done.said.rsplit("; ", 1)[1].split()}
    assert ends == {"done", "crashed", "raised", "fenced", "unknown"}


def test_random_schedules_lead_to_no_anomaly() -> None:
    assert [str(done) for done in map(simulate, SEEDS) if done.anomalies] == []


# The simulator itself


def test_a_schedule_repeats_itself_by_its_name() -> None:
    first = simulate(77)
    assert replay(first.name) == first
    assert replay("schedule 1000") == replay("schedule 1000")


def test_a_failing_schedule_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a zombie that is not fenced publishes, and the line that says so runs it again."""
    monkeypatch.setattr(Claim, "_renewed", _never_fenced)
    failing = next(done for done in exhaustive() if done.anomalies)
    assert f"replay('{failing.name}')" in str(failing)
    assert replay(failing.name) == failing


def _never_fenced(self: Claim, step: int, attempt: int) -> bool:
    self.handle = self.renew(self.handle)
    return self.handle.transaction_version(f"{self.app}#attempt") == attempt


def test_a_table_that_accepts_stale_handles_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lax(Table):
        def commit(self, handle: Any, files: Any, properties: Any) -> None:
            super().commit(self.open(), files, properties)

    monkeypatch.setattr("spark_jobs.simulator.world.Table", Lax)
    found = [anomaly for done in map(simulate, range(100)) for anomaly in done.anomalies]
    assert any("duplicates" in anomaly for anomaly in found)
    assert any("published batch" in anomaly for anomaly in found)


SCHEMA = pa.schema([("v", pa.int64())])


@pytest.mark.parametrize("seed", range(12))
def test_tables_in_memory_commit_as_delta_does(seed: int, tmp_path: Path) -> None:
    """The same handles, commits and retries on both, in random order: the same ones fail, and the same numbers stand."""
    chance = random.Random(seed)  # noqa: S311 - repeats itself
    DeltaTable.create(str(tmp_path), SCHEMA)
    table = Table(SCHEMA)
    handles: list[tuple[Any, Any]] = [(DeltaTable(str(tmp_path)), table.open())]
    for _ in range(14):
        if chance.random() < 0.4:
            handles.append((DeltaTable(str(tmp_path)), table.open()))
            continue
        pair, apps = chance.choice(handles[-3:]), chance.sample("abc", chance.randint(1, 2))
        numbers, retries = {app: chance.randint(1, 3) for app in apps}, chance.choice((0, 0, 5))
        assert _commit(pair[0], numbers, retries) == _commit(pair[1], numbers, retries)
        assert pair[0].version() == pair[1].version()
        now = DeltaTable(str(tmp_path)), table.open()
        assert [now[0].transaction_version(app) for app in "abc"] == [now[1].transaction_version(app) for app in "abc"]


def _commit(handle: Any, numbers: dict[str, int], retries: int) -> bool:
    transactions = [Transaction(app, number) for app, number in numbers.items()]
    properties = CommitProperties(app_transactions=transactions, max_commit_retries=retries)
    try:
        handle.create_write_transaction([], "append", SCHEMA, [], commit_properties=properties)
    except CommitFailedError:
        return False
    return True
