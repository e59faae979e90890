"""The bars of the engine: the kernel alone, and 50 million events from Parquet to Delta through Spark on 2 cores.

Results are compared before times are: the naive automaton in C has to count the same matches, the slow reference run has
to find the same complex events. The kernel is timed by the CPU-seconds of its thread, so that "per core" holds on a busy
machine too; everything else by the clock. What is compared with one another is measured in turns.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.bars import Bar
from schemas import event_log
from schemas.types import TIMESTAMP
from spark_jobs.cep.arrays import FLOORS_NEEDED, FLOORS_NEVER
from spark_jobs.cep.kernel import Stream, count, match
from spark_jobs.cep.windows import Window
from spark_jobs.dataframe import match as match_frame
from spark_jobs.detect import Detected, Settings, detect
from spark_jobs.ingest import BUCKETS, NUMBERED
from spark_jobs.lake.commit import add_file, claim
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.scan import LAST_SN, STREAM_TS, buckets, file_name, open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import Runner, SparkRunner, open_runner
from spark_jobs.staging import write_log_file
from spark_jobs.verify.job import verify

KERNEL_EVENTS = 1_000_000
STEPS, TYPES = 5, 10
SIZE, SLIDE = 1_000, 50
NAIVE = Path(__file__).with_name("naive.c")

EVENTS = 50_000_000
KEYS = 10_000
RARELY = 1 / 10_000
BATCH = 10_000_000  # so that scheduling, savepoint and commit (about 0.2 s) stay below a tenth of a batch
COMPARED = 10_000_000  # events where two ways of cutting the work are compared
INGEST = 10_000_000  # events per commit of the event log
ROUNDS = 3
# One event per millisecond, as in `reprise bench loop`.
MICROSECONDS = 1_000
BEGIN = 1_700_000_000_000_000

PIPELINE = """
name: engine
source:
  columns: {{ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}}
  buckets: 8
operators:
  abcde:
    partition_by: key
    pattern: A -> B -> C -> D -> E
    define: {{A: type = 'a', B: type = 'b', C: type = 'c', D: type = 'd', E: type = 'e'}}
    {limit}
"""


SQL = """SELECT * FROM log MATCH_RECOGNIZE (
  PARTITION BY key ORDER BY stream_ts MEASURES A.sn AS first, E.sn AS last
  PATTERN (A -> B -> C -> D -> E) WITHIN INTERVAL '100' SECONDS
  DEFINE A AS type = 'a', B AS type = 'b', C AS type = 'c', D AS type = 'd', E AS type = 'e')"""


def engine(master: str) -> list[Bar]:
    return [*_kernel_bars(), *_end_to_end_bars(master)]


# The kernel alone


def _kernel_bars() -> list[Bar]:
    types = np.random.default_rng(1).integers(0, TYPES, KERNEL_EVENTS)
    rows = np.flatnonzero(types < STEPS)
    stream = Stream(np.array([0, rows.size]), 1 << types[rows], rows + 1, (rows + 1) * MICROSECONDS)
    naive = _naive(types.astype(np.uint8))

    def positions(window: Window, keep: bool = True) -> int:
        found = match(
            stream,
            STEPS,
            window,
            within=0,
            to_next_row=False,
            first_window=1,
            after_sn=0,
            end_sn=KERNEL_EVENTS,
            watermark=KERNEL_EVENTS * MICROSECONDS,
            report_floors=FLOORS_NEEDED if keep else FLOORS_NEVER,
            keep=keep,
        )
        return int(found.window.size)

    sliding, tumbling = Window("count", SIZE, SLIDE), Window("count", SIZE, SIZE)
    ways: dict[str, Callable[[], int]] = {
        "written": lambda: positions(sliding),
        "nothing kept": lambda: positions(sliding, keep=False),
        "counted": lambda: count(stream, STEPS, SIZE, SLIDE),
        "naive": naive,
        "tumbling": lambda: positions(tumbling),
        "tumbling, counted": lambda: count(stream, STEPS, SIZE, SIZE),
    }
    best, answers = _in_turns(ways, 40)
    same = len({answers[way] for way in ("written", "nothing kept", "counted", "naive")}) == 1
    speed = {way: KERNEL_EVENTS / seconds for way, seconds in best.items()}
    return [
        Bar("kernel: ways that find the same number of matches (of 4)", 4.0 if same else 0.0, 4),
        Bar("kernel: all positions written out, windows of 1,000 by 50", speed["written"], 40e6, unit="events/s"),
        Bar("kernel: counting only, against a naive automaton in C", speed["counted"] / speed["naive"], 1, unit="times"),
        Bar("kernel: counting only", speed["counted"], unit="events/s"),
        Bar("naive automaton in C (cc -O3)", speed["naive"], unit="events/s"),
        Bar("kernel: 21 windows against one, counting only", best["counted"] / best["tumbling, counted"], unit="times"),
        Bar("kernel: .. writing out 20 times as many positions", best["written"] / best["tumbling"], unit="times"),
        Bar("kernel: bookkeeping of what is held", best["written"] / best["nothing kept"] - 1, 0.05, False, "%"),
    ]


def _naive(types: Any) -> Callable[[], int]:
    """bench/naive.c, compiled now."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "naive.so"
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", str(library), str(NAIVE)], check=True)
        call = ctypes.CDLL(str(library)).count_matches
    call.restype = ctypes.c_int64
    call.argtypes = [ctypes.c_void_p, *([ctypes.c_int64] * 4)]
    return lambda: int(call(types.ctypes.data, types.size, STEPS, SIZE, SLIDE))


