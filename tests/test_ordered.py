"""Detection over events in order of time: the net of what is published is right after every commit, however late they come."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.cep.matcher import NOT_HELD, Known, match_shard
from spark_jobs.delays import parse_delay
from spark_jobs.detect import Settings, detect_versions
from spark_jobs.errors import PipelineError, RepriseError
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.strike import InjectedFailure
from spark_jobs.generate import Recipe, generate
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.outputs import committed_of
from spark_jobs.lake.tables import Lake
from spark_jobs.ordered import OrderedDetection, OrderedReach
from spark_jobs.ordering.order import finals_before, too_late
from spark_jobs.ordering.revisions import net
from spark_jobs.ordering.slack import by_stream_time, follow
from spark_jobs.pipeline import Ordering, Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.recovery.savepoint import Savepoint
from spark_jobs.runner import InlineRunner
from spark_jobs.show import rows_of
from spark_jobs.trim import trim, vacuum
from spark_jobs.verify.in_order import left_out
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from spark_jobs.versions import upgrade
from tests.conftest import PIPELINE, events_of, find, output, small_log, take_in

Rows = list[tuple[Any, ...]]

OPERATORS = """
  hourly:
    partition_by: key
    window: {time: 2 min, slide: 40 s}
    pattern: A -> B
    define: {A: type = 'a', B: type = 'b' AND amount > A.amount}
  quick:
    partition_by: key
    pattern: A B+ C
    define: {A: type = 'a', B: "type IN ('b', 'd')", C: type = 'c'}
    within: 2 min
    timed_out: true
    measures: {many: COUNT(B.*)}
  counted:
    window: {count: 60, slide: 20}
    pattern: A -> B -> C
    define: {A: type = 'a' AND amount > 30, B: type = 'b' AND amount > 30, C: type = 'c'}
"""


def pipeline_of(ordering: str) -> Pipeline:
    return parse_pipeline(f"{PIPELINE}{OPERATORS}ordering: {{{ordering}}}\n", "ordered.yaml")


@pytest.fixture(scope="module")
def disordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, one of which falls behind by up to 40 s, three minutes apart at most; all of them jitter."""
    folder = tmp_path_factory.mktemp("disordered")
    delay = parse_delay("s1 from 60 s for 400 s by 8 s every 60 s")
    landing = small_log(folder / "landing", 1_200, delays=(delay,), jitter=3_000_000)
    take_in(pipeline_of("speculation: 1"), landing, Lake(folder / "lake"))
    return folder / "lake"


def copy(ingested: Path, folder: Path) -> Lake:
    shutil.copytree(ingested, folder / "lake")
    return Lake(folder / "lake")


def standing(pipeline: Pipeline, lake: Lake, operator: str) -> Rows:
    rows = lake.read("complex_events").filter(pc.field("operator") == operator)
    ordinals = sorted(rows["ordinal"].to_pylist())
    assert ordinals == list(range(1, len(ordinals) + 1)), "every row has a number of its own"
    names = list(pipeline.built[operator].measured.types)
    return sorted(_row(r, r["decided_ts"].timestamp(), r["decided_sn"], r["sns"], names) for r in net(rows).to_pylist())


def _row(match: dict[str, Any], at: float, by: int, sns: list[int], measures: list[str]) -> tuple[Any, ...]:
    said = [match[name] for name in measures]
    return (at, by, match["y"], match["key"] or "", tuple(sns), tuple(match["symbols"]), match["timed_out"], *said)


def right(pipeline: Pipeline, lake: Lake, operator: str) -> Rows:
    """What the engine finds in one go in all events that count, sorted by time."""
    built = pipeline.built[operator]
    at = committed_of(DeltaTable(lake.path("complex_events")), operator, 1).at
    late = set(lake.read("late_events")["sn"].to_pylist()) if lake.has("late_events") else set()
    events = [e for e in events_of(lake) if e["sn"] <= at.sn and e["sn"] not in late and micros(e["ts"]) <= at.ts]
    events.sort(key=lambda e: (e["ts"], e["sn"]))
    sns = np.array([e["sn"] for e in events])
    table = pa.Table.from_pylist(
        [{**e, "sn": place, "stream_ts": e["ts"]} for place, e in enumerate(events, 1)],
        pipeline.source.schema,
    )
    known = Known(0, len(events), NOT_HELD, at.ts, built.window.first_window())
    names = list(built.measured.types)
    found = match_shard(built, table, known).matches.to_pylist()
    name = [0, *sns.tolist()]  # of a place; a deadline has none
    return sorted(_row(r, r["_at_ts"] / 1e6, name[r["_at_sn"]], [name[sn] for sn in r["sns"]], names) for r in found)


