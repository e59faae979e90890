"""What ordered transactions bring on two cores, and what they cost where every chunk conflicts with the one before it.

8,000,000 events after an opening, in files like those of the event log. One after the other is the same task, over the same
chunks, in one process without Spark. Both begin in the state that the opening leaves, in which accounts are opened and items
become known. Results are compared before times are; start-up is no part of it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.bars import Bar
from schemas.types import TIMESTAMP
from spark_jobs.cep.arrays import Int64s
from spark_jobs.lake.scan import LogFile, file_name
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import InlineRunner, Runner, open_runner
from spark_jobs.staging import write_log_file
from spark_jobs.stateful import AHEAD_PER_CORE, Chunks, chunk_size
from spark_jobs.tasks import read_arrow
from spark_jobs.transactions.predictor import Predictor
from spark_jobs.transactions.rounds import Tally, transact
from spark_jobs.transactions.state import State

OPENING, EVENTS, CORES, ROUNDS = 500_000, 8_000_000, 2, 5
ACCOUNTS, BUCKETS = 100_000, 8
KNOWN = 100  # items that come far more often than the others
SHARED = 500  # one event of so many draws on the account that all draw on

PIPELINE = """
name: transactions
source:
  attributes: {amount: int, moved: int, account: string, sometimes: string, item: string, any_item: string}
operators:
  covered: {aggregate: balance, partition_by: key, amount: amount}
  sometimes: {aggregate: balance, partition_by: sometimes, amount: moved}
  contested: {aggregate: balance, partition_by: account, amount: moved}
  known_hitters: {aggregate: heavy_hitters, partition_by: item, threshold: 1000}
  new_hitters: {aggregate: heavy_hitters, partition_by: any_item, threshold: 500}
"""
# By operator: what it is about, and what is expected of it.
WORKLOADS = {
    "covered": "balances that cover everything",
    "known_hitters": "heavy hitters that are known",
    "sometimes": "an account that all draw on, now and then",
    "contested": "an account that all draw on, in every chunk",
    "new_hitters": "new heavy hitters in every chunk",
}


@dataclass(frozen=True)
class Measured:
    """One workload, both ways."""

    alone: float  # seconds, the median
    ahead: float
    tally: Tally
    same: bool

    @property
    def factor(self) -> float:
        return self.alone / self.ahead


def transactions(master: str) -> list[Bar]:
    """The bars of parallel operators with shared state."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder) / "lake")
        log = written(OPENING + EVENTS, Path(folder))
        with open_runner(master, lake, "bench") as runner:
            found = {name: measured(name, log, Path(folder), runner) for name in WORKLOADS}
    bars: list[Bar] = []
    for name, what in WORKLOADS.items():
        done = found[name]
        limit = 1.6 if done.tally.conflicts < 0.01 else 0.8
        bars += [
            Bar(f"{what}: conflicts", done.tally.conflicts, unit="%"),
            Bar(f"{what}: one after the other", EVENTS / done.alone, unit="events/s"),
            Bar(f"{what}: {CORES} cores, times as fast", done.factor, limit, unit="x"),
        ]
    shares = [done.tally.conflicts for done in found.values()]
    return [
        *bars,
        Bar("least share of conflicts", min(shares), 0.01, at_least=False, unit="%"),
        Bar("results other than those of running one after the other", sum(not m.same for m in found.values()), 0, False),
    ]


