"""Ingest: every row becomes an event once, or a quarantine row with its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_jobs.errors import FencedAttempt, IngestRefused, RepriseError
from spark_jobs.ingest import Ingested
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import Runner
from spark_jobs.verify import expectations
from tests.conftest import PIPELINE, events_of, find, output, small_log, take_in


class _Trusting:
    """A suite that has nothing to say: Great Expectations takes seconds to load, and most tests are not about it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def check(self, rows: pa.Table, *, lake: Lake, subject: str) -> list[expectations.Check]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real_suite" not in request.keywords:
        monkeypatch.setattr("spark_jobs.ingest.Suite", _Trusting)


HOUR = "date=2026-01-01/hour=00/source=s0"


def lines(landing: Path, rows: list[object], name: str = "part-0.jsonl", partition: str = HOUR) -> Path:
    folder = landing / partition
    folder.mkdir(parents=True, exist_ok=True)
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{text}\n" for text in texts))
    return landing


def row(seq: int, kind: str = "a", card: str = "k1", amount: object = 1.0, second: int | None = None) -> dict[str, object]:
    at = f"2026-01-01T00:00:{second if second is not None else seq:02}Z"
    return {"seq": seq, "time": at, "kind": kind, "card": card, "amount": amount, "seen": at}


def reasons(lake: Lake) -> dict[int | None, str]:
    return {r["row"]: r["reason"] for r in lake.read("quarantine").to_pylist()}


def test_sequence_numbers_are_dense_and_follow_arrival(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    done = take_in(pipeline, landing, lake)
    events = events_of(lake)
    assert done.accepted == done.last_sn == 2000
    assert [e["sn"] for e in events] == list(range(1, 2001))
    assert [e["arrival_ts"] for e in events] == sorted(e["arrival_ts"] for e in events)
    assert {e["source"] for e in events} == {"s0", "s1"}


def test_a_key_lives_in_one_bucket_and_files_are_in_sn_order(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    take_in(pipeline, landing, lake)
    homes: dict[object, set[object]] = {}
    for event in events_of(lake):
        homes.setdefault(event["key"], set()).add(event["bucket"])
    assert all(len(buckets) == 1 for buckets in homes.values())
    for uri in DeltaTable(lake.path("event_log")).file_uris():
        sns = pq.read_table(uri, partitioning=None)["sn"].to_pylist()
        assert sns == sorted(sns)


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "csv"])
def test_all_formats_give_the_same_log(format_: str, pipeline: Pipeline, tmp_path: Path, landing: Path) -> None:
    reference, other = Lake(tmp_path / "reference"), Lake(tmp_path / "other")
    take_in(pipeline, landing, reference)
    take_in(pipeline, small_log(tmp_path / "again", format=format_), other)
    assert events_of(other) == events_of(reference)


def test_ingest_through_spark_gives_the_same_log(pipeline: Pipeline, landing: Path, tmp_path: Path, spark: Runner) -> None:
    inline, cluster = Lake(tmp_path / "inline"), Lake(tmp_path / "cluster")
    take_in(pipeline, landing, inline)
    take_in(pipeline, landing, cluster, spark)
    assert events_of(cluster) == events_of(inline)


