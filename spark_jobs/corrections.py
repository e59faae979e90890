"""Corrections: events that came again with the same sequence number and other content, and what they replace.

The log keeps both. Operators over events in order of time let the later one count, as long as what the earlier one has
brought about can still be revised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from schemas import corrections
from spark_jobs.cep.arrays import Int64s
from spark_jobs.lake.tables import Lake


class Corrections(NamedTuple):
    """In order of SN."""

    sn: Int64s
    replaces: Int64s
    replaced_ts: Int64s
    replaced_bucket: Int64s
    since_ts: Int64s

    def between(self, after: int, end: int) -> Corrections:
        """Those that came with the SNs (after, end]."""
        low, high = np.searchsorted(self.sn, [after, end], side="right")
        return Corrections(*(part[low:high] for part in self))


def corrections_of(lake: Lake, log: DeltaTable) -> Corrections:
    """Of the ingests that this version of the log has; rows of one that was killed are dead letters."""
    rows = lake.read("corrections").to_pylist()
    counts = [row for row in rows if log.transaction_version(listed(row["ingest"])) == row["attempt"]]
    counts.sort(key=lambda row: int(row["sn"]))
    return Corrections(*(np.array([row[name] for row in counts], np.int64) for name in Corrections._fields))


def listed(ingest: int) -> str:
    """The name under which a commit of the log keeps the attempt whose lists of files and corrections count."""
    return f"ingest-{ingest}"


def corrections_table(found: Sequence[dict[str, Any]], ingest: int, attempt: int) -> pa.Table:
    """Rows of the table; they count once the log's commit names the ingest and its attempt."""
    return pa.Table.from_pylist([{**row, "ingest": ingest, "attempt": attempt} for row in found], corrections.SCHEMA)
