"""A synthetic event log, laid out as logs arrive: landing/date=../hour=../source=../part-0.<format>.

The same arguments give the same bytes of data. Types are drawn evenly from a, b, c, ..., keys and sources
evenly from as many as asked for; disorder delays a share of the events whatever their source, delays and jitter keep a
source's events in order (delays.py), poison makes some rows unusable.
"""

from __future__ import annotations

import datetime as dt
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as pa_csv

from schemas.types import TIMESTAMP
from spark_jobs.delays import Burst, Delay, late, times
from spark_jobs.errors import RepriseError

Format = Literal["parquet", "jsonl", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "jsonl", "csv")

_BEGIN = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1_000_000)
_HOUR = 3_600_000_000


@dataclass(frozen=True)
class Recipe:
    """What to generate. `rate` is events per second of event time."""

    events: int
    types: int = 10
    keys: int = 1000
    sources: int = 2
    seed: int = 1
    rate: float = 10.0
    disorder: float = 0.0
    max_delay_s: float = 60.0
    poison: int = 0
    format: Format = "parquet"
    delays: tuple[Delay, ...] = ()
    jitter: int = 0  # the largest, in microseconds
    bursts: tuple[Burst, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.types <= 26:
            raise RepriseError(f"types are named a to z: --types must lie between 1 and 26, not {self.types}")
        if self.events < 0 or self.keys < 1 or self.sources < 1 or self.rate <= 0:
            raise RepriseError("--events must not be negative; --keys, --sources and --rate must be positive")
        if not 0 <= self.disorder <= 1:
            raise RepriseError(f"--disorder is the share of delayed events, between 0 and 1, not {self.disorder}")
        if not 0 <= self.poison <= self.events:
            raise RepriseError(f"--poison rows must lie between 0 and the {self.events} events, not {self.poison}")
        unknown = [delay.source for delay in self.delays if delay.source >= self.sources]
        if unknown:
            raise RepriseError(
                f"--delay names source s{unknown[0]}, but the {self.sources} sources are s0 to s{self.sources - 1}"
            )


def generate(recipe: Recipe, out: Path) -> int:
    """Write the log below `out`, which must not hold one already; the number of files."""
    if out.exists() and not out.is_dir():
        raise RepriseError(f"{out} is a file, not a folder. Nothing was written; choose another path.")
    if out.exists() and any(out.iterdir()):
        raise RepriseError(f"{out} is not empty. Landing files are never changed; choose another folder.")
    out.mkdir(parents=True, exist_ok=True)
    events = _events(recipe)
    hour = (np.asarray(events["seen"].cast(pa.int64())) - _BEGIN) // _HOUR
    source = np.asarray(events["source"])
    files = 0
    for number in np.unique(hour * recipe.sources + source):
        rows = np.flatnonzero(hour * recipe.sources + source == number)
        files += 1
        begin = dt.datetime.fromtimestamp((_BEGIN + int(number // recipe.sources) * _HOUR) / 1_000_000, dt.UTC)
        folder = out / f"date={begin:%Y-%m-%d}" / f"hour={begin:%H}" / f"source=s{number % recipe.sources}"
        folder.mkdir(parents=True)
        _write(events.take(pa.array(rows)).drop(["source"]), folder / f"part-0.{recipe.format}", recipe.format)
    return files


def _events(recipe: Recipe) -> pa.Table:
    random = np.random.default_rng(recipe.seed)
    n = recipe.events
    since = times(n, recipe.rate, recipe.bursts)
    ts = _BEGIN + since
    source = random.integers(0, recipe.sources, n)
    sequence = np.empty(n, np.int64)
    for number in range(recipe.sources):
        mine = source == number
        sequence[mine] = np.arange(1, mine.sum() + 1)
    delay = np.where(random.random(n) < recipe.disorder, random.random(n) * recipe.max_delay_s * 1_000_000, 0)
    seen = ts + delay.astype(np.int64)
    if recipe.delays or recipe.jitter:
        seen += late(since, source, recipe.delays, recipe.jitter, random) - since
    letters = pa.array(list(string.ascii_lowercase[: recipe.types]))
    table = pa.table({
        "source": pa.array(source),
        "seq": pa.array(sequence),
        "time": pa.array(ts, TIMESTAMP),
        "kind": letters.take(pa.array(random.integers(0, recipe.types, n))),
        "card": pc.binary_join_element_wise("k", pa.array(random.integers(0, recipe.keys, n)).cast(pa.string()), ""),
        "amount": pa.array(np.round(random.exponential(20.0, n), 2)),
        "seen": pa.array(seen, TIMESTAMP),
    })
    if recipe.poison:
        table = _poisoned(table, random.choice(n, recipe.poison, replace=False))
    return table.take(pa.array(np.argsort(seen, kind="stable")))


def _poisoned(table: pa.Table, rows: Any) -> pa.Table:
    """An event without a time is an event that cannot be used."""
    hit = np.zeros(table.num_rows, bool)
    hit[rows] = True
    time = pc.if_else(pa.array(hit), pa.scalar(None, TIMESTAMP), table["time"])
    return table.set_column(table.column_names.index("time"), "time", time)


def _write(table: pa.Table, file: Path, format_: Format) -> None:
    if format_ == "parquet":
        pq.write_table(table, file)
    elif format_ == "csv":
        pa_csv.write_csv(table, file)
    else:
        table.to_pandas().to_json(file, orient="records", lines=True, date_format="iso", date_unit="us")
