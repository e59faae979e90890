"""The run: every workload through everybody, results compared, then times.

The same Parquet files, the same patterns, the same two cores, one run. Matches are compared before times are, as digests of
their SNs. Ours and the scan read 10 million events; peers read as many of the first ones as they can in some seconds, and are
compared on those. Times run from the first event read to the last match, in processes that have done the same before: neither
the start of a JVM nor that of Spark counts, for anybody.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.bars import Bar
from bench.engine import BATCH, detected, make_log
from bench.peers.digest import Digest, digest
from bench.peers.flink import CORES, Flink
from bench.peers.floor import run_floor
from bench.peers.page import write_page
from bench.peers.recovery import recovery_bars, recovery_lines
from bench.peers.results import (
    FLINK_CEP,
    FLINK_SQL,
    REPRISE,
    STREAMING,
    Result,
    compared,
    read_lines,
    times_faster,
    write_lines,
)
from bench.peers.streaming import run_streaming
from bench.peers.workloads import BY_NAME, LOGS, WORKLOADS, Windows, Workload
from spark_jobs.console import say
from spark_jobs.detect import Settings
from spark_jobs.lake.scan import LogFile, open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.runner import Runner, open_runner

EVENTS = 10_000_000
# The first commits of a log are small, so that who takes them as micro-batches has several.
FIRST_COMMITS, FIRST_EVENTS = 4, 1_000_000
ROUNDS = 3
# So that a run takes about ten seconds; equality is compared on as many. What is copied into 20 windows takes 20 times as long,
# and what Python does per key and micro-batch takes longest where no key comes twice.
PEER_EVENTS = {FLINK_CEP: 1_000_000, FLINK_SQL: 250_000, STREAMING: 500_000}
FEWER = {
    ("abcde, unkeyed", FLINK_CEP): 200_000,
    ("abcde, unkeyed", FLINK_SQL): 100_000,
    ("overlapping windows", FLINK_CEP): 100_000,
    ("overlapping windows", FLINK_SQL): 20_000,
    ("overlapping windows", STREAMING): 50_000,
    ("1,000,000 keys", STREAMING): 50_000,
}
TIMES_FASTER = {FLINK_CEP: 30, FLINK_SQL: 100, STREAMING: 50}
KEYED, OVERLAPPING = "abcde, keyed", "overlapping windows"


class Ours(NamedTuple):
    """What we did with one workload, and what we found up to each of some SNs."""

    result: Result
    found: dict[int, Digest]


def side_by_side(master: str) -> list[Bar]:
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, two_cores():
        flink = Flink.installed()
        results, windows = _throughput(master, Path(folder), flink)
        lines = [*(result.as_line() for result in results), {"kind": "windows", "overlapping_against_tumbling": windows}]
        write_lines(lines)  # a quarter of an hour's work, which nothing that comes after it may lose
        recovery = recovery_lines(master, Path(folder) / "recovery", flink)
    write_lines([*lines, *recovery])
    write_page()
    return [*throughput_bars(results), _windows_bar(windows), *recovery_bars(recovery)]


def after_a_kill(master: str) -> list[Bar]:
    """The recovery part alone; what was measured of the rest stays."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, two_cores():
        recovery = recovery_lines(master, Path(folder) / "recovery", Flink.installed())
    write_lines([*(line for line in read_lines() if line["kind"] in ("workload", "windows")), *recovery])
    write_page()
    return recovery_bars(recovery)


