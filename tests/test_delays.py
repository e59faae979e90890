"""Delays of generated logs: section 7.2.1 of seed 001, jitter and bursts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.delays import Burst, Delay, late, parse_burst, parse_delay, times
from spark_jobs.errors import RepriseError
from spark_jobs.generate import Recipe, generate

NOBODY = np.random.default_rng(1)


def seen(delay: Delay, *since: int) -> list[int]:
    return late(np.array(since), np.full(len(since), delay.source), [delay], 0, NOBODY).tolist()


def test_the_example_of_section_7_2_1() -> None:
    """3 ms for what happens between 20 and 70 ms; what happens at 71 waits for 69, so that the source stays FIFO."""
    delay = Delay(0, 20, 50, 3)
    assert seen(delay, 19, 20, 69, 71, 72, 73) == [19, 23, 72, 72, 72, 73]


def test_figure_7_1_the_delay_grows_from_zero_and_ends() -> None:
    delay = Delay(1, 100, 40, 5, every=10)
    assert delay.of(np.array([99, 100, 109, 110, 125, 139, 140])).tolist() == [0, 0, 0, 5, 10, 15, 0]


def test_only_the_named_source_is_late() -> None:
    since, source = np.array([10, 11, 12, 13]), np.array([0, 1, 0, 1])
    assert late(since, source, [Delay(1, 0, 100, 7)], 0, NOBODY).tolist() == [10, 18, 12, 20]


def test_jitter_keeps_every_source_in_order() -> None:
    since, source = np.arange(1_000) * 10, np.random.default_rng(2).integers(0, 3, 1_000)
    found = late(since, source, [], 500, np.random.default_rng(3))
    assert (found >= since).all()
    assert (found - since).max() > 300
    for number in range(3):
        assert (np.diff(found[source == number]) >= 0).all()
    assert (np.diff(found) < 0).any(), "but not all of them together"


def test_a_burst_has_more_events_and_then_it_goes_on_as_before() -> None:
    found = times(300, 1.0, [Burst(100_000_000, 10_000_000, 10)])
    assert (np.diff(found) > 0).all()
    assert ((found >= 100_000_000) & (found < 110_000_000)).sum() == 100
    assert found[:3].tolist() == times(3, 1.0, []).tolist()
    assert found[-1] - found[-2] == pytest.approx(1_000_000, abs=1)


def test_words() -> None:
    assert parse_delay("s1 from 20 s for 50s by 3 s") == Delay(1, 20_000_000, 50_000_000, 3_000_000)
    assert parse_delay("s0 from 0 s for 1 h by 2 ms every 10 min") == Delay(0, 0, 3_600_000_000, 2_000, 600_000_000)
    assert parse_burst("from 1 min for 5 s times 2.5") == Burst(60_000_000, 5_000_000, 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s1 by 3 s", "is not a delay"),
        ("source1 from 1 s for 1 s by 3 s", "is not a delay"),
        ("s1 from 1 s for 1 parsec by 3 s", "unit 'parsec' is not known"),
        ("s1 from 1 s for 0 s by 3 s", "not a duration"),
    ],
)
def test_a_wrong_delay_is_refused(text: str, message: str) -> None:
    with pytest.raises(RepriseError, match=message):
        parse_delay(text)


def test_a_delay_of_a_source_that_is_not_there_is_refused() -> None:
    with pytest.raises(RepriseError, match="names source s2, but the 2 sources are s0 to s1"):
        Recipe(10, delays=(Delay(2, 0, 1, 1),))


def test_the_same_recipe_gives_the_same_log(tmp_path: Path) -> None:
    recipe = Recipe(
        500, delays=(parse_delay("s1 from 5 s for 20 s by 1 s every 5 s"),), jitter=200_000, bursts=(Burst(0, 1, 2),)
    )
    logs = []
    for name in ("a", "b"):
        generate(recipe, tmp_path / name)
        logs.append(
            pa.concat_tables([pq.read_table(f, partitioning=None) for f in sorted((tmp_path / name).rglob("*.parquet"))])
        )
    assert logs[0] == logs[1]
    delays = np.asarray(logs[0]["seen"].cast(pa.int64())) - np.asarray(logs[0]["time"].cast(pa.int64()))
    assert 3_000_000 <= delays.max() < 3_300_000
