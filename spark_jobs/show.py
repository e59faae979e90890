"""Looking into a lake: its tables as rows for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from spark_jobs.errors import RepriseError, suggest
from spark_jobs.faults.phases import PHASES
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.recovery.savepoint import ShardSavepoint

Rows = tuple[list[str], list[list[Any]]]

TABLES = ["savepoints", "matches", "history", "quarantine", "verdicts", "phases"]


def rows_of(what: str, folder: Path | None, limit: int) -> Rows:
    """Columns and the last rows of one of `TABLES`."""
    if what not in TABLES:
        raise RepriseError(f"'{what}' cannot be shown{suggest(what, TABLES)}")
    if what == "phases":
        return ["phase"], [[phase] for phase in PHASES]
    if folder is None or not folder.is_dir():
        raise RepriseError("name an existing lake with --lake DIR" if folder is None else f"lake {folder} does not exist")
    lake = Lake(folder)
    columns, rows = {
        "savepoints": _savepoints,
        "matches": _matches,
        "history": _history,
        "quarantine": _quarantine,
        "verdicts": _verdicts,
    }[what](lake)
    return columns, rows[-limit:]


def committed_attempts(lake: Lake) -> dict[tuple[str, int], int]:
    """Which attempt published each batch, from the log of `complex_events`."""
    if not lake.has("complex_events"):
        return {}
    commits = DeltaTable(lake.path("complex_events")).history()
    return {
        (entry["reprise.app"], int(entry["reprise.step"])): int(entry["reprise.attempt"])
        for entry in commits
        if "reprise.app" in entry
    }


def _savepoints(lake: Lake) -> Rows:
    columns = [
        "operator",
        "batch",
        "shard",
        "attempt",
        "counts",
        "SN_seed",
        "SN_trim",
        "events (from, to]",
        "skipped",
        "to replay",
        "bytes",
    ]
    published = committed_attempts(lake)
    rows = []
    for row in sorted(lake.read("savepoints").to_pylist(), key=lambda r: (r["operator"], r["batch"], r["attempt"], r["shard"])):
        above = row["end_sn"] - row["trim_sn"]
        skipped = len(ShardSavepoint(row["shard"], row["trim_sn"], row["skip"]).skipped)
        counts = "yes" if published.get((row["operator"], row["batch"])) == row["attempt"] else "dead letter"
        seed = f"{row['seed_x']}:{row['seed_y']}"
        rows.append(
            [row["operator"], row["batch"], row["shard"], row["attempt"], counts, seed, row["trim_sn"],
             f"({row['start_sn']:,}, {row['end_sn']:,}]", skipped, above - skipped, row["bytes"]]
        )  # fmt: skip
    return columns, rows


def _matches(lake: Lake) -> Rows:
    read = lake.read("complex_events")
    fixed = ["operator", "number", "ordinal", "key", "ts", "events", "batch"]
    measures = [
        name
        for name in read.column_names
        if name not in ("operator", "x", "y", "ordinal", "key", "ts", "symbols", "sns", "batch")
    ]
    rows = []
    for row in sorted(read.to_pylist(), key=lambda r: (r["operator"], r["ordinal"])):
        bound = " ".join(f"{symbol}={sn}" for symbol, sn in zip(row["symbols"], row["sns"], strict=True))
        number = f"{row['x']}:{row['y']}"
        rows.append([
            row["operator"],
            number,
            row["ordinal"],
            row["key"],
            _time(row["ts"]),
            bound,
            row["batch"],
            *[row[m] for m in measures],
        ])
    return [*fixed, *measures], rows


def _history(lake: Lake) -> Rows:
    columns = ["at", "attempt", "job", "operator", "batch", "kind", "name", "detail"]
    rows = []
    for r in read_history(lake):
        detail = ", ".join(f"{name}={value}" for name, value in r["detail"].items())
        batch = "" if r["batch"] is None else r["batch"]
        rows.append([_time(r["at"]), r["attempt"], r["job"], r["operator"] or "", batch, r["kind"], r["name"], detail])
    return columns, rows


def _quarantine(lake: Lake) -> Rows:
    read = sorted(lake.read("quarantine").to_pylist(), key=lambda r: (r["ingest"], r["file"], r["row"] or 0))
    return ["file", "row", "reason", "content"], [
        [r["file"], r["row"] or "whole file", r["reason"], r["content"] or ""] for r in read
    ]


def _verdicts(lake: Lake) -> Rows:
    columns = ["at", "pipeline", "operator", "verdict", "events", "matches", "reference_matches"]
    read = sorted(lake.read("verdicts").to_pylist(), key=lambda r: r["at"])
    return columns, [[_time(r["at"]), *[r[c] for c in columns[1:]]] for r in read]


def _time(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S.%f}"[:-3]