@contextmanager
def two_cores() -> Iterator[None]:
    """Everybody is started by this process, and gets its cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _throughput(master: str, folder: Path, flink: Flink) -> tuple[list[Result], float]:
    results: list[Result] = []
    windows = 0.0
    for name in LOGS:
        workloads = [workload for workload in WORKLOADS if workload.log == name]
        lake = Lake(folder / "lake")
        make_peers_log(workloads[0], lake, EVENTS)
        with open_runner(master, lake, "bench") as runner:
            ours = {workload.name: measured(workload, lake, runner) for workload in workloads}
            if OVERLAPPING in ours:
                windows = _against_tumbling(ours[OVERLAPPING].result, lake, runner)
        files = open_log(lake, workloads[0].pipeline().source.schema).files
        theirs = [*_floor(workloads, files, folder), *_peers(workloads, files, folder, flink, ours)]
        results += [one.result for one in ours.values()] + theirs
        shutil.rmtree(lake.root)
    return results, windows


def make_peers_log(workload: Workload, lake: Lake, events: int) -> None:
    pipeline, shape, first = workload.pipeline(), LOGS[workload.log], min(FIRST_EVENTS, events)
    make_log(pipeline, lake, replace(shape, events=first), commit=first // FIRST_COMMITS)
    make_log(pipeline, lake, replace(shape, events=events - first))


def measured(workload: Workload, lake: Lake, runner: Runner) -> Ours:
    """From Parquet to Delta, savepoint and commit included."""
    seconds = _seconds(workload, lake, runner)
    table = lake.read("complex_events", ["y", "sns"])
    sns = table["sns"].combine_chunks()
    found = {until: digest(table["y"], sns, until) for until in {EVENTS, *(_events(workload, who) for who in PEER_EVENTS)}}
    say(f"{workload.name}: {REPRISE}, {EVENTS / seconds:,.0f} events/s, {table.num_rows:,} matches")
    return Ours(Result(workload.name, REPRISE, EVENTS, seconds, *found[EVENTS], same=True), found)


def _seconds(workload: Workload, lake: Lake, runner: Runner) -> float:
    """The median; a first round warms up."""
    pipeline = workload.pipeline()
    rounds = [detected(pipeline, lake, runner, Settings(BATCH))[0] for _ in range(ROUNDS + 1)]
    return statistics.median(rounds[1:])


def _against_tumbling(overlapping: Result, lake: Lake, runner: Runner) -> float:
    """21 windows touch a stretch of 50 events where they overlap; one, where they follow each other."""
    windows = BY_NAME[overlapping.workload].windows
    assert windows is not None
    tumbling = replace(BY_NAME[overlapping.workload], windows=Windows(windows.size, windows.size))
    return overlapping.seconds / _seconds(tumbling, lake, runner)


def _floor(workloads: Sequence[Workload], files: Sequence[LogFile], folder: Path) -> list[Result]:
    paths = [file.path for file in files]
    scans = [{"files": paths, "columns": w.columns(), "predicates": w.row_predicates()} for w in workloads]
    results = []
    for workload, seconds in zip(workloads, run_floor(scans, folder), strict=True):
        results += [Result(workload.name, reader, EVENTS, time) for reader, time in seconds.items()]
    return results


def _peers(
    workloads: Sequence[Workload], files: Sequence[LogFile], folder: Path, flink: Flink, ours: dict[str, Ours]
) -> list[Result]:
    found = []
    for workload in workloads:
        for who in (FLINK_CEP, FLINK_SQL):
            found.append(flink.run(workload, who, files, _events(workload, who), folder / "flink"))
            _tell(found[-1])
    jobs = [(workload, _events(workload, STREAMING)) for workload in workloads]
    for result, _ in run_streaming(jobs, files, folder / "streaming"):
        found.append(result)
        _tell(result)
    shutil.rmtree(folder / "streaming")
    return [compared(result, ours[result.workload].found[result.events]) for result in found]


def _tell(result: Result) -> None:
    say(f"{result.workload}: {result.who}, {result.speed:,.0f} events/s, {result.matches:,} matches")


def _events(workload: Workload, who: str) -> int:
    return FEWER.get((workload.name, who), PEER_EVENTS[who])


# What is asked of them


def throughput_bars(results: Sequence[Result]) -> list[Bar]:
    by_name = {(result.workload, result.who): result for result in results}
    bars = []
    for workload in WORKLOADS:
        ours = by_name[workload.name, REPRISE]
        bars.append(Bar(f"{workload.name}: {REPRISE}", ours.speed, unit="events/s"))
        for who, limit in TIMES_FASTER.items():
            theirs = by_name[workload.name, who]
            bars.append(Bar(f"{workload.name}: {who}, the same matches (1: equal)", float(bool(theirs.same)), 1))
            if theirs.same:
                bars.append(Bar(f"{workload.name}: times the speed of {who}", times_faster(ours, theirs), limit, unit="times"))
        bars.append(_floor_bar(ours, results))
    return bars


def _floor_bar(ours: Result, results: Sequence[Result]) -> Bar:
    floor = min((r for r in results if r.workload == ours.workload and r.same is None), key=lambda r: r.seconds)
    limit = 2.0 if ours.workload == KEYED else None
    return Bar(f"{ours.workload}: time, against a scan by {floor.who}", ours.seconds / floor.seconds, limit, False, "times")


def _windows_bar(times: float) -> Bar:
    """Here with 20 times as many matches to be written; `reprise bench scale` has the bar for the matching alone."""
    return Bar("overlapping windows, against those that tumble", times, unit="times")
