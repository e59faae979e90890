"""Looking into a lake: its tables as rows for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from schemas import complex_events
from spark_jobs.errors import RepriseError, suggest
from spark_jobs.faults.catalogue import CATALOGUE
from spark_jobs.faults.phases import PHASES
from spark_jobs.lake.history import read_history
from spark_jobs.lake.outputs import final_app
from spark_jobs.lake.tables import Lake
from spark_jobs.ordering.revisions import net
from spark_jobs.recovery.savepoint import Kept
from spark_jobs.recovery.store import all_rows, checksum
from spark_jobs.versions import registry

Rows = tuple[list[str], list[list[Any]]]

TABLES = [
    "savepoints",
    "matches",
    "standing",
    "late",
    "versions",
    "history",
    "quarantine",
    "verdicts",
    "validations",
    "metrics",
    "phases",
    "faults",
]


def rows_of(what: str, folder: Path | None, limit: int) -> Rows:
    """Columns and the last rows of one of `TABLES`."""
    if what not in TABLES:
        raise RepriseError(f"'{what}' cannot be shown{suggest(what, TABLES)}")
    if what == "phases":
        return ["phase"], [[phase] for phase in PHASES]
    if what == "faults":
        kinds = [[kind.name, kind.group.value, kind.breaks, kind.heals, kind.needs.value] for kind in CATALOGUE.values()]
        return ["kind", "group", "what breaks", "how it heals", "needs"], kinds
    if folder is None or not folder.is_dir():
        raise RepriseError("name an existing lake with --lake DIR" if folder is None else f"lake {folder} does not exist")
    lake = Lake(folder)
    columns, rows = {
        "savepoints": _savepoints,
        "matches": _matches,
        "standing": _standing,
        "late": _late,
        "versions": _versions,
        "history": _history,
        "quarantine": _quarantine,
        "verdicts": _verdicts,
        "validations": _validations,
        "metrics": _metrics,
    }[what](lake)
    return columns, rows[-limit:]


def committed_attempts(lake: Lake) -> dict[tuple[str, int, int], int]:
    """Which attempt published each batch of each operator version, from the log of `complex_events`."""
    if not lake.has("complex_events"):
        return {}
    commits = DeltaTable(lake.path("complex_events")).history()
    published = {}
    for entry in commits:
        operator, slash, version = str(entry.get("reprise.app", "")).partition("/")
        if slash:
            published[operator, int(version), int(entry["reprise.step"])] = int(entry["reprise.attempt"])
    return published


def _savepoints(lake: Lake) -> Rows:
    columns = [
        "operator",
        "version",
        "batch",
        "shard",
        "attempt",
        "counts",
        "input",
        "SN_seed",
        "SN_trim",
        "events (from, to]",
        "skipped",
        "to replay",
        "bytes",
    ]
    published = committed_attempts(lake)
    rows = []
    for row in all_rows(lake):
        counts = "yes" if published.get((row["operator"], row["version"], row["batch"])) == row["attempt"] else "dead letter"
        if row["checksum"] != checksum(row):
            counts = "damaged"
        left: Any = "?" if counts == "damaged" else Kept(row["trim_sn"], row["skip"]).needed(row["end_sn"]).size
        skipped = "?" if counts == "damaged" else row["end_sn"] - row["trim_sn"] - left
        seed = f"{row['seed_x']}:{row['seed_y']}"
        rows.append(
            [row["operator"], row["version"], row["batch"], f"{row['shard']} of {row['shards']}", row["attempt"], counts,
             row["input"], seed, row["trim_sn"], f"({row['start_sn']:,}, {row['end_sn']:,}]", skipped, left, row["bytes"]]
        )  # fmt: skip
    return columns, rows


def _standing(lake: Lake) -> Rows:
    """Complex events that were not taken back, and whether they still could be."""
    read = lake.read("complex_events")
    if "revision" not in read.column_names:
        return _matches_in(lake, read)
    handle, parts = DeltaTable(lake.path("complex_events")), []
    for version in registry(lake).versions:
        mine = (pc.field("operator") == version.operator) & (pc.field("version") == version.number)
        rows = net(read.filter(mine))
        final = handle.transaction_version(final_app(version.operator, version.number))
        speculative = pc.greater(rows["decided_ts"].cast(pa.int64()), final if final is not None else 0)
        state = pc.if_else(speculative, "speculative", "final")
        parts.append(rows.drop_columns(["revision", "of", "speculative"]).append_column("state", state))
    return _matches_in(lake, pa.concat_tables(parts) if parts else read)


def _late(lake: Lake) -> Rows:
    columns = ["sn", "source", "source_seq", "type", "key", "ts", "stream_ts", "reason"]
    read = sorted(lake.read("late_events").to_pylist(), key=lambda r: r["sn"])
    return columns, [[_time(r[c]) if c in ("ts", "stream_ts") else r[c] for c in columns] for r in read]


def _matches(lake: Lake) -> Rows:
    return _matches_in(lake, lake.read("complex_events"))


def _matches_in(lake: Lake, read: pa.Table) -> Rows:
    fixed = ["operator", "version", "number", "ordinal", "key", "ts", "events", "batch"]
    measures = ["timed_out", *(name for name in read.column_names if name not in complex_events.FIXED_NAMES)]
    current = {v.operator: v.number for v in registry(lake).versions if v.current} if read.num_rows else {}
    rows = []
    for row in sorted(read.to_pylist(), key=lambda r: (r["operator"], r["version"], r["ordinal"])):
        froms = [f"{name}:" for name in row["inputs"]] if row["inputs"] else [""] * len(row["sns"])
        bound = " ".join(f"{symbol}={name}{sn}" for symbol, name, sn in zip(row["symbols"], froms, row["sns"], strict=True))
        version = f"{row['version']}" if current.get(row["operator"]) == row["version"] else f"{row['version']} (not current)"
        number = f"{row['x']}:{row['y']}"
        rows.append([
            row["operator"],
            version,
            number,
            row["ordinal"],
            row["key"],
            _time(row["ts"]),
            bound,
            row["batch"],
            *[row[m] for m in measures],
        ])
    return [*fixed, *measures], rows


def _versions(lake: Lake) -> Rows:
    columns = ["operator", "version", "state", "begins after", "reads", "fingerprint"]
    rows: list[list[Any]] = []
    for v in sorted(registry(lake).versions, key=lambda v: (v.operator, v.number)):
        reads = ", ".join(f"{name} {number}" if number else name for name, number in v.inputs.items())
        state = "retired" if v.retired else "current" if v.current else ""
        rows.append([v.operator, v.number, state, v.after_sn, reads, v.fingerprint])
    return columns, rows


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
    columns = ["at", "pipeline", "operator", "version", "verdict", "events", "matches", "reference_matches"]
    return _in_time(lake, "verdicts", columns)


def _validations(lake: Lake) -> Rows:
    return _in_time(lake, "validations", ["at", "suite", "subject", "expectation", "met", "detail"])


def _metrics(lake: Lake) -> Rows:
    return _in_time(lake, "metrics", ["at", "pipeline", "operator", "name", "value"])


def _in_time(lake: Lake, table: str, columns: list[str]) -> Rows:
    read = sorted(lake.read(table).to_pylist(), key=lambda r: r["at"])
    return columns, [[_time(r["at"]), *["" if r[c] is None else r[c] for c in columns[1:]]] for r in read]


def _time(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S.%f}"[:-3]
