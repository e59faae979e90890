"""Events that came later than anything can be corrected: set aside with the reason, counted, never dropped in silence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from schemas import late_events
from spark_jobs.cep.arrays import Int64s
from spark_jobs.corrections import corrections_of
from spark_jobs.lake.scan import EventLog, read_events
from spark_jobs.lake.tables import IF_UNCHANGED, Lake

REASON = "it came {late} after its time, when results of that time could no longer be corrected"
CORRECTS = "it corrects event {replaces}, when results of that time could no longer be corrected; that one still counts"


def set_aside(lake: Lake, log: EventLog, sns: Sequence[int]) -> int:
    """Keep events in `late_events`, each once, whoever finds them, also at the same time; how many are new there."""
    while True:
        table = lake.open("late_events", late_events.SCHEMA)
        known = set(lake.read_version("late_events", table, ["sn"])["sn"].to_pylist())
        new = np.array(sorted(set(sns) - known), np.int64)
        if not new.size:
            return 0
        try:
            write_deltalake(table, _rows(lake, log, new), mode="append", commit_properties=IF_UNCHANGED)
            return int(new.size)
        except CommitFailedError:  # somebody else has set something aside: perhaps the same
            continue


def _rows(lake: Lake, log: EventLog, sns: Int64s) -> pa.Table:
    last = int(sns[-1])
    columns = [field.name for field in late_events.COPIED]
    found = read_events([asdict(file) for file in log.files], log.schema, columns, sns, last, last, in_sn_order=True)
    now, corrected = dt.datetime.now(dt.UTC), corrections_of(lake, log.handle)
    replaces = dict(zip(corrected.sn.tolist(), corrected.replaces.tolist(), strict=True))
    rows = [{**row, "reason": _reason(row, replaces), "at": now} for row in found.to_pylist()]
    return pa.Table.from_pylist(rows, late_events.SCHEMA)


def _reason(row: dict[str, Any], replaces: dict[int, int]) -> str:
    if row["sn"] in replaces:
        return CORRECTS.format(replaces=replaces[row["sn"]])
    return REASON.format(late=row["stream_ts"] - row["ts"])
