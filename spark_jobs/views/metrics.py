"""Metrics: the numbers behind the overview, one by one, for StatsD or OpenTelemetry and for the table `metrics`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from schemas import metrics
from spark_jobs.lake.tables import Lake
from spark_jobs.places import Place
from spark_jobs.verify.verdict import Verdict
from spark_jobs.views.attempts import detail_of
from spark_jobs.views.overview import overview
from spark_jobs.views.records import records_of


class Metric(NamedTuple):
    """A number, of an operator or of the pipeline."""

    name: str
    value: float
    operator: str | None = None


def measured(place: Place) -> list[Metric]:
    """Lag, what was found, revisions and verdicts (0 valid, 1 invalid, 2 unknown), and what the last detection did."""
    seen = overview(place, time.time_ns() // 1_000)
    whole = [Metric(name, seen[name]) for name in ("events", "quarantined", "late")]
    done = _last_detection(records_of(Lake(place.lake)))
    return [*whole, *(metric for operator in seen["operators"] for metric in _of_operator(operator, done))]


def _of_operator(seen: dict[str, Any], done: dict[str, dict[str, float]]) -> Iterator[Metric]:
    name = seen["operator"]
    numbers = {key: seen[key] for key in ("lag_events", "lag_seconds", "matches") if seen[key] is not None}
    if seen["verdict"]:
        numbers["verdict"] = Verdict(seen["verdict"]["verdict"]).exit_code
    for key, value in {**numbers, **done.get(name, {})}.items():
        yield Metric(key, float(value), name)


def _last_detection(records: pa.Table) -> dict[str, dict[str, float]]:
    """By operator: what the last attempt that has published something of it took in, per second, read again and took back."""
    wanted = pc.or_(pc.equal(records["kind"], "replay"), pc.equal(records["name"], "complex_events"))
    started = pc.equal(records["name"], "detect.started")
    rows = records.filter(pc.or_(wanted, started)).sort_by("us").to_pylist()
    last = {row["operator"]: row["attempt"] for row in rows if row["kind"] == "commit"}
    found = {}
    for operator, attempt in last.items():
        mine = [row for row in rows if (row["operator"], row["attempt"]) == (operator, attempt)]
        commits = [detail_of(row["detail"]) for row in mine if row["kind"] == "commit"]
        seconds = (mine[-1]["us"] - mine[0]["us"]) / 1_000_000
        events = sum(commit.get("events", 0) for commit in commits)
        found[operator] = {
            "replayed": sum(detail_of(row["detail"]).get("events", 0) for row in mine if row["kind"] == "replay"),
            "revisions": sum(commit.get("revisions", 0) for commit in commits),
            **({"events_per_second": events / seconds} if seconds else {}),
        }
    return found


def keep(place: Place, found: list[Metric]) -> None:
    """Add them to the table, if there is a lake to add them to."""
    if not place.lake.is_dir():
        return
    at = pa.scalar(time.time_ns() // 1_000, metrics.SCHEMA.field("at").type)
    columns = [[at] * len(found), [place.name] * len(found), [m.operator for m in found], [m.name for m in found]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, metrics.SCHEMA, strict=False)]
    values = pa.array([metric.value for metric in found], pa.float64())
    Lake(place.lake).append("metrics", pa.table([*arrays, values], schema=metrics.SCHEMA))
