"""Spark Structured Streaming as a peer, in a process of its own: by_hand.py in applyInPandasWithState, state in RocksDB.

python -m bench.peers.streaming JOBS    a JSON file with a list of jobs; one JSON line per job

Every ingest of the log is one micro-batch. Rows that no step can use are left out before anything is shuffled, and what is
found is written as Parquet files. The same query has run on a part of the events before; the time is that of the micro-batches.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from bench.peers.by_hand import Row, by_hand
from bench.peers.digest import digest
from bench.peers.results import STREAMING, Result, bytes_below
from bench.peers.workloads import BY_NAME, Workload
from spark_jobs.errors import RepriseError
from spark_jobs.lake.scan import LogFile

ROOT = Path(__file__).resolve().parents[2]
CORES = 2
WARM_UP = 10_000
SCHEMA = "sn long, stream_ts timestamp, type string, key string, v double"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


# The process that compares


def run_streaming(jobs: Sequence[tuple[Workload, int]], files: Sequence[LogFile], folder: Path) -> list[tuple[Result, int]]:
    """Workloads over one log, each with so many of its events; what came of each, and the bytes of its checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    log = _linked(files, max(events for _, events in jobs), folder / "log")
    buckets = len({file.bucket for file in files})
    told = [{"workload": workload.name, "events": events, "log": str(log), "buckets": buckets} for workload, events in jobs]
    (folder / "jobs.json").write_text(json.dumps(told))
    command = [sys.executable, "-m", "bench.peers.streaming", str(folder / "jobs.json")]
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise RepriseError(f"{STREAMING} failed: {done.stderr[-2000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [(Result(**line["result"]), line["checkpoint_bytes"]) for line in lines]


def _linked(files: Sequence[LogFile], events: int, folder: Path) -> Path:
    """The files that hold these events, under one roof; a stream of files takes them in the order of their times."""
    folder.mkdir()
    for file in files:
        if file.first_sn <= events:
            os.link(file.path, folder / f"{file.first_sn:012}-{file.bucket}.parquet")
    return folder


# The process that streams


def main() -> None:
    path = Path(sys.argv[1])
    spark = _session(path.parent)
    for job in json.loads(path.read_text()):
        workload = BY_NAME[job["workload"]]
        for events in (min(WARM_UP, job["events"] // 2), job["events"]):
            out, checkpoint = path.parent / "out", path.parent / "checkpoint"
            for old in (out, checkpoint):
                shutil.rmtree(old, ignore_errors=True)
            seconds = _streamed(spark, workload, job, events, out, checkpoint)
        found = ds.dataset(out, format="parquet").to_table()
        matches = digest(found["y"], found["sns"].combine_chunks(), job["events"])
        result = Result(workload.name, STREAMING, job["events"], seconds, matches.matches, matches.sum)
        sys.stdout.write(json.dumps({"result": result.__dict__, "checkpoint_bytes": bytes_below(checkpoint)}) + "\n")
        sys.stdout.flush()
    spark.stop()


def _session(folder: Path) -> SparkSession:
    settings = {
        "spark.driver.memory": "4g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
        "spark.local.dir": str(folder),
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("peers")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _streamed(spark: SparkSession, workload: Workload, job: dict[str, Any], events: int, out: Path, checkpoint: Path) -> float:
    """Seconds of all micro-batches."""
    log = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", job["buckets"]).parquet(job["log"])
    found = _grouped(log.where(f.col("sn") <= events), workload)
    writer = found.writeStream.format("parquet").outputMode("append")
    query = writer.option("path", str(out)).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return float(sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)) / 1000


def _grouped(log: DataFrame, workload: Workload) -> DataFrame:
    if not workload.rising:
        log = log.where(f.col("type").isin(*{letter for step in workload.steps for letter in step.types + step.nots}))
    part = f.col("key") if workload.keyed else f.lit("1")
    if workload.windows:
        size, slide = workload.windows.size, workload.windows.slide
        first = f.greatest(f.lit(1), f.floor((f.col("sn") - 1 - size) / slide) + 2)
        part = f.explode(f.sequence(first, f.floor((f.col("sn") - 1) / slide) + 1).cast("array<string>"))
    rows = log.select(part.alias("part"), "sn", f.unix_micros("stream_ts").alias("ts"), "type", "v")
    grouped = rows.groupBy("part")
    return grouped.applyInPandasWithState(_operator(workload), "y long, sns array<long>", "runs binary", "append", NO_TIMEOUT)


NO_TIMEOUT = GroupStateTimeout.NoTimeout


def _operator(workload: Workload) -> Any:
    advance, windows = by_hand(workload), workload.windows is not None

    def operate(part: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        rows = sorted(row for frame in frames for row in _rows(frame))
        runs, found = advance(pickle.loads(state.get[0]) if state.exists else [], rows)  # noqa: S301 our own bytes
        if runs:
            state.update((pickle.dumps(runs),))
        elif state.exists:
            state.remove()
        if found:
            y = int(part[0]) if windows else 1
            yield pd.DataFrame({"y": [y] * len(found), "sns": [list(sns) for sns in found]})

    return operate


def _rows(frame: pd.DataFrame) -> Iterator[Row]:
    columns = (frame[name].to_numpy().tolist() for name in ("sn", "ts", "type", "v"))
    return map(Row._make, zip(*columns, strict=True))


if __name__ == "__main__":
    main()