def measured(name: str, log: list[LogFile], folder: Path, runner: Runner) -> Measured:
    events = log[-1].last_sn
    size = chunk_size((events - OPENING) // 2, AHEAD_PER_CORE * CORES)  # two rounds, if all may run ahead
    payloads = _payloads(name, log, [*range(OPENING, events, size), events])
    operator = parse_pipeline(PIPELINE, "bench").stateful[name]
    opening = Chunks(InlineRunner(), _payloads(name, log, [0, OPENING]), f"{folder}/{name}-opening")
    state, _, _ = transact(opening, 1, operator.beginning(), Predictor.beginning(1))
    ways = {"alone": (InlineRunner(), 1), "ahead": (runner, AHEAD_PER_CORE * CORES)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    results = {}
    for round_ in range(1 + ROUNDS):  # the first one is start-up: workers load what they have never used
        for way, (who, limit) in ways.items():
            chunks = Chunks(who, payloads, f"{folder}/{name}-{way}-{round_}")
            started = time.perf_counter()
            after, _, tally = transact(chunks, len(payloads), state, Predictor.beginning(limit))
            seconds[way].append(time.perf_counter() - started)
            results[way] = _said(chunks, after)
    alone, ahead = (statistics.median(seconds[way][1:]) for way in ways)
    return Measured(alone, ahead, tally, results["alone"] == results["ahead"])


def _said(chunks: Chunks, state: State) -> tuple[Any, ...]:
    found = pa.concat_tables(read_arrow(result["out"]).select(["_at_sn"]) for result in chunks.committed)
    return found["_at_sn"].to_pylist(), state.cells.tolist(), state.keys.to_pylist()


def _payloads(name: str, log: list[LogFile], cuts: list[int]) -> list[dict[str, Any]]:
    text = parse_pipeline(PIPELINE, "bench").model_dump_json(by_alias=True)
    return [
        {
            "pipeline": text,
            "operator": name,
            "files": [asdict(file) for file in log if file.last_sn > after and file.first_sn <= end],
            "after": after,
            "end": end,
            "shard": 0,
            "batch": 1,
            "faults": None,
        }
        for after, end in pairwise(cuts)
    ]


def written(events: int, folder: Path, per_file: int = 1_000_000) -> list[LogFile]:
    """A log in files as ingest leaves them: so many events each time, by bucket."""
    files = []
    for first in range(1, events + 1, per_file):
        table, bucket = _events(first, min(per_file, events + 1 - first), events)
        last = first + table.num_rows - 1
        for number in range(BUCKETS):
            path = f"{folder}/log/bucket={number}/{file_name(first, last, 1)}"
            rows = table.filter(pa.array(bucket == number))
            files.append(LogFile(write_log_file(rows, path), number, first, last))
    return files


def _events(first: int, count: int, events: int) -> tuple[pa.Table, Any]:
    random = np.random.default_rng(first)
    sn = np.arange(first, first + count)
    account = random.integers(0, ACCOUNTS, count)
    opens = sn <= ACCOUNTS
    account[opens] = sn[opens] - 1
    amount = np.where(opens, 10**9, random.integers(-100, 101, count))
    # One account that is mostly empty is drawn on everywhere, or in four short stretches of the log.
    shared = (random.integers(0, SHARED, count) == 0) & ~opens
    bursts = (sn % (events // 4)) - events // 8
    sometimes = (bursts >= 0) & (bursts < 1_000)
    drawn = random.integers(-200, 151, count)
    often = random.integers(0, 2, count) == 0
    item = np.where(often, random.integers(0, KNOWN, count), KNOWN + account)
    zipf = np.minimum(random.zipf(1.2, count), ACCOUNTS) - 1
    names = [f"account {k}" for k in range(ACCOUNTS)]
    columns = {
        "sn": pa.array(sn),
        "stream_ts": pa.array(sn, TIMESTAMP),
        "key": _texts(account, names),
        "amount": pa.array(amount),
        "moved": pa.array(np.where(shared | sometimes, drawn, amount)),
        "account": _texts(np.where(shared, ACCOUNTS, account), [*names, "shared"]),
        "sometimes": _texts(np.where(sometimes, ACCOUNTS, account), [*names, "shared"]),
        "item": _texts(item, [f"item {k}" for k in range(KNOWN + ACCOUNTS)]),
        "any_item": _texts(zipf, names),
    }
    return pa.table(columns), account % BUCKETS


def _texts(codes: Int64s, texts: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(texts))
