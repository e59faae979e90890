"""The floor: a plain scan that reads the columns a workload needs and evaluates the predicates that one row decides.

DuckDB, Polars and pyarrow, in an environment of their own, two threads each; the fastest is the floor. This file is also the
program that runs there: it imports nothing of ours.

    python floor.py JOBS    a JSON file with a list of scans; one JSON line per scan and reader
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".local" / "peers"
PACKAGES = ("duckdb==2.0.0", "polars==2.1.0", "pyarrow==26.0.1")
THREADS, ROUNDS = 2, 3
# pyarrow reads text as it is, or leaves it in the codes of the file.
READERS = ("DuckDB", "Polars", "pyarrow", "pyarrow, coded")


# The process that compares


def run_floor(scans: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, float]]:
    """Seconds by reader, for each of the scans: files, columns, and the types that each predicate wants."""
    python = _environment()
    (folder / "scans.json").write_text(json.dumps(list(scans)))
    environment = {**os.environ, "POLARS_MAX_THREADS": str(THREADS)}
    command = [str(python), __file__, str(folder / "scans.json")]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [{line["reader"]: line["seconds"] for line in lines if line["scan"] == number} for number in range(len(scans))]


def _environment() -> Path:
    """Installed when it is needed; its folder is named by what is in it."""
    home = HOME / "-".join(["scan", *(package.split("==")[1] for package in PACKAGES)])
    python = home / "bin" / "python"
    if not python.exists():
        uv = str(ROOT / ".venv" / "bin" / "uv")
        subprocess.run([uv, "venv", "-q", "--clear", "--no-cache", "--python", sys.executable, str(home)], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--no-cache", "--python", str(python), *PACKAGES], check=True)
    return python


# The program


def main() -> None:
    for number, scan in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        ways = {reader: _way(reader, scan["files"], scan["columns"], scan["predicates"]) for reader in READERS}
        counts = {reader: run() for reader, run in ways.items()}  # files are in memory now
        if len({tuple(found) for found in counts.values()}) > 1:
            raise SystemExit(f"the readers do not count the same: {counts}")
        seconds: dict[str, list[float]] = {reader: [] for reader in READERS}
        for _ in range(ROUNDS):
            for reader, run in ways.items():
                began = time.perf_counter()
                run()
                seconds[reader].append(time.perf_counter() - began)
        for reader, times in seconds.items():
            print(json.dumps({"scan": number, "reader": reader, "seconds": statistics.median(times)}))


def _way(reader: str, files: list[str], columns: list[str], predicates: list[str]) -> Callable[[], list[int]]:
    """A function that counts the rows that fit each predicate."""
    if reader == "DuckDB":
        return _duckdb(files, columns, predicates)
    if reader == "Polars":
        return _polars(files, columns, predicates)
    return _pyarrow(files, columns, predicates, coded=reader != "pyarrow")


def _duckdb(files: list[str], columns: list[str], predicates: list[str]) -> Callable[[], list[int]]:
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {THREADS}")
    counted = [f"count(*) FILTER (WHERE type IN ({', '.join(repr(t) for t in types)}))" for types in predicates]
    # An aggregate that takes next to nothing, or the column would not be read.
    touched = {"sn": "max(sn)", "stream_ts": "epoch_us(max(stream_ts))", "key": "max(strlen(key))", "v": "max(v)"}
    query = f"SELECT {', '.join([*counted, *(touched[c] for c in columns if c in touched)])} FROM read_parquet({files!r})"  # noqa: S608
    return lambda: list(connection.execute(query).fetchone())[: len(predicates)]


def _polars(files: list[str], columns: list[str], predicates: list[str]) -> Callable[[], list[int]]:
    import polars as pl

    counted = [pl.col("type").is_in(list(types)).sum().alias(f"p{i}") for i, types in enumerate(predicates)]
    touched = [(pl.col(c).str.len_bytes() if c == "key" else pl.col(c)).max().alias(f"c_{c}") for c in columns if c != "type"]

    def run() -> list[int]:
        return [int(n) for n in pl.scan_parquet(files).select(counted + touched).collect().row(0)[: len(predicates)]]

    return run


def _pyarrow(files: list[str], columns: list[str], predicates: list[str], *, coded: bool) -> Callable[[], list[int]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = [pa.array(list(types)) for types in predicates]
    text = ["type", "key"] if coded else None

    def fits(column: Any, types: Any) -> int:
        if not coded:
            return int(pc.sum(pc.is_in(column, types)).as_py() or 0)
        found = 0
        for chunk in column.chunks:
            codes = pc.indices_nonzero(pc.is_in(chunk.dictionary, types))
            found += int(pc.sum(pc.is_in(chunk.indices, codes.cast(chunk.indices.type))).as_py() or 0)
        return found

    def scan(path: str) -> list[int]:
        counts = [0] * len(wanted)
        with pq.ParquetFile(path, read_dictionary=text, memory_map=True) as file:
            for group in range(file.num_row_groups):
                types = file.read_row_group(group, columns=columns, use_threads=False)["type"]
                counts = [count + fits(types, types_wanted) for count, types_wanted in zip(counts, wanted, strict=True)]
        return counts

    def run() -> list[int]:
        with ThreadPoolExecutor(THREADS) as threads:
            return [sum(counts) for counts in zip(*threads.map(scan, files), strict=True)]

    return run


if __name__ == "__main__":
    main()
