"""The bars of replicated detection: real replicas of which all but one are killed, and the paper's evaluation, simulated.

Every run starts three processes, `reprise detect --replica`, on a copy of one lake, kills two of them with SIGKILL at times
drawn from a seed, whoever leads then, and lets the last one finish. The verdict is that of `reprise verify`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.bars import Bar
from bench.replication_simulation import FAILURES, Measured, evaluation
from bench.transactions import transactions
from spark_jobs.cep.columns import int64s
from spark_jobs.console import say
from spark_jobs.delays import parse_delay
from spark_jobs.drills.processes import Process, Start, Warm, awaited
from spark_jobs.drills.trial import Ground, prepare
from spark_jobs.errors import RepriseError
from spark_jobs.generate import Recipe
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.ordering.revisions import net
from spark_jobs.pipeline_file import load_pipeline
from spark_jobs.replication.heartbeats import Heartbeats
from spark_jobs.verify.expectations import Suite
from spark_jobs.verify.job import open_suites, verify
from spark_jobs.verify.verdict import Verdict, worst

RUNS, F = 50, 2
HEARTBEAT = 0.5
# How often the output may pause for longer than this many heartbeats: never.
PAUSE_HEARTBEATS = 3.0
SECONDS = 180.0
PIPELINE = f"""
name: replicated
source:
  columns: {{ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}}
  attributes: {{amount: double}}
operators:
  probing:
    partition_by: key
    pattern: A -> B -> C
    define: {{A: type = 'a', B: type = 'b', C: type = 'c'}}
    within: 5 min
