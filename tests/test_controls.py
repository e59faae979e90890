"""Each planted fault is found by the checker named for it; without it, the same scenario is clean."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas import savepoints
from spark_jobs import detect as detection
from spark_jobs.detect import Settings, detect, detect_versions
from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import parse_fault
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.generate import Recipe, generate
from spark_jobs.graph import Graph
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.plan import recovery_plan
from spark_jobs.recovery import checkpoint
from spark_jobs.runner import InlineRunner
from spark_jobs.simulator.schedules import simulate
from spark_jobs.trim import trim
from spark_jobs.verify import checkers
from spark_jobs.verify.expectations import Suite
from spark_jobs.verify.job import verify
from spark_jobs.verify.verdict import Verdict
from spark_jobs.versions import resolve, upgrade
from tests.cep.engine import in_batches
from tests.cep.oracle import Case, Event, complex_events
from tests.conftest import PIPELINE, events_of, find, output, take_in
from tests.controls import CONTROLS, Control, table
from tests.recovery.test_residual_law import CONSUMED_IN_ONE_WINDOW, SILENT_KEY
from tests.replication.world import TYPES, World

Planted = AbstractContextManager[None]
GUARANTEES = Path(__file__).resolve().parents[1] / "GUARANTEES.md"

SEVERAL = (
    PIPELINE
    + """
  rising:
    partition_by: key
    pattern: A B+
    define: {A: type <> 'd', B: amount > PREV(amount)}
    measures: {top: LAST(B.amount)}
  quiet:
    partition_by: key
    pattern: A -> !B
    define: {A: type = 'a', B: type = 'd'}
    within: 20 s
  bursts:
    window: {time: 1 min, slide: 20 s}
    partition_by: key
    pattern: A -> B -> C
    define: {A: type = 'a', B: type = 'b', C: type = 'c'}
  rows:
    window: {count: 40, slide: 15}
    pattern: A -> B -> !D -> C
    define: {A: type = 'a', B: amount > 60, C: amount > A.amount, D: type = 'd'}
"""
)
# Many keys are decided by one event: that which closes the window.
CLOSING = (
    PIPELINE.split("operators:")[0]
    + """operators:
  closing:
    partition_by: key
    window: {count: 60, slide: 30}
    pattern: A -> B $
    define: {A: type = 'a', B: amount > 0}
  quiet:
    partition_by: key
    pattern: A -> !B
    define: {A: type = 'a', B: type = 'd'}
    within: 20 s
"""
)


class _Trusting:
    """A suite that takes no ten seconds to start; of what comes in, it looks at the one fact that a control is about."""

    def __init__(self, *files: Path) -> None:
        """Whatever they say."""

    def check(self, rows: pa.Table, **named: Any) -> list[Any]:
        if "unaccounted" in rows.column_names and any(rows["unaccounted"].to_pylist()):
            raise RepriseError("rows are not accounted for")
        return []

    def __enter__(self) -> _Trusting:
        return self

    def __exit__(self, *_: object) -> None:
        """There is no process."""

    close = __exit__


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.ingest.Suite", _Trusting)
    monkeypatch.setattr("spark_jobs.verify.job.Suite", _Trusting)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with 500 events and nothing detected."""
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_jobs.ingest.Suite", _Trusting)
        generate(Recipe(500, types=4, keys=12, rate=2), folder / "landing")
        take_in(parse_pipeline(PIPELINE, "small.yaml"), folder / "landing", Lake(folder / "lake"))
    return folder


def copy(log: Path, folder: Path) -> Lake:
    shutil.copytree(log / "lake", folder / "lake")
    return Lake(folder / "lake")


class Killed(Exception):
    """Stands for a kill."""


class Dying(Attempt):
    """An attempt that ends at one phase of one batch of one operator."""

    def __init__(self, lake: Lake, phase: str, batch: int, operator: str) -> None:
        self.end = phase, batch, operator
        super().__init__(lake, "detect")

    def phase(self, name: str, batch: int, operator: str | None = None, **detail: Any) -> None:
        super().phase(name, batch, operator, **detail)
        if (name, batch, operator) == self.end:
            raise Killed


def broken(pipeline: Pipeline, lake: Lake) -> set[str]:
    """The properties that `reprise verify` finds violated."""
    return {f.property for v in verify(pipeline, lake) for f in v.findings if f.verdict is not Verdict.VALID}


# Scenarios: what the checkers find, with a fault planted or without