def _in_turns(ways: dict[str, Callable[[], int]], rounds: int) -> tuple[dict[str, float], dict[str, int]]:
    """The fewest CPU-seconds of each way, and its answer; a first round warms up."""
    best = dict.fromkeys(ways, float("inf"))
    answers = {way: run() for way, run in ways.items()}
    for _ in range(rounds):
        for way, run in ways.items():
            started = time.thread_time()
            run()
            best[way] = min(best[way], time.thread_time() - started)
    return best, answers


# From Parquet to Delta


@dataclass(frozen=True)
class Shape:
    """A log to be made: how many events and keys. Of the keys, `rare` ones share RARELY of the events among them, and one
    has the share `hot` of all."""

    events: int
    keys: int
    rare: int = 0
    hot: float = 0.0


def _end_to_end_bars(master: str) -> list[Bar]:
    with (
        tempfile.TemporaryDirectory(prefix="engine-") as folder,
        open_runner(master, Lake(Path(folder) / "spark"), "bench") as runner,
    ):
        return [
            *_large(Path(folder) / "large", runner),
            *windows(Path(folder) / "windows", runner),
            *_keys(Path(folder), runner),
            *_checked(Path(folder) / "checked", runner),
            *_through_the_jvm(Path(folder) / "jvm", runner),
        ]


def _large(folder: Path, runner: Runner) -> list[Bar]:
    pipeline, lake = pipeline_with("within: 100 s"), Lake(folder)
    make_log(pipeline, lake, Shape(EVENTS, KEYS))
    done = detected(pipeline, lake, runner, Settings(BATCH))[1]  # warm: files in memory, workers forked
    before = _busy(), time.perf_counter()
    scans, detections = [], []
    for _ in range(ROUNDS):
        scans.append(_timed(lambda: _scan(pipeline, lake, plain=True)))
        detections.append(_timed(lambda: detected(pipeline, lake, runner, Settings(BATCH))))
    others = (_busy() - before[0] - sum(cpu for _, cpu in scans + detections)) / (time.perf_counter() - before[1])
    coded = _timed(lambda: _scan(pipeline, lake, plain=False))
    many_wall, many = detected(pipeline_with("after_match: past last row"), lake, runner, Settings(BATCH))
    shutil.rmtree(folder)
    (scan_wall, scan_cpu), (wall, cpu) = min(scans), min(detections)
    return [
        Bar("Parquet to Delta through Spark, 50,000,000 events", EVENTS / wall, 8e6, unit="events/s"),
        Bar(".. its time, against a plain Arrow scan of the same columns", wall / scan_wall, 2, False, "times"),
        Bar(".. the same in CPU-seconds", cpu / scan_cpu, unit="times"),
        Bar(".. against an Arrow scan that leaves text as codes", wall / coded[0], unit="times"),
        Bar(".. CPU-seconds, driver, JVM and workers", cpu, unit="s"),
        Bar(".. cores that other processes used meanwhile", others),
        Bar(".. matches", float(done.matches)),
        Bar(f"the same without WITHIN, {many.matches:,} matches", EVENTS / many_wall, unit="events/s"),
        *(Bar(f".. seconds: {what}", seconds, unit="s") for what, seconds in sorted(done.seconds.items())),
    ]