def test_a_partition_delivered_twice_changes_nothing(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    take_in(pipeline, landing, lake)
    before = events_of(lake)
    for file in list(landing.rglob("*.parquet")):
        shutil.copy(file, file.with_name("again.parquet"))
    done = take_in(pipeline, landing, lake)
    assert (done.files, done.accepted) == (0, 0)
    assert events_of(lake) == before


def test_a_partition_delivered_again_in_another_format_changes_nothing(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    """Other bytes, same events: recognised by source and sequence number."""
    take_in(pipeline, landing, lake)
    before = events_of(lake)
    for file in list(landing.rglob("*.parquet")):
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.slice(0, 100), file.with_name("some.parquet"))
        pq.write_table(table.slice(50), file.with_name("rest.parquet"))
    done = take_in(pipeline, landing, lake)
    assert done.accepted == 0
    assert done.duplicates == done.rows > 2000
    assert events_of(lake) == before


def test_a_partition_delivered_twice_in_the_first_ingest_counts_once(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    rows = [row(i) for i in range(1, 6)]
    landing = lines(tmp_path / "in", rows)
    lines(landing, [*rows[2:], row(6)], "part-1.jsonl")
    done = take_in(pipeline, landing, lake)
    assert (done.accepted, done.duplicates) == (6, 3)
    assert [e["source_seq"] for e in events_of(lake)] == [1, 2, 3, 4, 5, 6]


def test_a_number_taken_by_another_event_goes_to_quarantine(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    """A source that starts counting again must not lose its events in silence."""
    take_in(pipeline, lines(tmp_path / "in", [row(1), row(2)]), lake)
    lines(tmp_path / "in", [row(1, "b", second=30), row(3)], "part-1.jsonl")
    done = take_in(pipeline, tmp_path / "in", lake)
    assert (done.accepted, done.duplicates, done.quarantined) == (1, 0, 1)
    assert reasons(lake) == {1: "source_seq 1 of source 's0' was already taken by another event"}


def test_late_partitions_are_appended_and_numbers_never_reused(
    pipeline: Pipeline, landing: Path, lake: Lake, tmp_path: Path
) -> None:
    later = next(landing.rglob("source=s1/*.parquet"))
    hidden = tmp_path / "held_back.parquet"
    shutil.move(later, hidden)
    first = take_in(pipeline, landing, lake)
    before = events_of(lake)
    shutil.move(hidden, later)
    second = take_in(pipeline, landing, lake)
    after = events_of(lake)
    assert after[: first.last_sn] == before
    assert [e["sn"] for e in after] == list(range(1, second.last_sn + 1))
    times = [e["stream_ts"] for e in after]
    assert times == sorted(times), "stream time never goes back"


def test_wrong_rows_are_named_with_file_row_and_reason(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    rows = [row(1), {**row(2), "time": "not a time"}, "{broken", {**row(4), "amount": "much"}, {**row(5), "card": None}, "[1]"]
    done = take_in(pipeline, lines(tmp_path / "in", [*rows, row(7), row(8), row(9), row(10)]), lake)
    assert (done.accepted, done.quarantined, done.rows) == (5, 5, 10)
    found = reasons(lake)
    assert "not a valid timestamp" in found[2]
    assert "not valid JSON" in found[3]
    assert "'much' is not a valid double" in found[4]
    assert found[5] == "card is missing"
    assert "not a JSON object" in found[6]
    assert [e["source_seq"] for e in events_of(lake)] == [1, 7, 8, 9, 10]


def test_a_csv_line_with_too_many_values_is_named(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    folder = tmp_path / "in" / "date=2026-01-01" / "hour=00" / "source=s0"
    folder.mkdir(parents=True)
    good = "{},2026-01-01T00:00:0{}Z,a,k,1.5,2026-01-01T00:00:0{}Z\n"
    text = "seq,time,kind,card,amount,seen\n" + good.format(1, 1, 1) + "2,x,y,z,1,2,3,4\n" + good.format(3, 3, 3)
    (folder / "part.csv").write_text(text)
    done = take_in(pipeline, tmp_path / "in", lake)
    assert (done.accepted, done.quarantined) == (2, 1)
    assert reasons(lake) == {2: "the line has 8 values, the header 6"}


def test_an_unreadable_file_is_quarantined_and_the_rest_goes_on(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    broken = landing / "date=2026-01-01" / "hour=09" / "source=s0" / "part-0.parquet"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"PAR1 this is no parquet file")
    done = take_in(pipeline, landing, lake)
    assert (done.accepted, done.unreadable_files) == (2000, 1)
    (entry,) = lake.read("quarantine").to_pylist()
    assert entry["file"].endswith("hour=09/source=s0/part-0.parquet")
    assert entry["row"] is None
    assert "cannot be read" in entry["reason"]
    again = take_in(pipeline, landing, lake)
    assert again.files == 0, "a file that is in quarantine is not tried for ever"


def test_too_much_quarantine_stops_the_ingest_before_the_log(tmp_path: Path, lake: Lake) -> None:
    strict = parse_pipeline(PIPELINE.replace("quarantine_limit: 0.5", "quarantine_limit: 0.1"), "small.yaml")
    landing = lines(tmp_path / "in", [row(1), {**row(2), "time": None}])
    for _ in range(2):  # a retry must neither pass nor repeat the rows
        with pytest.raises(IngestRefused, match=r"1 of 2 rows are unusable.*part-0.jsonl, row 2: time is missing"):
            take_in(strict, landing, lake)
    assert events_of(lake) == []
    assert len(reasons(lake)) == 1


def test_a_partition_with_no_valid_row_leaves_a_clean_log(tmp_path: Path, lake: Lake) -> None:
    patient = parse_pipeline(PIPELINE.replace("quarantine_limit: 0.5", "quarantine_limit: 1.0"), "small.yaml")
    done = take_in(patient, lines(tmp_path / "in", [{**row(1), "time": None}]), lake)
    assert (done.accepted, done.quarantined) == (0, 1)
    assert find(patient, lake)[0].batches == 0
    lines(tmp_path / "in", [row(2)], "part-1.jsonl")
    assert take_in(patient, tmp_path / "in", lake).last_sn == 1


def test_a_column_the_files_do_not_have_is_named(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    landing = lines(
        tmp_path / "in",
        [{"seq": 1, "tme": "2026-01-01T00:00:00Z", "kind": "a", "card": "k", "amount": 1, "seen": "2026-01-01T00:00:00Z"}],
    )
    with pytest.raises(IngestRefused, match="column 'time' is missing; did you mean 'tme'"):
        take_in(pipeline, landing, lake)


@pytest.mark.parametrize("events", [0, 1])
def test_an_empty_log_and_a_single_event_are_clean_results(events: int, pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    done = take_in(pipeline, small_log(tmp_path / "in", events), lake)
    assert done.accepted == events
    assert find(pipeline, lake)[0].events == events
    assert output(lake) == []


def test_a_missing_landing_folder_is_a_sentence(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    with pytest.raises(RepriseError, match="does not exist; nothing was ingested"):
        take_in(pipeline, tmp_path / "nowhere", lake)


BARE = """
name: bare
source:
  columns: {ts: at, type: null, key: null}
  attributes: {temp: double}
operators:
  hot: {pattern: H, define: {H: temp > 50}}
"""


def test_a_log_without_numbers_keys_or_arrival_gets_them_from_file_and_row(tmp_path: Path, lake: Lake) -> None:
    bare = parse_pipeline(BARE, "bare.yaml")
    hot = [{"at": f"2026-01-01T00:00:{s:02}Z", "temp": t} for s, t in ((1, 60), (3, 10), (2, 70))]
    landing = lines(tmp_path / "in", hot)
    lines(landing, hot[:1], partition="date=2026-01-01/hour=01/source=s0")
    take_in(bare, landing, lake)
    events = events_of(lake)
    assert [e["source_seq"] for e in events] == [1, 2, 3, 4]
    # The third row stands after a later one in its file, so it cannot have arrived before it.
    assert [e["arrival_ts"].second for e in events] == [1, 3, 3, 1]
    find(bare, lake)
    assert [m["sns"] for m in output(lake)] == [[1], [3], [4]]
    assert take_in(bare, landing, lake).files == 0


def test_a_changed_file_without_numbers_is_refused_not_guessed(tmp_path: Path, lake: Lake) -> None:
    bare = parse_pipeline(BARE.replace("attributes", "quarantine_limit: 1.0\n  attributes"), "bare.yaml")
    landing = lines(tmp_path / "in", [{"at": "2026-01-01T00:00:01Z", "temp": 1}])
    take_in(bare, landing, lake)
    lines(landing, [{"at": "2026-01-01T00:00:01Z", "temp": 2}])
    assert take_in(bare, landing, lake).accepted == 0
    assert "ingested before with other content" in reasons(lake)[None]


def test_text_that_looks_like_something_else_stays_text(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    take_in(pipeline, lines(tmp_path / "in", [row(1, card="2026-01-01"), row(2, card="007"), row(3, card="NA")]), lake)
    csv = tmp_path / "in" / HOUR / "part-1.csv"
    csv.write_text("seq,time,kind,card,amount,seen\n4,2026-01-01T00:00:04Z,a,NA,1,2026-01-01T00:00:04Z\n")
    take_in(pipeline, tmp_path / "in", lake)
    assert [e["key"] for e in events_of(lake)] == ["2026-01-01", "007", "NA", "NA"]


def test_numbers_as_keys_become_text(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    take_in(pipeline, lines(tmp_path / "in", [{**row(1), "card": 12}, {**row(2), "card": 13}]), lake)
    assert [e["key"] for e in events_of(lake)] == ["12", "13"]


def test_a_file_that_was_cut_off_may_come_again_whole(tmp_path: Path, lake: Lake) -> None:
    bare = parse_pipeline(BARE.replace("attributes", "quarantine_limit: 1.0\n  attributes"), "bare.yaml")
    landing = lines(tmp_path / "in", ['{"at": "2026-01-01T00:0'])
    assert take_in(bare, landing, lake).quarantined == 1
    lines(landing, [{"at": "2026-01-01T00:00:01Z", "temp": 2}])
    assert take_in(bare, landing, lake).accepted == 1


def test_sources_in_one_file_count_for_themselves(tmp_path: Path, lake: Lake) -> None:
    mixed = parse_pipeline(PIPELINE.replace("ts: time,", "ts: time, source: shop,"), "small.yaml")
    landing = lines(tmp_path / "in", [{**row(1), "shop": "x"}, {**row(2), "shop": "y"}])
    take_in(mixed, landing, lake)
    lines(landing, [{**row(1), "shop": "x"}, {**row(1, "b"), "shop": "y"}, {**row(2), "shop": "y"}], "part-1.jsonl")
    done = take_in(mixed, landing, lake)
    assert (done.accepted, done.duplicates, done.quarantined) == (1, 2, 0)
    assert [(e["source"], e["source_seq"]) for e in events_of(lake)] == [("x", 1), ("y", 2), ("y", 1)]


def test_numbers_from_file_and_row_stay_unique_when_files_mix_sources(tmp_path: Path, lake: Lake) -> None:
    mixed = parse_pipeline(BARE.replace("ts: at,", "ts: at, source: shop,"), "bare.yaml")
    at = "2026-01-01T00:00:01Z"
    landing = lines(tmp_path / "in", [{"at": at, "temp": 1, "shop": shop} for shop in "xyx"])
    lines(landing, [{"at": at, "temp": 2, "shop": shop} for shop in "yy"], "part-1.jsonl")
    take_in(mixed, landing, lake)
    lines(landing, [{"at": at, "temp": 3, "shop": "y"}], "part-2.jsonl")
    take_in(mixed, landing, lake)
    identities = [(e["source"], e["source_seq"]) for e in events_of(lake)]
    assert len(identities) == len(set(identities)) == 6


def test_a_negative_sequence_number_is_refused(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    take_in(pipeline, lines(tmp_path / "in", [{**row(1), "seq": -1}, row(2), row(3)]), lake)
    assert reasons(lake) == {1: "seq: -1 is not a valid int"}


def test_an_ingest_that_is_overtaken_is_fenced_and_no_number_is_given_twice(
    pipeline: Pipeline, landing: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another ingest commits while this one reads its files, at the worst moment: right after the log was opened."""
    from spark_jobs import ingest as job

    other = lines(tmp_path / "other", [row(1), row(2)], partition="date=2026-01-02/hour=00/source=s9")
    real = job.find_files

    def overtaken(folder: Path) -> object:
        monkeypatch.setattr(job, "find_files", real)
        take_in(pipeline, other, lake)
        return real(folder)

    monkeypatch.setattr(job, "find_files", overtaken)
    with pytest.raises(FencedAttempt):
        take_in(pipeline, landing, lake)
    assert take_in(pipeline, landing, lake).accepted == 2000
    assert [e["sn"] for e in events_of(lake)] == list(range(1, 2003))


def test_another_number_of_buckets_is_refused(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    take_in(pipeline, landing, lake)
    with pytest.raises(RepriseError, match="the event log has 7 buckets, the pipeline says 8"):
        take_in(parse_pipeline(PIPELINE.replace("buckets: 7", "buckets: 8"), "small.yaml"), landing, lake)


def test_attributes_may_have_any_name_that_is_not_reprises_own(tmp_path: Path, lake: Lake) -> None:
    """`position`, `row` and `file` are words ingest uses itself, under other names."""
    odd = BARE.replace("{temp: double}", "{temp: double, position: int, row: int, file: string}")
    landing = lines(tmp_path / "in", [{"at": "2026-01-01T00:00:01Z", "temp": 1, "position": 500, "row": 777, "file": "f"}])
    take_in(parse_pipeline(odd, "odd.yaml"), landing, lake)
    (event,) = events_of(lake)
    assert (event["position"], event["row"], event["file"]) == (500, 777, "f")


def test_a_time_outside_the_range_is_named_and_attributes_are_free(tmp_path: Path, lake: Lake) -> None:
    born = BARE.replace("{temp: double}", "{temp: double, born: timestamp}").replace(
        "attributes", "quarantine_limit: 1.0\n  attributes"
    )
    rows = [{"at": at, "temp": 1, "born": "1955-03-02"} for at in ("2026-01-01T00:00:01Z", "1969-12-31T00:00:00Z")]
    done = take_in(parse_pipeline(born, "born.yaml"), lines(tmp_path / "in", rows), lake)
    assert (done.accepted, done.quarantined) == (1, 1)
    assert "outside the years 1970 to 2199" in reasons(lake)[2]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("part.csv", b"at,temp,temp\n2026-01-01T00:00:01Z,1,2\n", "column 'temp' stands twice in the header"),
        ("part.csv", b"at,temp\n2026-01-01T00:00:01Z,caf\xe9\n", "cannot be"),
    ],
)
def test_a_damaged_file_is_quarantined_not_a_crash(name: str, content: bytes, reason: str, tmp_path: Path, lake: Lake) -> None:
    bare = parse_pipeline(BARE.replace("attributes", "quarantine_limit: 1.0\n  attributes"), "bare.yaml")
    (tmp_path / "in" / HOUR).mkdir(parents=True)
    (tmp_path / "in" / HOUR / name).write_bytes(content)
    assert take_in(bare, tmp_path / "in", lake).accepted == 0
    assert reason in next(iter(reasons(lake).values()))


def test_text_that_is_not_utf_8_is_rejected_by_row(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    landing = lines(tmp_path / "in", [row(1), row(2), row(3, card="CAFE")])
    file = landing / HOUR / "part-0.jsonl"
    file.write_bytes(file.read_bytes().replace(b"CAFE", b"caf\xe9"))
    done = take_in(pipeline, landing, lake)
    assert (done.accepted, done.quarantined) == (2, 1)
    assert "not valid JSON" in reasons(lake)[3]


def test_a_csv_may_begin_with_a_blank_line_or_a_byte_order_mark(tmp_path: Path, lake: Lake) -> None:
    (tmp_path / "in" / HOUR).mkdir(parents=True)
    (tmp_path / "in" / HOUR / "a.csv").write_text("\nat,temp\n2026-01-01T00:00:01Z,1\n")
    (tmp_path / "in" / HOUR / "b.csv").write_text("\ufeffat,temp\n2026-01-01T00:00:02Z,1\n")
    assert take_in(parse_pipeline(BARE, "bare.yaml"), tmp_path / "in", lake).accepted == 2


def test_linked_folders_are_read(tmp_path: Path, lake: Lake) -> None:
    elsewhere = lines(tmp_path / "elsewhere", [{"at": "2026-01-01T00:00:01Z", "temp": 1}])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "date=2026-01-01").symlink_to(elsewhere / "date=2026-01-01")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert take_in(parse_pipeline(BARE, "bare.yaml"), tmp_path / "in", lake).accepted == 1


def test_the_same_number_with_another_attribute_is_no_duplicate(pipeline: Pipeline, tmp_path: Path, lake: Lake) -> None:
    take_in(pipeline, lines(tmp_path / "in", [row(1, amount=1.0)]), lake)
    lines(tmp_path / "in", [row(1, amount=2.0), row(2), row(3)], "part-1.jsonl")
    assert take_in(pipeline, tmp_path / "in", lake).quarantined == 1


def test_quarantine_says_why_a_row_was_rejected_in_the_end(tmp_path: Path, lake: Lake) -> None:
    landing = lines(tmp_path / "in", [{"at": "2026-01-01T00:00:01Z", "temp": 1}, {"at": "never", "temp": 2}])
    wrong = parse_pipeline(BARE.replace("ts: at", "ts: when"), "wrong.yaml")
    with pytest.raises(IngestRefused, match="column 'when' is missing"):
        take_in(wrong, landing, lake)
    right = parse_pipeline(BARE.replace("attributes", "quarantine_limit: 1.0\n  attributes"), "right.yaml")
    take_in(right, landing, lake)
    assert {r["reason"] for r in lake.read("quarantine").to_pylist() if r["row"] == 2} == {
        "column 'when' is missing; known here: at, temp",
        "at: 'never' is not a valid timestamp",
    }


def test_a_lost_list_of_files_stops_ingest_instead_of_doubling_the_log(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    take_in(pipeline, landing, lake)
    shutil.rmtree(lake.path("landing_files"))
    with pytest.raises(RepriseError, match="'landing_files' has no rows of ingest 1"):
        take_in(pipeline, landing, lake)


def test_dropping_the_sequence_column_is_refused(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    take_in(pipeline, landing, lake)
    unnumbered = parse_pipeline(PIPELINE.replace(" source_seq: seq,", ""), "small.yaml")
    with pytest.raises(RepriseError, match="was ingested with a sequence column"):
        take_in(unnumbered, landing, lake)


@pytest.mark.parametrize("place", ["landing/lake", "."])
def test_a_lake_and_its_landing_folder_must_not_lie_in_one_another(place: str, pipeline: Pipeline, landing: Path) -> None:
    with pytest.raises(RepriseError, match="must not lie in one another"):
        take_in(pipeline, landing, Lake(landing.parent / place))


@pytest.mark.parametrize("name", ["my lake", "a#b", "lac été"])
def test_a_lake_may_have_an_unusual_name(name: str, pipeline: Pipeline, landing: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / name)
    for _ in range(2):
        take_in(pipeline, landing, lake)
        find(pipeline, lake, 700)
    assert len(output(lake)) > 50


@pytest.mark.parametrize("address", ["s3://bucket/lake", "abfss:/container/lake"])
def test_a_lake_is_a_folder_and_no_address(address: str) -> None:
    """As a path, it would quietly become a folder of that name."""
    with pytest.raises(RepriseError, match="not an address"):
        Lake(Path(address))


def test_a_percent_sign_in_a_lakes_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepriseError, match="may not contain '%'"):
        Lake(tmp_path / "50%41")


def test_landing_files_are_never_changed(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in landing.rglob("*.parquet")}
    take_in(pipeline, landing, lake)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in landing.rglob("*.parquet")} == before


@pytest.mark.real_suite
def test_the_suite_of_incoming_partitions_can_stop_an_ingest(tmp_path: Path, lake: Lake, landing: Path) -> None:
    suite = tmp_path / "never.yaml"
    suite.write_text("expectations: [{type: expect_column_values_to_be_between, kwargs: {column: accepted, max_value: 10}}]")
    guarded = parse_pipeline(PIPELINE.replace("buckets: 7", f"expectations: {suite}"), "small.yaml")
    with pytest.raises(IngestRefused, match="expect_column_values_to_be_between"):
        take_in(guarded, landing, lake)
    assert events_of(lake) == []


@pytest.mark.real_suite
def test_the_shipped_suite_passes_a_good_log(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    assert isinstance(take_in(pipeline, landing, lake), Ingested)