def schedules(log: Path, folder: Path, planted: Planted) -> set[str]:
    """Some random schedules of every pipeline of the simulator."""
    said = {
        " published batch ": "batches 1..n, each once",
        " went back ": "seeds never go back",
        " no savepoint that fits ": "savepoint before commit",
        "false positives": "no false positives",
        "false negatives": "no false negatives",
        "duplicates": "no duplicates",
    }
    with planted:
        anomalies = [
            anomaly for start in range(0, 1250, 250) for s in range(start, start + 30) for anomaly in simulate(s).anomalies
        ]
    found = {checker for anomaly in anomalies for text, checker in said.items() if text in anomaly}
    return found | ({"the simulator's five properties"} if {"no false positives", "no false negatives"} & found else set())


def interrupted(log: Path, folder: Path, planted: Planted) -> set[str]:
    """Every operator is killed once in the middle of its third commit, and goes on."""
    pipeline, lake = parse_pipeline(SEVERAL, "several.yaml"), copy(log, folder)
    try:
        with planted:
            for name in pipeline.order:
                with suppress(Killed):
                    detect(pipeline, lake, InlineRunner(), Dying(lake, "detect.saved", 3, name), Settings(120, 2))
            find(pipeline, lake, 120)
    except RepriseError as error:
        return {type(error).__name__}
    return broken(pipeline, lake)


def cuts(log: Path, folder: Path, planted: Planted) -> set[str]:
    """One batch and shard in one slice, against many of each."""
    pipeline, found = parse_pipeline(CLOSING, "closing.yaml"), []
    for name, (batch_events, shards, slice_matches) in {"one": (10_000, 1, 10_000), "many": (130, 3, 1)}.items():
        lake = copy(log, folder / name)
        with planted, pytest.MonkeyPatch.context() as patch:
            patch.setattr(detection, "SLICE_MATCHES", slice_matches)
            find(pipeline, lake, batch_events, shards)
        found.append(output(lake))
    assert len(found[0]) > 50
    return set() if found[0] == found[1] else {"cuts give the same output"}


# Every event looks at the one before it, which is replayed for that alone.
LOOKED_AT = (
    Case("A", "none", after="to next row", define={"A": "letters LIKE '%a%' AND (v > COALESCE(PREV(v), 0))"}),
    [Event(sn, sn, "x", "a", v, "") for sn, v in enumerate((1, 2, 1, 2, 3), 1)],
)
# y4 was consumed by y's match (1, 2, 5); replayed because x3 is held before it, it must not begin another one.
SKIPPED = (
    Case("A -> B -> C", "none"),
    [Event(sn, sn, key, letter) for sn, (key, letter) in enumerate(("ya", "yb", "xa", "ya", "yc", "yb", "yc"), 1)],
)
# As CONSUMED_IN_ONE_WINDOW, and more of it.
WINDOWS = (
    Case("A -> B -> C", "count", size=8, slide=2),
    [Event(sn, sn, "xy"[sn % 3 % 2], letter) for sn, letter in enumerate("abacbcabbcacbabc", 1)],
)


def law(log: Path, folder: Path, planted: Planted) -> set[str]:
    """Cut after every event, against the oracle."""
    for case, events in (CONSUMED_IN_ONE_WINDOW, SILENT_KEY, LOOKED_AT, SKIPPED, WINDOWS):
        for every in range(1, 6):
            with planted:
                found = in_batches(case, events, list(range(every, len(events), every)), 1)
            if found != complex_events(case, events):
                return {"residual law"}
    return set()


def plan(log: Path, folder: Path, planted: Planted) -> set[str]:
    """What a recovery is said to replay, and what it replays."""
    pipeline, lake = parse_pipeline(PIPELINE, "small.yaml"), copy(log, folder)
    with suppress(Killed):
        detect(pipeline, lake, InlineRunner(), Dying(lake, "detect.saved", 3, "probing"), Settings(120, 2))
    graph = Graph(pipeline, lake)
    versions = resolve(lake, pipeline, graph.admit)
    (said,) = recovery_plan(graph, versions)
    with planted:
        (done,) = detect_versions(graph, versions, InlineRunner(), Attempt(lake, "detect"), Settings(120, 2))
    return set() if [shard.replay for shard in said.shards] == done.by_shard else {"plan equals recovery"}


def flipped(log: Path, folder: Path, planted: Planted) -> set[str]:
    """A bit of the last savepoint changes between two starts."""
    pipeline, lake = parse_pipeline(PIPELINE, "small.yaml"), copy(log, folder)
    with suppress(Killed):
        detect(pipeline, lake, InlineRunner(), Dying(lake, "detect.finished", 3, "probing"), Settings(120, 2))
    (file,) = Path(lake.path("savepoints")).glob("probing-1-00000003-*.parquet")
    rows = pq.read_table(file, partitioning=None).to_pylist()
    skip = bytearray(rows[1]["skip"])
    skip[-1] ^= 4
    pq.write_table(pa.Table.from_pylist([rows[0], {**rows[1], "skip": bytes(skip)}], savepoints.SCHEMA), file)
    with planted, suppress(RepriseError):
        find(pipeline, lake, 120)
    repaired = any(row["kind"] == "repair" for row in read_history(lake))
    return set() if repaired else {"savepoint checksum"}


