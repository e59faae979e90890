"""What was set aside: rows that ingest could not accept, and events that came too late to be corrected."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_jobs.errors import RepriseError
from spark_jobs.lake.tables import Lake
from spark_jobs.places import Place
from spark_jobs.views.values import plain

MOST_ROWS = 200
MOST_REASONS = 10


def quarantine(place: Place, offset: int = 0, limit: int = 50) -> dict[str, Any]:
    """The newest first, and which reasons there are."""
    lake = Lake(place.lake)
    rows, total = _newest(lake, "quarantine", offset, limit)
    for row in rows:
        row["file"] = str(row["file"]).removeprefix(f"{place.landing}/")
    return {"rows": rows, "total": total, "offset": offset, "reasons": _reasons(lake) if total else []}


def late(place: Place, offset: int = 0, limit: int = 50) -> dict[str, Any]:
    rows, total = _newest(Lake(place.lake), "late_events", offset, limit)
    return {"rows": rows, "total": total, "offset": offset}


def _newest(lake: Lake, table: str, offset: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Some rows of a table that is only appended to; only files that hold one of them are read."""
    if not 1 <= limit <= MOST_ROWS or offset < 0:
        raise RepriseError(f"a page has 1 to {MOST_ROWS} rows and begins at 0 or later")
    if not lake.has(table):
        return [], 0
    handle = DeltaTable(lake.path(table))
    files = pa.table(handle.get_add_actions(flatten=True)).select(["path", "num_records", "modification_time"]).to_pylist()
    files.sort(key=lambda file: (file["modification_time"], file["path"]), reverse=True)
    total, seen = sum(file["num_records"] for file in files), 0
    rows: list[dict[str, Any]] = []
    for file in files:
        first, seen = seen, seen + file["num_records"]
        if seen <= offset or len(rows) >= limit:
            continue
        read = lake.read_version(table, handle, names=[file["path"]])
        last_first = read.take(pa.array(range(read.num_rows - 1, -1, -1), pa.int64()))
        part = last_first.slice(max(0, offset - first), limit - len(rows))
        rows += [{name: plain(value) for name, value in row.items()} for row in part.to_pylist()]
    return rows, total


def _reasons(lake: Lake) -> list[dict[str, Any]]:
    """How often each reason was given, the most frequent first."""
    counts = pc.value_counts(lake.read("quarantine", ["reason"])["reason"]).to_pylist()
    counts.sort(key=lambda count: (-count["counts"], count["values"]))
    return [{"reason": plain(count["values"]), "rows": count["counts"]} for count in counts[:MOST_REASONS]]
