"""A small lake with everything in it that people look at, and histories as large as one wants."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from schemas import history, verdicts
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.places import Place
from spark_jobs.verify.expectations import docs_index
from tests.conftest import PIPELINE, find

BEGAN = 1_767_225_600_000_000  # 2026-01-01, in microseconds
SECOND = 1_000_000


def detected(ingested: Path, folder: Path, name: str = "small") -> Place:
    """The 2,000 events of `ingested`, detected in four batches by one attempt that said how it ended."""
    pipeline = parse_pipeline(PIPELINE, "small.yaml")
    lake = Lake(shutil.copytree(ingested, folder / "lakes" / name))
    find(pipeline, lake, batch_events=500)
    Attempt(lake, "trim").record("end", "done")
    file = folder / f"{name}.yaml"
    file.write_text(PIPELINE.replace("name: small", f"name: {name}"))
    return Place(name, file, folder / "landing" / name, lake.root, None)


def judged(place: Place) -> None:
    """A valid verdict and Data Docs of two pages, as verification leaves them."""
    finding = {"property": "no duplicates", "verdict": "valid", "count": 0, "examples": [], "note": ""}
    row = {"at": dt.datetime.now(dt.UTC), "pipeline": place.name, "operator": "probing", "version": 1, "verdict": "valid",
           "events": 2_000, "matches": 12, "reference_matches": 12, "findings": json.dumps([finding])}  # fmt: skip
    lake = Lake(place.lake)
    lake.open("verdicts", verdicts.SCHEMA, may_grow=True)
    lake.append("verdicts", pa.Table.from_pylist([row], verdicts.SCHEMA))
    index = docs_index(lake)
    (index.parent / "expectations").mkdir(parents=True, exist_ok=True)
    for file in (index, index.parent / "expectations" / "incoming.html"):
        file.write_text(f"<h1>{file.stem}</h1>")


def history_of(batches: int) -> pa.Table:
    """So many batches of one operator, one a second, each with its seven phases and its commit; a kill after every tenth
    attempt of a hundred batches."""
    count, per = batches, 8
    names = ["detect.started", "detect.matched", "detect.sequenced", "detect.written", "detect.saved", "detect.published",
             "complex_events", "detect.finished"]  # fmt: skip
    details = [json.dumps({"start_sn": 1, "end_sn": 2, "carried": 3}), json.dumps({"replayed": 3}), None, None,
               json.dumps({"bytes": 120}), None, json.dumps({"matches": 2, "events": 1000}), None]  # fmt: skip
    at = pa.array([BEGAN + b * SECOND + i * 100_000 for b in range(count) for i in range(per)], pa.int64())
    rows = {
        "at": at.cast(history.SCHEMA.field("at").type),
        "job": pa.array(["detect"] * (count * per)),
        "attempt": pa.array([1 + b // 100 for b in range(count) for _ in range(per)], pa.int64()),
        "operator": pa.array(["probing"] * (count * per)),
        "batch": pa.array([1 + b for b in range(count) for _ in range(per)], pa.int64()),
        "kind": pa.array(["commit" if name == "complex_events" else "phase" for name in names] * count),
        "name": pa.array(names * count),
        "detail": pa.array(details * count),
    }
    ends = [
        {"at": dt.datetime.fromtimestamp((BEGAN + ((a + 1) * 100 - 1) * SECOND + 800_000) / 1e6, dt.UTC), "job": "detect",
         "attempt": a + 1, "operator": None, "batch": None, "kind": "end", "name": "done", "detail": None}
        for a in range(count // 100) if a % 10 != 9
    ]  # fmt: skip
    return pa.concat_tables([pa.table(rows, history.SCHEMA), pa.Table.from_pylist(ends, history.SCHEMA)])


def lake_with(folder: Path, rows: pa.Table) -> Lake:
    lake = Lake(folder)
    lake.open("history", history.SCHEMA)
    write_deltalake(lake.path("history"), rows, mode="append")
    return lake
