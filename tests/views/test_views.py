"""What people look at, over lakes as jobs make them: every number is that of `reprise show`, every answer is bounded."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

from schemas import late_events, quarantine
from spark_jobs.errors import RepriseError
from spark_jobs.lake.tables import Lake
from spark_jobs.places import Place
from spark_jobs.verify.job import verify
from spark_jobs.views import aside, matches
from spark_jobs.views.matches import Wanted, opened, search
from spark_jobs.views.overview import overview
from spark_jobs.views.values import LONGEST_TEXT, plain
from tests.conftest import PIPELINE, events_of, output, parse_pipeline
from tests.views.lakes import detected, history_of, lake_with


def now() -> int:
    return time.time_ns() // 1000


@pytest.fixture(scope="module")
def place(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return detected(ingested, tmp_path_factory.mktemp("place"))


def test_an_overview_says_how_far_each_operator_is(place: Place) -> None:
    seen = overview(place, now())
    (operator,) = seen["operators"]
    assert seen["events"] == len(events_of(Lake(place.lake)))
    assert (operator["operator"], operator["lag_events"], operator["lag_seconds"]) == ("probing", 0, 0)
    assert operator["matches"] == len(output(Lake(place.lake)))
    assert (operator["batch"], operator["savepoint"]) == (4, 4)
    assert seen["verdict"] is None
    assert seen["last_attempt"]["ended"] == "done"


def test_what_was_ingested_since_is_the_lag(place: Place, ingested: Path, tmp_path: Path) -> None:
    """A lake where operators stopped half-way: the newest commits of complex_events are taken away."""
    half = place._replace(lake=tmp_path / "lake")
    shutil.copytree(place.lake, half.lake)
    log = half.lake / "complex_events" / "_delta_log"
    for commit in sorted(log.glob("*.json"))[-2:]:
        commit.unlink()
    (operator,) = overview(half, now())["operators"]
    assert (operator["batch"], operator["lag_events"]) == (2, 1_000)  # two batches of 500 are not read
    assert operator["lag_seconds"] > 0


def test_an_overview_has_the_newest_verdict(place: Place, tmp_path: Path) -> None:
    lake = Lake(shutil.copytree(place.lake, tmp_path / "lake"))
    verify(parse_pipeline(PIPELINE, "small.yaml"), lake)
    seen = overview(place._replace(lake=lake.root), now())
    assert seen["verdict"] == "valid"
    assert seen["operators"][0]["verdict"]["events"] == 2_000


def test_a_lake_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    seen = overview(Place("shop", tmp_path / "shop.yaml", tmp_path / "landing", tmp_path / "nowhere", None), now())
    assert seen["note"].startswith("Nothing was ingested yet. Put files into")
    assert "shop.ingest" in seen["note"]
    assert not (tmp_path / "nowhere").exists()


def test_a_lake_that_cannot_be_read_says_so_without_paths(place: Place, tmp_path: Path) -> None:
    broken = place._replace(lake=tmp_path / "lake")
    shutil.copytree(place.lake, broken.lake)
    for commit in (broken.lake / "event_log" / "_delta_log").glob("*.json"):
        commit.write_text("{")
    note = overview(broken, now())["note"]
    assert note.startswith("The lake cannot be read")
    assert str(tmp_path) not in note


def test_an_overview_of_a_hundred_thousand_batches_takes_less_than_a_second(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = place._replace(lake=tmp_path / "lake")
    shutil.copytree(place.lake, large.lake)
    shutil.rmtree(large.lake / "history")
    shutil.rmtree(large.lake / "_journal")
    lake_with(large.lake, history_of(100_000))
    overview(large, now())  # what was read is kept
    began = time.process_time()  # other work on the machine does not count
    seen = overview(large, now())
    took = time.process_time() - began
    with capsys.disabled():
        print(f"\noverview of 100,000 batches: {took:.2f} s of CPU")
    assert seen["last_attempt"]["attempt"] == 1_000
    assert took < 1


def test_matches_are_paged_from_the_newest_to_the_oldest(place: Place) -> None:
    everything = [row["ordinal"] for row in output(Lake(place.lake))][::-1]
    found, before = [], None
    while True:
        page = search(Lake(place.lake), "probing", Wanted(), before, limit=7)
        found += [row["ordinal"] for row in page["matches"]]
        before = page["next"]
        if before is None:
            break
    assert found == everything
    assert page["total"] == len(everything)


def test_a_search_goes_on_where_it_stopped_looking(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "FILES_PER_LOOK", 1)
    keys = {str(row["key"]) for row in output(Lake(place.lake))}
    wanted = Wanted(key=min(keys))
    found, before, looks = [], None, 0
    while True:
        page = search(Lake(place.lake), "probing", wanted, before)
        found += page["matches"]
        before, looks = page["next"], looks + 1
        if before is None:
            break
    assert looks == 4  # one file per batch
    assert len(found) == sum(row["key"] == min(keys) for row in output(Lake(place.lake)))


def test_matches_are_found_by_key_time_and_text(place: Place) -> None:
    rows = output(Lake(place.lake))
    one = rows[len(rows) // 2]
    lake = Lake(place.lake)
    assert all(row["key"] == one["key"] for row in search(lake, "probing", Wanted(key=str(one["key"])))["matches"])
    at = search(lake, "probing", Wanted(since=one["ts"], until=one["ts"]))["matches"]
    assert one["ordinal"] in [row["ordinal"] for row in at]
    text = search(lake, "probing", Wanted(text=str(one["loss"])))["matches"]
    assert one["ordinal"] in [row["ordinal"] for row in text]
    assert search(lake, "probing", Wanted(text=".*"))["matches"] == []  # a text is no pattern


def test_an_opened_match_has_the_events_it_bound_with_their_attributes(place: Place) -> None:
    lake = Lake(place.lake)
    row, log = output(lake)[3], {event["sn"]: event for event in events_of(lake)}
    seen = opened(lake, "probing", 1, row["ordinal"])
    assert [(event["symbol"], event["number"]) for event in seen["events"]] == list(
        zip(row["symbols"], row["sns"], strict=True)
    )
    for event in seen["events"]:
        assert (event["type"], event["key"]) == (log[event["number"]]["type"], log[event["number"]]["key"])
        assert event["attributes"] == {"amount": log[event["number"]]["amount"]}
        assert not event["gone"]
    assert seen["measures"]["loss"] == row["loss"]


def test_a_match_or_an_operator_that_is_not_there_is_an_error_in_words(place: Place) -> None:
    lake = Lake(place.lake)
    with pytest.raises(RepriseError, match="no match with ordinal 999,999"):
        opened(lake, "probing", 1, 999_999)
    with pytest.raises(RepriseError, match="no version 9"):
        opened(lake, "probing", 9, 1)
    with pytest.raises(RepriseError, match="did you mean 'probing'"):
        search(lake, "probin", Wanted())


def set_aside(folder: Path) -> Place:
    place = Place("shop", folder / "shop.yaml", folder / "landing", folder / "lake", None)
    lake = Lake(place.lake)
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for ingest in (1, 2):
        rows = [
            {"file": f"{place.landing}/date=1/part-{ingest}.csv", "row": n, "reason": "no ts" if n % 3 else "twice",
             "content": "<script>alert(1)</script>", "digest": "d", "ingest": ingest, "at": at}
            for n in range(1, 11)
        ]  # fmt: skip
        lake.append("quarantine", pa.Table.from_pylist(rows, quarantine.SCHEMA))
    event = {"sn": 7, "source": "s", "source_seq": 1, "type": "a", "key": "k", "ts": at, "arrival_ts": at, "stream_ts": at,
             "reason": "later than revise", "at": at}  # fmt: skip
    lake.append("late_events", pa.Table.from_pylist([event], late_events.SCHEMA))
    return place


def test_quarantine_is_paged_and_its_reasons_counted(tmp_path: Path) -> None:
    place = set_aside(tmp_path)
    first, second = (aside.quarantine(place, offset, 15) for offset in (0, 15))
    assert first["total"] == 20
    assert len({(row["file"], row["row"]) for row in first["rows"] + second["rows"]}) == 20
    assert first["rows"][0]["file"] == "date=1/part-2.csv"  # below the landing folder, the newest first
    assert first["reasons"] == [{"reason": "no ts", "rows": 14}, {"reason": "twice", "rows": 6}]
    assert [row["sn"] for row in aside.late(place)["rows"]] == [7]


@pytest.mark.parametrize(("offset", "limit"), [(-1, 10), (0, 0), (0, 201)])
def test_pages_are_bounded(offset: int, limit: int, tmp_path: Path) -> None:
    with pytest.raises(RepriseError, match="a page has"):
        aside.quarantine(set_aside(tmp_path), offset, limit)


def test_values_become_json_without_being_rounded() -> None:
    odd = [2**60, float("nan"), dt.date(2026, 1, 1), b"abc", "x" * (LONGEST_TEXT + 1)]
    whole, nan, day, raw, long = (plain(value) for value in odd)
    assert (whole, nan, day, raw) == (str(2**60), "nan", "2026-01-01", "3 bytes")
    assert long.endswith("… (2,001 characters)")
    json.dumps([whole, nan, day, raw, long], allow_nan=False)
