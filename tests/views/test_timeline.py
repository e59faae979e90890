"""The time line: what happened, in as many buckets as asked for; looking at it writes nothing and costs little."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from spark_jobs.errors import RepriseError
from spark_jobs.lake.history import Attempt, fold, read_history
from spark_jobs.lake.journals import journal
from spark_jobs.lake.tables import Lake
from spark_jobs.views.attempts import SILENT_MICROSECONDS, attempts_in
from spark_jobs.views.records import records_of
from spark_jobs.views.timeline import MOST_BUCKETS, timeline
from tests.views.lakes import BEGAN, SECOND, history_of, lake_with


def now() -> int:
    return time.time_ns() // 1000


def files_below(folder: Path) -> set[tuple[str, int]]:
    return {(str(file), file.stat().st_mtime_ns) for file in folder.rglob("*")}


def killed_and_resumed(lake: Lake) -> None:
    """Two batches, a kill in the third, a retry that replays and publishes it, and a zombie that is fenced."""
    first = Attempt(lake, "detect")
    for batch in (1, 2):
        first.phase("detect.started", batch, "probing", start_sn=0, end_sn=10, carried=0)
        first.phase("detect.saved", batch, "probing", bytes=100)
        first.record("commit", "complex_events", batch, "probing", matches=4, events=10)
    first.phase("detect.started", 3, "probing", start_sn=20, end_sn=30, carried=2)
    first.record("fault", "kill_driver", 3, "probing", phase="detect.saved", fault="kill_driver:detect.saved@3")
    second = Attempt(lake, "detect")
    second.record("replay", "residual", 2, "probing", events=2, processed=20)
    second.phase("detect.started", 3, "probing", start_sn=20, end_sn=30, carried=2)
    second.phase("detect.saved", 3, "probing", bytes=0)
    second.record("commit", "complex_events", 3, "probing", matches=1, events=10)
    second.record("end", "done")
    third = Attempt(lake, "detect")
    third.record("fence", "complex_events", reason="lost its place")
    third.record("end", "error")


def test_kills_replays_and_fences_stand_where_they_happened(lake: Lake) -> None:
    killed_and_resumed(lake)
    seen = timeline(records_of(lake), now())
    assert [(mark["kind"], mark["attempt"]) for mark in seen["marks"]] == [
        ("fault", 1),
        ("kill", 1),
        ("replay", 2),
        ("fence", 3),
    ]
    assert seen["marks"][2]["text"] == "resumes after batch 2, replays 2 of 20 processed events"
    assert [(a["attempt"], a["ended"], a["batches"]) for a in seen["attempts"]] == [
        (1, "killed", 2),
        (2, "done", 1),
        (3, "fenced", 0),
    ]
    assert [(b["batch"], b["attempt"], b["came"], b["saved"]) for b in seen["batches"]] == [
        (1, 1, "published", True),
        (2, 1, "published", True),
        (3, 1, "lost", False),
        (3, 2, "published", False),  # its policy was not due: the phase is reached, nothing is stored
    ]
    assert sum(bucket["matches"] for bucket in seen["buckets"]) == 9
    assert sum(bucket["savepoints"] for bucket in seen["buckets"]) == 2


def test_looking_sees_what_is_not_folded_yet_and_writes_nothing(lake: Lake) -> None:
    killed_and_resumed(lake)
    before = files_below(lake.root)
    assert records_of(lake).num_rows == 18
    assert files_below(lake.root) == before


def test_records_are_the_same_before_and_after_folding_and_grow_with_the_journals(lake: Lake) -> None:
    attempt = Attempt(lake, "detect")
    attempt.record("gap", "before")
    assert records_of(lake).num_rows == 2
    fold(lake)
    assert records_of(lake).num_rows == 2
    attempt.record("gap", "after")
    assert sorted(records_of(lake)["name"].to_pylist()) == ["after", "before", "detect"]
    fold(lake)
    assert records_of(lake).num_rows == len(read_history(lake)) == 3


def test_a_damaged_line_of_a_journal_is_a_mark_and_no_error(lake: Lake) -> None:
    attempt = Attempt(lake, "detect")
    with journal(lake, attempt.number).open("ab") as file:
        file.write(b"{not json\n")
        file.write(b'{"half a line')
    (mark,) = timeline(records_of(lake), now())["marks"]
    assert (mark["kind"], mark["text"]) == ("damaged", "journal line")


def test_who_is_silent_for_long_is_taken_for_killed(lake: Lake) -> None:
    Attempt(lake, "detect")
    records = records_of(lake)
    assert [a.ended for a in attempts_in(records, now())] == ["running"]
    assert [a.ended for a in attempts_in(records, now() + 2 * SILENT_MICROSECONDS)] == ["killed"]


def test_a_lake_without_history_is_an_empty_time_line(tmp_path: Path) -> None:
    seen = timeline(records_of(Lake(tmp_path / "nowhere")), now())
    assert (seen["whole"], seen["buckets"], seen["marks"]) == (None, [], [])
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("buckets", [0, MOST_BUCKETS + 1])
def test_the_number_of_buckets_is_bounded(buckets: int, lake: Lake) -> None:
    with pytest.raises(RepriseError, match="buckets"):
        timeline(records_of(lake), now(), buckets=buckets)


def test_a_range_that_ends_before_it_begins_is_refused(lake: Lake) -> None:
    Attempt(lake, "detect")
    with pytest.raises(RepriseError, match="ends before it begins"):
        timeline(records_of(lake), now(), since=10, until=5)


def test_zooming_in_shows_single_batches(tmp_path: Path) -> None:
    records = records_of(lake_with(tmp_path / "lake", history_of(1_000)))
    assert timeline(records, now())["batches"] is None  # 1,000 are too many to be drawn one by one
    zoomed = timeline(records, now(), BEGAN + 10 * SECOND, BEGAN + 20 * SECOND - 1)
    assert [batch["batch"] for batch in zoomed["batches"]] == list(range(11, 21))
    assert sum(bucket["batches"] for bucket in zoomed["buckets"]) == 10


def test_a_hundred_thousand_batches_are_answered_within_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In CPU time of all threads: other work on the machine does not count. The first look at a lake takes longer."""
    lake = lake_with(tmp_path / "lake", history_of(100_000))
    times = [time.process_time()]
    records = records_of(lake)
    times.append(time.process_time())
    seen = timeline(records, now())
    times.append(time.process_time())
    timeline(records_of(lake), now(), BEGAN + 50_000 * SECOND, BEGAN + 60_000 * SECOND)
    times.append(time.process_time())
    read, whole, zoomed = (later - earlier for earlier, later in pairwise(times))
    with capsys.disabled():
        print(f"\n100,000 batches, CPU time: read {read:.2f} s, time line {whole:.2f} s, zoomed {zoomed:.2f} s")
    assert sum(bucket["batches"] for bucket in seen["buckets"]) == 100_000
    assert len(seen["buckets"]) <= 120
    assert sum(mark["kind"] == "kill" for mark in seen["marks"]) == 100  # every tenth attempt of a thousand
    assert max(whole, zoomed) < 1
