"""Events that came later than anything can be corrected: set aside with the reason, counted, never dropped in silence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from schemas import late_events
from spark_jobs.lake.scan import EventLog, read_events
from spark_jobs.lake.tables import Lake

REASON = "it came {late} after its time, when results of that time could no longer be corrected"


def set_aside(lake: Lake, log: EventLog, sns: Sequence[int]) -> int:
    """Keep events in `late_events`, each once, whoever finds them; how many are new there."""
    lake.open("late_events", late_events.SCHEMA)
    known = set(lake.read("late_events", ["sn"])["sn"].to_pylist())
    new = np.array(sorted(set(sns) - known), np.int64)
    if not new.size:
        return 0
    last = int(new[-1])
    columns = [field.name for field in late_events.COPIED]
    found = read_events([asdict(file) for file in log.files], log.schema, columns, new, last, last, in_sn_order=True)
    now = dt.datetime.now(dt.UTC)
    rows = [{**row, "reason": REASON.format(late=row["stream_ts"] - row["ts"]), "at": now} for row in found.to_pylist()]
    lake.append("late_events", pa.Table.from_pylist(rows, late_events.SCHEMA))
    return len(rows)
