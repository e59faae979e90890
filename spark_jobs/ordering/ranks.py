"""The order of complex events that were decided at one instant, the same however often some of them were revised.

Ordinals say when something was published, so they cannot say it. Over the log, windows and the events bound can: their numbers
never change. Over other operators those are ordinals again, so what a complex event says comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.ordering.revisions import text_of

# What has to be read of them, besides what their reader names.
RANKED = ["revision", "of", "decided_sn", "y", "sns", "symbols", "key"]


def ranks(rows: pa.Table, said: Sequence[str]) -> Int64s:
    """A number per complex event; those of one instant are ordered by it. `said` are the columns that come first."""
    found = np.zeros(rows.num_rows, np.int64)
    tied = _tied(int64s(rows["decided_ts"]), int64s(rows["decided_sn"]))
    if not tied.size:
        return found
    mine = rows.take(pa.array(tied))
    bound = [int64s(mine["y"]), int64s(pc.list_element(mine["sns"], 0)), _text_ranks(mine["sns"]), _text_ranks(mine["symbols"])]
    keys = [*(_text_ranks(mine[name]) for name in said), *bound]
    found[tied[np.lexsort(keys[::-1])]] = np.arange(tied.size)
    return found


def _tied(ts: Int64s, sn: Int64s) -> Int64s:
    """The rows that share their instant with another one."""
    order = np.lexsort((sn, ts))
    same = (np.diff(ts[order]) == 0) & (np.diff(sn[order]) == 0)
    return np.sort(order[np.append(same, False) | np.append(False, same)]) if ts.size else order


def _text_ranks(column: Any) -> Int64s:
    return np.asarray(pc.rank(text_of(column), tiebreaker="dense")).astype(np.int64)