recovery: {{strategy: replication, f: {F}, heartbeat: {int(1000 * HEARTBEAT)} ms}}
"""
# How far one of two sources is behind the other, in seconds.
BEHIND = 600


@dataclass(frozen=True)
class Work:
    """What replicas have to do."""

    recipe: Recipe
    batch_events: int
    text: str = PIPELINE

    @property
    def batches(self) -> int:
        return self.recipe.events // self.batch_events

    def ground(self, home: Path) -> Ground:
        home.mkdir()
        (home / "replicated.yaml").write_text(self.text)
        return prepare(home / "replicated.yaml", home, self.recipe)


PLAIN = Work(Recipe(20_000, types=4, keys=20, rate=2.0), 400)


class Match(NamedTuple):
    """A complex event, by what it is made of."""

    key: str
    sns: tuple[int, ...]
    sources: frozenset[str]


@dataclass(frozen=True)
class Run:
    """What came of one."""

    verdict: Verdict
    killed: int  # before they were done
    pauses: tuple[float, ...]  # seconds without output around the death of each leader
    again: int  # batches that a replica computed twice
    available: dict[Match, int]  # by complex event that stands: what time it was when it was published
    retracted: int


def replication(master: str) -> list[Bar]:
    measured = evaluation()
    return [*failover_bars(failovers(RUNS)), *speculation_bars(), *simulation_bars(measured), *transactions(master)]


def simulation_bars(measured: Sequence[Measured]) -> list[Bar]:
    """Seed 003, figures 5 to 8."""
    bars = [Bar("simulated: runs whose output is wrong", sum(not m.right for m in measured), 0, at_least=False)]
    for failure in (FAILURES[0], FAILURES[-1]):
        runs = [m for m in measured if m.failure == failure]
        slope, at_zero, fit = _line([m.f for m in runs], [m.messages for m in runs])
        say(f"p_fail {failure:.1%}: messages = {at_zero:,.0f} + {slope:,.0f} f, R2 = {fit:.5f}")
        bars.append(Bar(f"simulated: messages linear in f at p_fail {failure:.1%}, R2", fit, 0.98))
    worst_count = max(abs(m.leaders - 1) for m in measured if m.f)
    bars.append(Bar("simulated: average number of leaders, furthest from 1", worst_count, 0.05, at_least=False))
    most = max(m.duplicates / m.messages for m in measured)
    return [*bars, Bar("simulated: duplicates, largest share of the messages", most, unit="%")]


def failover_bars(runs: Sequence[Run]) -> list[Bar]:
    pauses = [pause / HEARTBEAT for run in runs for pause in run.pauses]
    return [
        Bar("runs in which f of f + 1 were killed", len(runs), RUNS),
        Bar("replicas killed at work", sum(run.killed for run in runs) / (F * len(runs)), 1.0, unit="%"),
        _not_valid("verdicts that are not valid", runs),
        Bar("longest pause after the death of a leader, heartbeats", max(pauses), PAUSE_HEARTBEATS, at_least=False),
        Bar("median pause after the death of a leader, heartbeats", float(np.median(pauses))),
        Bar("leaders killed", len(pauses)),
        Bar("batches computed again by a survivor", sum(run.again for run in runs), 0, at_least=False),
    ]


def _not_valid(name: str, runs: Sequence[Run]) -> Bar:
    return Bar(name, sum(run.verdict is not Verdict.VALID for run in runs), 0, at_least=False)


def speculation_bars() -> list[Bar]:
    """Seed 002: two sources feed one operator, and one is behind. Who speculates does not wait for it; who waits is right.

    Both ways lose two of three replicas. A complex event that stands at the end was available when it was asserted last.
    """
    late = Recipe(8_000, types=4, keys=20, rate=2.0, delays=(parse_delay(f"s1 from 0 s for 1 d by {BEHIND} s"),))
    text = PIPELINE.replace("A -> B -> C", "A -> !B -> C")  # of which a late event can take something back
    guessing, waiting = (
        failovers(1, Work(late, 80, f"{text}ordering: {{speculation: {alpha}, revise: 1 h}}\n"))[0] for alpha in (0, 1)
    )
    both = guessing.available.keys() & waiting.available.keys()
    # What is made of events of the slower source nobody can know before they come.
    quick = [match for match in both if match.sources == {"s0"}]
    earlier = np.array([waiting.available[match] - guessing.available[match] for match in quick]) / 1e6
    wrong = len(waiting.available.keys() - guessing.available.keys())
    return [
        Bar("speculation: results that stand both ways", len(both)),
        Bar("speculation: of them without an event of the slower source", len(quick)),
        Bar("speculation: results taken back", guessing.retracted),
        Bar("speculation: earlier, of what the slower source takes", float(np.median(earlier)) / BEHIND, 0.95, unit="%"),
        Bar("speculation: final results that are wrong", wrong, 0, at_least=False),
        _not_valid("speculation: verdicts that are not valid", (guessing, waiting)),
    ]


def failovers(runs: int, work: Work = PLAIN) -> list[Run]:
    with tempfile.TemporaryDirectory() as folder:
        ground = work.ground(Path(folder) / "ground")
        start = Warm()
        with open_suites() as suite:
            return [_failover(work, ground, Path(folder) / f"run-{number}", number, start, suite) for number in range(runs)]


def _failover(work: Work, ground: Ground, folder: Path, seed: int, start: Start, suite: Suite) -> Run:
    """Kill all replicas but one at drawn moments of the work."""
    drawn = random.Random(f"failover {seed}")  # noqa: S311 - repeats itself
    shutil.copytree(ground.lake, folder / "lake")
    lake, pipeline = Lake(folder / "lake"), load_pipeline(ground.pipeline)
    doomed = drawn.sample(range(F + 1), F)
    moments = sorted(drawn.uniform(1, 0.8 * work.batches) for _ in doomed)
    words = ["detect", str(ground.pipeline), "--lake", str(lake.root), "--batch-events", str(work.batch_events)]
    running: dict[int, Process] = {}
    killed: list[tuple[int, float]] = []
    try:
        for number in range(F + 1):
            arguments = [*words, "--master", "inline", "--replica", str(number)]
            running[number] = start(arguments, dict(os.environ), folder / "replicas.log")
        for number, moment in zip(doomed, moments, strict=True):
            if not awaited(partial(_has_published, lake, int(moment)), SECONDS):
                raise RepriseError(f"replicas did not get to batch {moment:.0f} in time: {folder}/replicas.log")
            time.sleep(drawn.uniform(0, HEARTBEAT))  # a moment between two heartbeats is what is drawn here
            os.kill(running[number].pid, signal.SIGKILL)
            killed.append((running[number].pid, time.time()))
        codes = {number: process.wait(SECONDS) for number, process in running.items()}
    finally:
        for process in running.values():
            _end(process)
    (last,) = set(running) - set(doomed)
    if codes[last] != 0:
        raise RepriseError(f"the last replica ended with exit code {codes[last]}: {folder}/replicas.log")
    verdict = worst(verification.verdict for verification in verify(pipeline, lake, suite=suite))
    history = read_history(lake)
    killed_at_work = sum(codes[number] < 0 for number in doomed)
    rows, log = lake.read("complex_events"), lake.read("event_log", ["sn", "stream_ts", "source"]).sort_by("sn")
    standing = net(rows)
    run = Run(
        verdict,
        killed_at_work,
        _pauses(history, killed),
        _again(history),
        _available(standing, log, work.batch_events),
        (rows.num_rows - standing.num_rows) // 2,
    )
    shutil.rmtree(folder)
    return run


def _end(process: Process) -> None:
    try:
        process.wait(0)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)


def _has_published(lake: Lake, batch: int) -> bool:
    return _published(lake) >= batch


def _published(lake: Lake) -> int:
    beats = Heartbeats(lake, "replicated", number=-1).peers()
    return max((beat.acknowledged.get("probing/1", 0) for beat in beats), default=0)


def _pauses(history: Sequence[dict[str, Any]], killed: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """From the last batch that a killed leader has published to the first of its successor."""
    commits = [(row["at"].timestamp(), row["attempt"]) for row in history if (row["kind"], row["name"]) == _COMMIT]
    attempts = {row["detail"]["pid"]: row["attempt"] for row in history if row["kind"] == "attempt"}
    pauses = []
    for pid, at in killed:
        before = [commit for commit in commits if commit[0] <= at]
        after = [commit for commit in commits if commit[0] > at]
        if before and after and before[-1][1] == attempts[pid]:
            pauses.append(after[0][0] - before[-1][0])
    return tuple(pauses)


_COMMIT = ("commit", "complex_events")


def _available(standing: pa.Table, log: pa.Table, batch_events: int) -> dict[Match, int]:
    """The clock is that of the log: how far its events say that time has come, after every batch."""
    clock = int64s(log["stream_ts"])[batch_events - 1 :: batch_events]
    source = log["source"].to_pylist()
    return {
        Match(row["key"], tuple(row["sns"]), frozenset(source[sn - 1] for sn in row["sns"])): int(clock[row["batch"] - 1])
        for row in standing.to_pylist()
    }


def _again(history: Sequence[dict[str, Any]]) -> int:
    began = [(row["attempt"], row["batch"]) for row in history if row["name"] == "detect.started"]
    return len(began) - len(set(began))


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Slope, value at 0, and how much of the variation the line explains."""
    slope, at_zero = np.polyfit(x, y, 1)
    return float(slope), float(at_zero), float(np.corrcoef(x, y)[0, 1] ** 2)