def flipped_checkpoint(log: Path, folder: Path, planted: Planted) -> set[str]:
    """An event that a shard has kept changes between two starts."""
    pipeline, lake = parse_pipeline(PIPELINE + "recovery: {strategy: checkpoint}\n", "small.yaml"), copy(log, folder)
    with suppress(Killed):
        detect(pipeline, lake, InlineRunner(), Dying(lake, "detect.finished", 3, "probing"), Settings(120, 2))
    file = next(checkpoint.folder_of(lake, "probing", 1).glob("00000003-*-000.*.parquet"))
    held = pq.read_table(file, partitioning=None)
    pq.write_table(
        held.set_column(held.schema.get_field_index("amount"), "amount", pa.repeat(pa.scalar(-1.0), held.num_rows)), file
    )
    checkpoint.forget()
    with planted:
        find(pipeline, lake, 120)
    repaired = any(row["kind"] == "repair" for row in read_history(lake))
    return set() if repaired else {"checkpoint checksum"}


def ingested_twice(log: Path, folder: Path, planted: Planted) -> set[str]:
    """A delivery with unusable rows is killed before its commit, comes again, and again with other names and late events."""
    pipeline, lake, landing = parse_pipeline(PIPELINE, "small.yaml"), Lake(folder / "lake"), folder / "landing"
    generate(Recipe(300, types=4, keys=12, rate=0.05, disorder=0.3, max_delay_s=4000, poison=3, sources=1), folder / "all")
    hours = sorted((folder / "all").glob("*/hour=*"))
    assert len(hours) > 2
    shutil.copytree(hours[0], landing / hours[0].relative_to(folder / "all"))
    try:
        with planted:
            with suppress(Killed):
                ingest_dying(pipeline, landing, lake)
            take_in(pipeline, landing, lake)
            for hour in hours:
                shutil.copytree(hour, landing / hour.relative_to(folder / "all"), dirs_exist_ok=True)
            for file in hours[0].rglob("*.parquet"):  # the same rows as another file
                again = landing / file.relative_to(folder / "all").with_name("again.parquet")
                pq.write_table(pq.read_table(file, partitioning=None).slice(0, 20), again)
            take_in(pipeline, landing, lake)
    except RepriseError as error:
        return {"rows are accounted for"} if "accounted for" in str(error) else {str(error)}
    events = events_of(lake)
    sns, streams = [e["sn"] for e in events], [e["stream_ts"] for e in events]
    laws = {
        "SNs are dense": sns == list(range(1, len(sns) + 1)),
        "events are unique": len({(e["source"], e["source_seq"]) for e in events}) == len(events),
        "all events are there": len(events) >= 297,
        "stream time never goes back": all(a <= b for a, b in pairwise(streams)),
    }
    return {name for name, holds in laws.items() if not holds}


def ingest_dying(pipeline: Pipeline, landing: Path, lake: Lake) -> None:
    from spark_jobs.ingest import ingest

    class Listing(Attempt):
        def phase(self, name: str, batch: int, operator: str | None = None, **detail: Any) -> None:
            if name == "ingest.listed":
                raise Killed

    ingest(pipeline, landing, lake, InlineRunner(), Listing(lake, "ingest"))


def trimmed(log: Path, folder: Path, planted: Planted) -> set[str]:
    """One consumer is far ahead of the other when the log is trimmed."""
    pipeline, lake = parse_pipeline(SEVERAL, "several.yaml"), copy(log, folder)
    with suppress(Killed):
        detect(pipeline, lake, InlineRunner(), Dying(lake, "detect.saved", 2, "quiet"), Settings(120, 2))
    with planted:
        trim(pipeline, lake, Attempt(lake, "trim"))
    try:
        find(pipeline, lake, 120)
    except RepriseError as error:
        return {type(error).__name__}
    return set()


def upgraded(log: Path, folder: Path, planted: Planted) -> set[str]:
    """A second version of an operator, computed beside the first."""
    pipeline, lake = parse_pipeline(PIPELINE, "small.yaml"), copy(log, folder)
    changed = parse_pipeline(PIPELINE.replace("amount > 5", "amount > 9"), "changed.yaml")
    find(pipeline, lake, 120)
    try:
        with planted:
            graph = Graph(changed, lake)
            versions = upgrade(lake, changed, graph.admit, None)
            detect_versions(graph, versions, InlineRunner(), Attempt(lake, "detect"), Settings(120, 2))
    except RepriseError as error:
        return {"numbers in the commit"} if "were published" in str(error) else {str(error)}
    return broken(changed, lake)