def windows(folder: Path, runner: Runner) -> list[Bar]:
    """Of windows of 1,000,000 events by 50,000, 20 cover an event and 21 touch a stretch of 50,000; one, if they tumble.

    With WITHIN, so that what is compared is the matching of windows and not the writing of 20 times as many matches.
    """
    size = 1_000_000
    sliding, tumbling = (
        pipeline_with(f"within: 100 s\n    window: {{count: {size}, slide: {slide}}}") for slide in (size // 20, size)
    )
    lake = Lake(folder)
    make_log(sliding, lake, Shape(COMPARED, KEYS))
    many, one = _against((sliding, lake), (tumbling, lake), runner)
    shutil.rmtree(folder)
    return [Bar("21 overlapping windows, against one", many / one, 2, False, "times")]


def _keys(folder: Path, runner: Runner) -> list[Bar]:
    """Without WITHIN, so that every key's unfinished run is held at the end."""
    pipeline = pipeline_with("after_match: past last row")
    lakes = [Lake(folder / f"keys-{keys}") for keys in (1_000_000, 1_000)]
    for lake, keys in zip(lakes, (1_000_000, 1_000), strict=True):
        make_log(pipeline, lake, Shape(COMPARED, keys))
    many, few = _against((pipeline, lakes[0]), (pipeline, lakes[1]), runner)
    for lake in lakes:
        shutil.rmtree(lake.root)
    return [Bar("1,000,000 keys, against 1,000", many / few, 1.5, False, "times")]


def _checked(folder: Path, runner: Runner) -> list[Bar]:
    """The same pipeline and the same way of making the log, small enough for the reference run."""
    pipeline, lake = pipeline_with("within: 100 s"), Lake(folder)
    make_log(pipeline, lake, Shape(1_000_000, 1_000))
    detected(pipeline, lake, runner, Settings(300_000))
    (verdict,) = verify(pipeline, lake)
    return [
        Bar("complex events equal to the reference run (1: valid)", float(verdict.verdict == "valid"), 1),
        Bar(".. complex events compared", float(verdict.reference_matches)),
    ]


def _through_the_jvm(folder: Path, runner: Runner) -> list[Bar]:
    """What tasks save that read their own files: the same log through Spark's scan, shuffle and Arrow transfer."""
    if not isinstance(runner, SparkRunner):
        return []
    pipeline, lake = pipeline_with("within: 100 s"), Lake(folder)
    make_log(pipeline, lake, Shape(COMPARED, KEYS))
    files = [file.path for file in open_log(lake, pipeline.source.schema).files]
    answers: dict[str, tuple[int, ...]] = {}

    def own() -> None:
        detected(pipeline, lake, runner, Settings(COMPARED))

    def through() -> None:
        frame = SparkSession(runner.context()).read.parquet(*files).select("sn", "stream_ts", "type", "key")
        (found,) = match_frame(frame, SQL).agg({"first": "sum", "last": "sum", "*": "count"}).collect()
        answers["through"] = (found["count(1)"], found["sum(first)"], found["sum(last)"])

    cpu = {name: min(_timed(run)[1] for _ in range(2)) for name, run in (("own", own), ("through", through))}
    sns = lake.read("complex_events")["sns"].combine_chunks()
    answers["own"] = (len(sns), pc.sum(pc.list_element(sns, 0)).as_py(), pc.sum(pc.list_element(sns, STEPS - 1)).as_py())
    shutil.rmtree(folder)
    return [
        Bar("10,000,000 events, tasks read their own files", cpu["own"], unit="CPU-s"),
        Bar(".. through Spark's scan, shuffle and the Arrow transfer", cpu["through"], unit="CPU-s"),
        Bar(".. with the same matches (1: equal)", float(answers["own"] == answers["through"]), 1),
    ]


def _against(one: tuple[Pipeline, Lake], other: tuple[Pipeline, Lake], runner: Runner) -> tuple[float, float]:
    """Wall times of two detections, in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for round_ in range(4):
        for (pipeline, lake), walls in zip((one, other), times, strict=True):
            wall, _ = detected(pipeline, lake, runner, Settings(BATCH))
            walls += [wall] if round_ else []
    return min(times[0]), min(times[1])


def detected(pipeline: Pipeline, lake: Lake, runner: Runner, settings: Settings) -> tuple[float, Detected]:
    for table in ("complex_events", "savepoints", "versions"):
        shutil.rmtree(lake.path(table), ignore_errors=True)
    attempt = Attempt(lake, "bench")
    started = time.perf_counter()
    (done,) = detect(pipeline, lake, runner, attempt, settings)
    return time.perf_counter() - started, done


def _scan(pipeline: Pipeline, lake: Lake, plain: bool) -> None:
    """Two threads read the columns detection reads; `plain`: as Arrow does by itself."""
    files = [file.path for file in open_log(lake, pipeline.source.schema).files]
    columns = ["sn", "stream_ts", "type", "key"]

    def read(path: str) -> None:
        with pq.ParquetFile(path, read_dictionary=None if plain else ["type", "key"], memory_map=True) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=columns, use_threads=False)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(read, files))


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU-seconds, those of child processes included."""
    started, cpu = time.perf_counter(), _cpu_seconds()
    run()
    return time.perf_counter() - started, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Of this process and all below it: the JVM, and Spark's Python workers."""
    stats = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may have ended meanwhile
            fields = file.read_text().rpartition(")")[2].split()
            stats[int(file.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in stats.items() if parent in ours} - ours:
        ours |= more
    return sum(stats[pid][1] for pid in ours) / os.sysconf("SC_CLK_TCK")


def _busy() -> float:
    """CPU-seconds that the machine has worked since it was started, for whomever."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def pipeline_with(limit: str) -> Pipeline:
    return parse_pipeline(PIPELINE.format(limit=limit), "engine.yaml")


def make_log(pipeline: Pipeline, lake: Lake, shape: Shape, commit: int = INGEST) -> None:
    """Events at the end of the log as ingest would leave it, without landing files: random, one per millisecond.

    What is in memory is the events of one commit and their keys, however many there are in all.
    Attributes are numbers between 0 and 1.
    """
    place = claim(lake.open("event_log", pipeline.source.schema, event_log.PARTITION_BY), "ingest")
    begin = place.handle.transaction_version(LAST_SN) or 0
    rng = np.random.default_rng(shape.keys + begin)
    for first in range(begin, begin + shape.events, commit):
        last = min(first + commit, begin + shape.events)
        used, key = np.unique(_random_keys(rng, shape, last - first), return_inverse=True)
        keys = pc.binary_join_element_wise("key-", pc.utf8_lpad(pa.array(used).cast(pa.string()), 7, "0"), "")
        type_ = rng.integers(0, TYPES, last - first, dtype=np.int32)
        attributes = {name: rng.random(last - first) for name in pipeline.source.attribute_types}
        bucket = buckets(keys, pipeline.source.buckets)[key].astype(np.uint8)
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(pipeline.source.buckets + 1))
        files = []
        for number in range(pipeline.source.buckets):
            rows = order[bounds[number] : bounds[number + 1]]
            if not rows.size:
                continue
            folder = f"{lake.path('event_log')}/bucket={number}"
            path = f"{folder}/{file_name(first + 1, last, 1)}"
            events = _events(rows + first + 1, type_[rows], key[rows], keys)
            for attribute, values in attributes.items():
                events = events.append_column(attribute, pa.array(values[rows]))
            path = write_log_file(events, path)
            name = f"bucket={number}/{Path(path).name}"
            files.append(add_file(lake.path("event_log"), name, rows.size, bucket=str(number)))
        also = {
            STREAM_TS: BEGIN + last * MICROSECONDS,
            LAST_SN: last,
            BUCKETS: pipeline.source.buckets,
            NUMBERED: 1,
        }
        place.publish(files, pipeline.source.schema, 1, event_log.PARTITION_BY, also)


def _random_keys(rng: np.random.Generator, shape: Shape, count: int) -> Any:
    common = shape.keys - shape.rare
    keys = rng.integers(0, common, count, dtype=np.int32)
    if shape.rare:
        rare = np.flatnonzero(rng.random(count) < RARELY)
        keys[rare] = rng.integers(common, shape.keys, rare.size)
    if shape.hot:
        keys[rng.random(count) < shape.hot] = 0
    return keys


def _events(sn: Any, type_: Any, key: Any, keys: pa.Array) -> pa.Table:
    ts = pa.array(BEGIN + sn * MICROSECONDS, TIMESTAMP)
    used, code = np.unique(key, return_inverse=True)
    source = pa.DictionaryArray.from_arrays(pa.array(np.zeros(sn.size, np.int32)), pa.array(["bench"]))
    letters: Sequence[str] = [chr(ord("a") + letter) for letter in range(TYPES)]
    columns = {
        "sn": pa.array(sn),
        "source": source,
        "source_seq": pa.array(sn),
        "type": pa.DictionaryArray.from_arrays(pa.array(type_), pa.array(letters)),
        "key": pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), keys.take(pa.array(used))),
        "ts": ts,
        "arrival_ts": ts,
        "stream_ts": ts,
    }
    schema = pa.schema([pa.field(name, column.type, nullable=False) for name, column in columns.items()])
    return pa.table(list(columns.values()), schema=schema)
