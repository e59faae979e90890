"""Matches: searched newest first, and one of them opened with the events it has bound.

A search looks at a bounded number of files and rows and then says where to go on, so that it is as quick over 15 million
matches as over 15.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from schemas import complex_events
from spark_jobs.errors import RepriseError, suggest
from spark_jobs.lake.outputs import Output, OutputFile, output_of
from spark_jobs.lake.scan import any_between, open_log, read_events
from spark_jobs.lake.seal import CHECKED
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG
from spark_jobs.versions import Version, registry
from spark_jobs.views.handles import looking_at
from spark_jobs.views.overview import current_versions
from spark_jobs.views.values import plain

MOST_ROWS = 200
# What one search looks at before it asks whether to go on: some tenths of a second.
FILES_PER_LOOK = 400
ROWS_PER_LOOK = 2_000_000
# A match may bind a whole day; so many of its events are shown.
MOST_BOUND = 500

_SHOWN = ("ordinal", "x", "y", "key", "ts", "symbols", "sns", "timed_out", "batch")
_REVISED = tuple(field.name for field in complex_events.REVISIONS)


@dataclass(frozen=True)
class Wanted:
    """What is looked for; an empty text and None mean anything."""

    key: str = ""
    text: str = ""  # somewhere in the key or in a measure, in any case
    since: dt.datetime | None = None
    until: dt.datetime | None = None


def search(lake: Lake, operator: str, wanted: Wanted, before: int | None = None, limit: int = 50) -> dict[str, Any]:
    """Matches of the current version of an operator below an ordinal, newest first."""
    if not 1 <= limit <= MOST_ROWS:
        raise RepriseError(f"a page has 1 to {MOST_ROWS} matches, not {limit}")
    output = _output(lake, _current(lake, operator))
    top = output.last + 1 if before is None else before
    older = [file for file in reversed(output.files) if file.first_sn < top]
    found: list[dict[str, Any]] = []
    looked, files = 0, 0
    while files < min(len(older), FILES_PER_LOOK) and looked < ROWS_PER_LOOK and len(found) <= limit:
        rows = _read(older[files], output.schema).filter(pc.field("ordinal") < top)
        hits = rows.filter(_meets(rows, wanted)).sort_by([("ordinal", "descending")])
        found += hits.slice(0, limit + 1 - len(found)).to_pylist()  # one more says that there are more
        files, looked = files + 1, looked + rows.num_rows
    next_ = older[files].last_sn + 1 if files < len(older) else None
    return {
        "operator": operator,
        "version": output.version,
        "measures": _measures(output.schema),
        "total": output.last,
        "matches": [_row(row, output.schema) for row in found[:limit]],
        "looked_at": looked,
        "next": found[limit - 1]["ordinal"] if len(found) > limit else next_,
    }


def opened(lake: Lake, operator: str, version: int, ordinal: int) -> dict[str, Any]:
    """One match with the events it has bound, in order, each with its attributes."""
    known = {(v.operator, v.number): v for v in registry(lake).versions} if lake.has("versions") else {}
    if (operator, version) not in known:
        raise RepriseError(f"there is no version {version} of operator '{operator[:64]}' in this lake")
    output = _output(lake, known[operator, version])
    rows = _rows_of(output, [ordinal])
    if not rows:
        raise RepriseError(
            f"{operator} has no match with ordinal {ordinal:,}; its last one is {output.last:,}. It may have been trimmed."
        )
    row = rows[0]
    names = row["inputs"] or list(known[operator, version].inputs)[:1] * len(row["sns"])
    bound = list(zip(row["symbols"], names, row["sns"], strict=True))
    events = _bound_events(lake, known[operator, version], bound[:MOST_BOUND])
    return {
        **_row(row, output.schema),
        "operator": operator,
        "version": version,
        "current": known[operator, version].current,
        "decided_ts": plain(row["decided_ts"]),
        "decided_sn": row["decided_sn"],
        "events": events,
        "events_left_off": len(bound) - len(events),
    }


def _current(lake: Lake, operator: str) -> Version:
    versions = {version.operator: version for version in current_versions(lake)}
    if operator not in versions:
        raise RepriseError(f"nothing was detected by an operator '{operator[:64]}'{suggest(operator[:64], list(versions))}")
    return versions[operator]


def _output(lake: Lake, version: Version) -> Output:
    return _output_of(lake, version.operator, version.number)


def _output_of(lake: Lake, operator: str, version: int) -> Output:
    with looking_at(lake, "complex_events") as handle:
        return output_of(lake, handle, operator, version)


def _read(file: OutputFile, schema: pa.Schema) -> pa.Table:
    """A file may be older than a measure that came later: what it does not have is NULL."""
    inside = pa.schema([field for field in schema if field.name not in complex_events.PARTITION_BY])
    return pq.read_table(file.path, schema=inside, partitioning=None, **CHECKED)


def _rows_of(output: Output, ordinals: Sequence[int]) -> list[dict[str, Any]]:
    chosen = np.unique(np.array(ordinals, np.int64))
    found: list[dict[str, Any]] = []
    for file in output.files:
        if any_between(chosen, file.first_sn, file.last_sn):
            rows = _read(file, output.schema)
            found += rows.filter(pc.is_in(rows["ordinal"], pa.array(chosen))).to_pylist()
    return found


def _measures(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in (*complex_events.FIXED_NAMES, *_REVISED)]


def _meets(rows: pa.Table, wanted: Wanted) -> Any:
    """Texts are looked for as they are: nothing in them is a pattern."""
    mask = pc.is_valid(rows["ordinal"])
    if wanted.key:
        mask = pc.and_(mask, pc.fill_null(pc.equal(rows["key"], wanted.key), False))
    if wanted.since is not None:
        mask = pc.and_(mask, pc.greater_equal(rows["ts"], pa.scalar(wanted.since, rows.schema.field("ts").type)))
    if wanted.until is not None:
        mask = pc.and_(mask, pc.less_equal(rows["ts"], pa.scalar(wanted.until, rows.schema.field("ts").type)))
    if wanted.text:
        texts = [rows[name].cast(pa.string()) for name in ("key", *_measures(rows.schema)) if _is_flat(rows.schema.field(name))]
        hits = [pc.fill_null(pc.match_substring(text, wanted.text, ignore_case=True), False) for text in texts]
        mask = pc.and_(mask, reduce(pc.or_, hits))
    return mask


def _is_flat(field: pa.Field) -> bool:
    return not pa.types.is_nested(field.type)


def _row(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    fixed = {name: plain(row[name]) for name in _SHOWN}
    revised = {name: plain(row[name]) for name in _REVISED if name in row}
    return {**fixed, **revised, "number": f"{row['x']}:{row['y']}", "measures": {n: plain(row[n]) for n in _measures(schema)}}


def _bound_events(lake: Lake, version: Version, bound: Sequence[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """What was bound, from the log or from the operators it comes from; what was trimmed is said."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for name in {name for _, name, _ in bound}:
        numbers = [number for _, input_, number in bound if input_ == name]
        rows = _log_events(lake, numbers) if name == EVENT_LOG else _upstream(lake, name, version.inputs[name], numbers)
        found |= {(name, number): row for number, row in rows.items()}
    events = []
    for symbol, name, number in bound:
        row = found.get((name, number))
        events.append({"symbol": symbol, "input": name, "number": number, "gone": row is None, **(row or {})})
    return events