def micros(moment: Any) -> int:
    return int(pa.scalar(moment, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py())


def check(pipeline: Pipeline, lake: Lake) -> None:
    for operator in pipeline.operators:
        assert standing(pipeline, lake, operator) == right(pipeline, lake, operator), operator


@pytest.mark.parametrize(
    ("ordering", "shards"),
    [
        ("speculation: 1", 2),
        ("speculation: 0", 2),
        ("speculation: 0.3, retraction: full", 1),
        ("speculation: 0.5, clock: s0, checkpoint: {events: 40}", 3),
        ("speculation: 0.1, slack: 20 s, checkpoint: {speculative: 10}", 2),
        ("speculation: adaptive, revise: 1 min", 2),
        ("speculation: 0, revise: 1 s", 2),
    ],
)
def test_after_the_last_commit_stands_what_is_right(ordering: str, shards: int, disordered: Path, tmp_path: Path) -> None:
    pipeline, lake = pipeline_of(ordering), copy(disordered, tmp_path)
    find(pipeline, lake, 150, shards)
    check(pipeline, lake)


def test_it_is_right_after_every_commit(disordered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, lake = pipeline_of("speculation: 0.2, clock: s0"), copy(disordered, tmp_path)
    batch, seen = OrderedDetection._batch, []

    def checked(self: OrderedDetection, *args: Any) -> Savepoint:
        following = batch(self, *args)
        name = self.operator.name
        assert standing(pipeline, lake, name) == right(pipeline, lake, name), (name, following.batch)
        seen.append(name)
        return following

    monkeypatch.setattr(OrderedDetection, "_batch", checked)
    find(pipeline, lake, 100)
    assert len(seen) == 12 * len(pipeline.operators)
    rows = lake.read("complex_events")
    assert rows.filter(pc.field("revision") == "retract").num_rows > 10
    assert 0 < rows.filter(pc.field("speculative")).num_rows < rows.num_rows


def test_a_log_is_matched_as_it_came_until_something_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two deliveries: one in order of time, then one that reaches back into it, to the states that the first one left."""
    pipeline, lake = pipeline_of("speculation: 0.2, revise: 1 h"), Lake(tmp_path / "lake")
    ways: list[bool] = []
    payloads = OrderedDetection._order_payloads

    def watched(self: OrderedDetection, savepoint: Savepoint, reach: OrderedReach) -> list[dict[str, Any]]:
        ways.append(reach.in_order)
        return payloads(self, savepoint, reach)

    monkeypatch.setattr(OrderedDetection, "_order_payloads", watched)
    landing = small_log(tmp_path / "landing", 700)
    take_in(pipeline, landing, lake)
    find(pipeline, lake, 150)
    check(pipeline, lake)
    assert ways.count(True) == 3 * 5, "but for windows that count"
    delay = parse_delay("s0 from 0 s for 400 s by 50 s")
    small_log(tmp_path / "late", 1_000, delays=(delay,), seed=8)
    for file in (tmp_path / "late").rglob("*.parquet"):  # other events of the same sources, by their numbers
        rows = pq.read_table(file, partitioning=None)
        rows = rows.set_column(rows.schema.get_field_index("seq"), "seq", pc.add(rows["seq"], 10_000))
        pq.write_table(rows, (landing / file.relative_to(tmp_path / "late")).with_name("part-9.parquet"))
    take_in(pipeline, landing, lake)
    find(pipeline, lake, 150)
    check(pipeline, lake)
    assert ways.count(True) == 3 * 5
    assert lake.read("complex_events").filter(pc.field("revision") == "retract").num_rows > 10
    assert {done.verdict for done in verify(pipeline, lake)} == {Verdict.VALID}


def test_windows_that_count_all_events_see_all_of_them(disordered: Path, tmp_path: Path) -> None:
    text = f"{PIPELINE}    window: {{count: 60, slide: 20}}\nordering: {{speculation: 0.2}}\n".replace(
        "    within: 5 min\n", ""
    )
    pipeline, lake = parse_pipeline(text, "counted.yaml"), copy(disordered, tmp_path)
    find(pipeline, lake, 150, 3)
    check(pipeline, lake)
    assert len(standing(pipeline, lake, "probing")) > 10


def test_full_retraction_comes_to_the_same_and_touches_more(disordered: Path, tmp_path: Path) -> None:
    found, rows = [], []
    for mode in ("on demand", "full"):
        (folder := tmp_path / mode).mkdir()
        pipeline, lake = pipeline_of(f"speculation: 0, retraction: {mode}"), copy(disordered, folder)
        find(pipeline, lake, 150)
        found.append({name: standing(pipeline, lake, name) for name in pipeline.operators})
        rows.append(lake.read("complex_events").num_rows)
    assert found[0] == found[1]
    assert rows[0] < rows[1]


def test_without_disorder_it_publishes_what_plain_detection_does_with_the_same_numbers(tmp_path: Path) -> None:
    landing = small_log(tmp_path / "landing", 1_200)
    plain = parse_pipeline(PIPELINE + OPERATORS, "plain.yaml")
    lakes = {}
    for name, pipeline in (("plain", plain), ("ordered", pipeline_of("speculation: 1"))):
        lakes[name] = Lake(tmp_path / name)
        take_in(pipeline, landing, lakes[name])
        find(pipeline, lakes[name], 150)
    mine, theirs = (output(lakes[name]) for name in ("ordered", "plain"))
    own = {"revision": "assert", "of": None, "speculative": False}
    assert mine == [{**row, **own} for row in theirs]


@pytest.mark.parametrize("phase", ["detect.matched", "detect.written", "detect.saved", "detect.published"])
def test_an_attempt_that_dies_changes_nothing(phase: str, disordered: Path, tmp_path: Path) -> None:
    pipeline, lake = pipeline_of("speculation: 0.2"), copy(disordered, tmp_path)
    FaultPlan(lake).allow()
    for number in (3, 5):
        FaultPlan(lake).arm(parse_fault(f"raise_error:{phase}@{number}:quick"))
    tries = 0
    while True:
        tries += 1
        try:
            find(pipeline, lake, 150)
            break
        except InjectedFailure:
            continue
    assert tries == 3
    check(pipeline, lake)


@pytest.mark.parametrize("save", ["{speculative: 40}", "{events: 350}", "adaptive"])
def test_savepoints_may_be_seldom(save: str, disordered: Path, tmp_path: Path) -> None:
    """Attempts die between savepoints, also with another number of shards; the net is what it is with one after every batch."""
    ordering = "speculation: 0.3, checkpoint: {events: 50}"
    pipeline = parse_pipeline(f"{PIPELINE}{OPERATORS}ordering: {{{ordering}}}\nrecovery: {{save: {save}}}\n", "ordered.yaml")
    lake = copy(disordered, tmp_path)
    FaultPlan(lake).allow()
    for batch in (3, 6, 8):
        FaultPlan(lake).arm(parse_fault(f"raise_error:detect.published@{batch}:quick"))
        with pytest.raises(InjectedFailure):
            find(pipeline, lake, 100, 2 if batch < 8 else 3)
    find(pipeline, lake, 100)
    check(pipeline, lake)
    saved = {file.name.split("-")[2] for file in Path(lake.path("savepoints")).glob("quick-1-*.parquet")}
    assert len(saved) < 12, "of twelve batches"


def test_a_lost_savepoint_is_made_anew(disordered: Path, tmp_path: Path) -> None:
    pipeline, lake = pipeline_of("speculation: 0.2"), copy(disordered, tmp_path)
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault("raise_error:detect.published@4:quick"))
    with pytest.raises(InjectedFailure):
        find(pipeline, lake, 150)
    for file in Path(lake.path("savepoints")).glob("quick-*.parquet"):
        file.write_bytes(b"gone")
    find(pipeline, lake, 150)
    check(pipeline, lake)


def test_what_comes_too_late_is_set_aside_once_with_its_reason(disordered: Path, tmp_path: Path) -> None:
    pipeline = pipeline_of("speculation: 0, revise: 1 s")
    found = []
    for batch in (100, 700):  # how the log is cut does not show
        (folder := tmp_path / str(batch)).mkdir()
        lake = copy(disordered, folder)
        find(pipeline, lake, batch)
        late = lake.read("late_events").sort_by("sn").drop(["at"])
        found.append(late.to_pylist())
    assert found[0] == found[1]
    assert len({row["sn"] for row in found[0]}) == len(found[0]) > 5
    assert all("could no longer be corrected" in row["reason"] for row in found[0])


def test_what_was_published_is_kept_because_it_may_have_to_be_taken_back() -> None:
    with pytest.raises(PipelineError, match="may have to be taken back"):
        parse_pipeline(
            f"{PIPELINE}    keep: false\n  more: {{from: probing, pattern: P, define: {{P: loss > 1}}}}\nordering: {{}}\n",
            "ordered.yaml",
        )


@pytest.fixture
def detected(disordered: Path, tmp_path: Path) -> Lake:
    lake = copy(disordered, tmp_path)
    find(pipeline_of(SPECULATIVE), lake, 150)
    return lake


SPECULATIVE = "speculation: 0.2, revise: 1 s"


def test_the_verdict_on_it_is_valid(detected: Lake) -> None:
    for done in verify(pipeline_of(SPECULATIVE), detected):
        assert done.verdict is Verdict.VALID, done
        assert done.matches == done.reference_matches > 5
        assert done.events == 1_200


def rewritten(lake: Lake, change: Callable[[pa.Table], pa.Table], patch: pytest.MonkeyPatch) -> None:
    """Change what was published, file by file, as a broken engine might have written, and sealed, it."""
    patch.setattr("spark_jobs.verify.in_order.broken", lambda path: None)
    for file in Path(lake.path("complex_events")).rglob("ce-*.parquet"):
        pq.write_table(change(pq.read_table(file, partitioning=None)), file)


@pytest.mark.parametrize(
    ("change", "property_"),
    [
        (lambda t: t.set_column(t.schema.get_field_index("of"), "of", pa.nulls(t.num_rows, pa.int64())), "every retraction"),
        (lambda t: t.set_column(t.schema.get_field_index("y"), "y", pc.add(t["y"], 1)), "no false positives"),
        (lambda t: t.set_column(t.schema.get_field_index("ordinal"), "ordinal", pc.add(t["ordinal"], 1)), "every row has the"),
        (lambda t: t.set_column(t.schema.get_field_index("x"), "x", pc.negate(t["x"])), "every row has the next number"),
        (lambda t: t.slice(1), "every row has the next number"),
    ],
)
def test_a_broken_output_is_invalid(
    detected: Lake, change: Callable[[pa.Table], pa.Table], property_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(detected, change, monkeypatch)
    found = verify(pipeline_of(SPECULATIVE), detected)
    assert Verdict.INVALID in {done.verdict for done in found}
    wrong = {f.property for done in found for f in done.findings if f.verdict is Verdict.INVALID}
    assert any(name.startswith(property_) for name in wrong), wrong


def test_a_clock_that_never_ticks_is_no_reason_to_say_valid(disordered: Path, tmp_path: Path) -> None:
    pipeline, lake = pipeline_of("clock: nobody"), copy(disordered, tmp_path)
    find(pipeline, lake, 500)
    assert {done.verdict for done in verify(pipeline, lake)} == {Verdict.UNKNOWN}


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.none() | st.integers(0, 60)), max_size=60),
    st.booleans(),
    st.integers(0, 2),
    st.integers(1, 9),
)
def test_reference_and_detection_agree_on_what_came_too_late(
    events: list[tuple[int, bool, int | None]], by_source: bool, slack: int, revise: int
) -> None:
    """Two ways to compute it: one event after the other, and all at once. Some correct others, which have a time too."""
    said = {"clock": "s0" if by_source else None, "slack": f"{slack} us" if slack else None, "revise": f"{revise} us"}
    ordering = Ordering(**said)
    ts, ticks = np.array([e[0] for e in events], np.int64), np.array([e[1] for e in events], bool)
    since = np.array([2**61 if e[2] is None else e[2] for e in events], np.int64)
    on_time = since == 2**61
    beginning = ordering.beginning().slack
    course = follow(beginning, ts[on_time], ticks[on_time] if by_source else by_stream_time(beginning, ts[on_time]))
    found = too_late(finals_before(beginning, course, on_time), np.minimum(ts, since), revise)
    source = pa.chunked_array([pa.array(["s0" if tick else "s1" for tick in ticks], pa.string())])
    assert np.flatnonzero(left_out(ts, source, ordering, since)[0]).tolist() == found.tolist()


def test_a_trim_keeps_what_late_events_can_go_back_to(tmp_path: Path) -> None:
    """Three hours, delivered one after the other, trimmed after each; late events reach back across their borders."""
    pipeline = pipeline_of("speculation: 0.1, revise: 10 min")
    delay = parse_delay("s1 from 30 min for 2 h by 2 min every 20 min")
    generate(Recipe(1_500, types=4, keys=20, rate=0.15, delays=(delay,), jitter=60_000_000), tmp_path / "all")
    hours = sorted({file.parent.parent for file in (tmp_path / "all").rglob("*.parquet")})
    assert len(hours) >= 3
    untouched, lake = Lake(tmp_path / "untouched"), Lake(tmp_path / "lake")
    for hour in hours:
        shutil.copytree(hour, tmp_path / "landing" / hour.relative_to(tmp_path / "all"))
        for target in (untouched, lake):
            take_in(pipeline, tmp_path / "landing", target)
            find(pipeline, target, 200)
        trim(pipeline, lake, Attempt(lake, "trim"))
        vacuum(lake, 0)
    assert len(events_of(lake)) < len(events_of(untouched))
    check(pipeline, untouched)
    for operator in pipeline.operators:
        assert standing(pipeline, lake, operator) == standing(pipeline, untouched, operator)


def test_people_see_what_stands_and_what_is_final(detected: Lake) -> None:
    pipeline = pipeline_of(SPECULATIVE)
    columns, rows = rows_of("standing", detected.root, 10_000)
    assert len(rows) == sum(len(standing(pipeline, detected, name)) for name in pipeline.operators)
    state = [dict(zip(columns, row, strict=True))["state"] for row in rows]
    assert set(state) == {"final", "speculative"}
    assert state.count("final") > state.count("speculative"), "only the last ones can still be taken back by what is expected"
    _, late = rows_of("late", detected.root, 10_000)
    assert len(late) == detected.read("late_events").num_rows > 0


def test_a_version_that_begins_later_knows_nothing_of_what_came_before(disordered: Path, tmp_path: Path) -> None:
    pipeline, lake = pipeline_of(SPECULATIVE), copy(disordered, tmp_path)
    graph = Graph(pipeline, lake)
    versions = upgrade(lake, pipeline, graph.admit, 500)
    detect_versions(graph, versions, InlineRunner(), Attempt(lake, "detect"), Settings(150, 2))
    assert all(min(row["sns"]) > 500 for row in lake.read("complex_events").to_pylist())
    assert {done.verdict for done in verify(pipeline, lake)} == {Verdict.VALID}


def test_another_order_is_another_version(detected: Lake) -> None:
    find(pipeline_of("speculation: 0.9, revise: 1 s"), detected, 150)  # how early something is published may change
    with pytest.raises(RepriseError, match="changed since publishing"):
        find(pipeline_of("speculation: 0.2, revise: 2 s"), detected, 150)
    with pytest.raises(RepriseError, match="changed since publishing"):
        find(parse_pipeline(PIPELINE + OPERATORS, "plain.yaml"), detected, 150)
