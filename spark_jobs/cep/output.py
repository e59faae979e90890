"""ONE ROW and ALL ROWS PER MATCH: which rows a query gives out, and their measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Found, Int64s
from spark_jobs.cep.matcher import Complete
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.query import TIMED_OUT


def one_row(operator: Operator, complete: Complete) -> tuple[Int64s, dict[str, Any]]:
    """A row per match: the row of `complete.events` it begins with, and its measures."""
    events, offsets, found = complete
    values = operator.measured.evaluate(events, offsets, found, all_rows=False)
    return found.first, {**values, TIMED_OUT: pa.array(found.timed_out)}


def all_rows(operator: Operator, complete: Complete, *, empty: bool, unmatched: bool) -> tuple[Int64s, dict[str, Any]]:
    """A row per bound row, per empty match and per row of no match, as far as wanted, in order of the match's first row."""
    events, offsets, found = complete
    shown = np.flatnonzero(~found.excluded)
    match_of = np.repeat(np.arange(found.first.size), np.diff(found.offsets))[shown]
    nothing = np.flatnonzero(np.diff(found.offsets) == 0) if empty else np.empty(0, np.int64)
    lonely = _unmatched(events.num_rows, found) if unmatched else np.empty(0, np.int64)
    rows = np.concatenate([found.rows[shown], found.first[nothing], lonely])
    first = np.concatenate([found.first[match_of], found.first[nothing], lonely])
    match = np.concatenate([match_of, nothing, np.full(lonely.size, -1)])
    order = np.lexsort((np.arange(rows.size), match, first))
    bound = operator.measured.evaluate(events, offsets, found, all_rows=True)
    whole = operator.measured.evaluate(events, offsets, found, all_rows=False) if nothing.size else {}
    values: dict[str, Any] = {}
    for name, value in bound.items():
        parts = [value.take(pa.array(shown))]
        parts.append(whole[name].take(pa.array(nothing)) if whole else parts[0].slice(0, 0))
        parts.append(pa.nulls(lonely.size, parts[0].type))
        values[name] = pa.concat_arrays(parts).take(pa.array(order))
    late = np.concatenate([found.timed_out[match_of], found.timed_out[nothing], np.zeros(lonely.size, np.bool_)])
    values[TIMED_OUT] = pa.array(late[order], mask=match[order] < 0)
    return rows[order], values


def _unmatched(count: int, found: Found) -> Int64s:
    """Rows that no match contains and at which no empty match stands."""
    contained = np.zeros(count, np.bool_)
    contained[found.rows] = True
    contained[found.first] = True
    return np.flatnonzero(~contained)
