"""The bench of transactions measures what it says: results that are equal, and conflicts where there should be some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import transactions as bench
from spark_jobs import stateful
from spark_jobs.runner import InlineRunner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Small: a thousand accounts, sixteen chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "ACCOUNTS", 1_000)
        patch.setattr(bench, "OPENING", 8_000)
        patch.setattr(bench, "SHARED", 10)
        patch.setattr(bench, "ROUNDS", 1)
        patch.setattr(stateful, "SMALLEST_CHUNK", 1_000)
        yield tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, bench.Measured]:
    log = bench.written(24_000, folder, 10_000)
    return {name: bench.measured(name, log, folder, InlineRunner()) for name in bench.WORKLOADS}


def test_every_workload_gives_the_same_both_ways(found: dict[str, bench.Measured]) -> None:
    assert {name for name, done in found.items() if not done.same} == set()


def test_conflicts_are_where_they_should_be(found: dict[str, bench.Measured]) -> None:
    assert found["covered"].tally.conflicts == 0
    assert found["contested"].tally.conflicts == 1
    assert found["contested"].tally.ahead < found["covered"].tally.ahead