def shared_state(log: Path, folder: Path, planted: Planted) -> set[str]:
    """Chunks that meet in the same cells, batch after batch."""
    text = (
        PIPELINE.split("operators:")[0] + "operators:\n  busy: {aggregate: heavy_hitters, partition_by: key, threshold: 25}\n"
    )
    pipeline, lake = parse_pipeline(text, "small.yaml"), copy(log, folder)
    with planted, pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_jobs.stateful.SMALLEST_CHUNK", 10)
        find(pipeline, lake, 250)
    return broken(pipeline, lake)


def verdicts(log: Path, folder: Path, planted: Planted) -> set[str]:
    """What must not pass: a checker that crashes, a fault that never struck, half a log, an empty suite, anybody's lake."""

    def crashing(evidence: Any) -> Any:
        raise ZeroDivisionError("a bug")

    pipeline, lake = parse_pipeline(PIPELINE, "small.yaml"), copy(log, folder)
    with suppress(Killed):
        detect(pipeline, lake, InlineRunner(), Dying(lake, "detect.saved", 3, "probing"), Settings(120, 2))
    nobodys, empty = Lake(folder / "nobodys"), folder / "empty.yaml"
    nobodys.root.mkdir()
    empty.write_text("expectations: []")
    FaultPlan(lake).allow()
    FaultPlan(lake).arm(parse_fault("kill_driver:detect.saved@99"))
    with planted:
        (crash,) = checkers.run_checkers(SimpleNamespace(faults_armed=0, judged_before=0, trimmed=0), {"mine": crashing})
        found = broken(pipeline, lake)
        laws = {
            "a crash is unknown": crash.verdict is Verdict.UNKNOWN,
            "faults fired": "faults fired" in found,
            "completeness": "completeness" in found,
            "empty suite refused": refused(lambda: Suite(empty).close()),
            "FaultPlan refuses": refused(lambda: FaultPlan(nobodys).arm(parse_fault("kill_driver:detect.saved@1"))),
        }
    return {name for name, holds in laws.items() if not holds}


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except RepriseError:
        return True
    return False


def replicas(log: Path, folder: Path, planted: Planted) -> set[str]:
    """Schedules drawn from seeds: three replicas that are suspected, die and return, then a calm end."""
    found: set[str] = set()
    with planted:
        for seed in range(30):
            drawn, world = Random(seed), World(f=2, outputs=8)  # noqa: S311 - repeats itself
            for _ in range(120):
                number = drawn.randrange(3)
                match drawn.randrange(12):
                    case 0:
                        world.crash(number, lost=drawn.random() < 0.5)
                    case 1:
                        world.come_back(number)
                    case 2 | 3 | 4:
                        world.compute(number, drawn.choice(TYPES))
                    case 5 | 6 | 7:
                        world.tick(number, drawn.choice([0.1, 0.5, 1.0, 5.0]))
                    case _:
                        world.deliver(drawn.randrange(100))
            world.calm()
            for taken in world.receiver.taken.values():
                if taken != list(range(1, len(taken) + 1)):
                    found.add("received once and in order")
                if not taken or max(taken) < world.outputs:
                    found.add("all is received")
    return found


SCENARIOS: dict[str, Callable[[Path, Path, Planted], set[str]]] = {
    "schedules": schedules,
    "interrupted": interrupted,
    "cuts": cuts,
    "law": law,
    "plan": plan,
    "flipped": flipped,
    "flipped checkpoint": flipped_checkpoint,
    "ingested twice": ingested_twice,
    "trimmed": trimmed,
    "upgraded": upgraded,
    "replicas": replicas,
    "shared state": shared_state,
    "verdicts": verdicts,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_a_planted_fault_nothing_is_found(scenario: str, log: Path, tmp_path: Path) -> None:
    class Nothing(nullcontext[None]):
        """May be entered more than once."""

    assert SCENARIOS[scenario](log, tmp_path, Nothing()) == set()


class _Again:
    """A plant that may be entered more than once."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def __enter__(self) -> None:
        self._open = self._control.plant()
        self._open.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


@pytest.mark.parametrize("name", CONTROLS)
def test_the_checker_named_for_a_planted_fault_finds_it(name: str, log: Path, tmp_path: Path) -> None:
    control = CONTROLS[name]
    assert control.checker in SCENARIOS[control.scenario](log, tmp_path, _Again(control))


def test_there_are_enough_controls_and_every_scenario_has_one() -> None:
    assert len(CONTROLS) >= 24
    assert {control.scenario for control in CONTROLS.values()} == set(SCENARIOS)


def test_guarantees_lists_the_controls() -> None:
    """`python -m tests.controls` prints what belongs there."""
    text = GUARANTEES.read_text()
    assert text.split("<!-- controls -->\n")[1].split("\n<!-- /controls -->")[0] == table()