def _log_events(lake: Lake, sns: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Only row groups that hold one of them are read."""
    schema = pa.schema(DeltaTable(lake.path("event_log")).schema().to_arrow())
    log, wanted = open_log(lake, schema), np.unique(np.array(sns, np.int64))
    files = [asdict(file) for file in log.files if any_between(wanted, file.first_sn, file.last_sn)]
    columns = [name for name in schema.names if name not in ("sn", "bucket", "stream_ts")]
    last = int(wanted[-1])
    rows = read_events(files, schema, columns, wanted, last, last, in_sn_order=True).to_pylist()
    fixed = ("type", "key", "ts", "arrival_ts", "source", "source_seq")
    return {
        row["sn"]: {
            **{name: plain(row[name]) for name in fixed},
            "attributes": {name: plain(row[name]) for name in columns if name not in fixed},
        }
        for row in rows
    }


def _upstream(lake: Lake, operator: str, version: int, ordinals: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Complex events of another operator; each can be opened in its turn."""
    output = _output_of(lake, operator, version)
    return {
        row["ordinal"]: {
            "type": operator,
            "key": row["key"],
            "ts": plain(row["ts"]),
            "version": version,
            "attributes": {name: plain(row[name]) for name in _measures(output.schema) if row[name] is not None},
        }
        for row in _rows_of(output, ordinals)
    }
