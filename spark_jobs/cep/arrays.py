"""Array types and marks that the kernels share with those who do not need the kernels themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

# Deadlines in stream time: an event that nothing holds, and one that is held until a match releases it.
NOT_HELD = -(2**63)
FOREVER = 2**63 - 1


class Found(NamedTuple):
    """Matches of one shard, not yet numbered. Match m bound the rows `rows[offsets[m]:offsets[m + 1]]`, in order.

    `rows` and `first` index into the table of events the matcher was given.
    """

    offsets: Int64s
    rows: Int64s
    symbols: Int64s  # per bound row: index into Pattern.symbols
    window: Int64s  # y
    first: Int64s  # the row the match starts at; an empty match binds none but has one
    at_ts: Int64s  # when it was decided: by a row at this stream time,
    at_sn: Int64s  # .. with this SN; 0 if a deadline at at_ts decided it
    timed_out: npt.NDArray[np.bool_]  # a partial match that WITHIN ended
    number: Int64s  # 1, 2, .. within its key, in order of the first row
    excluded: npt.NDArray[np.bool_]  # per bound row: written as {- A -}, left out of ALL ROWS PER MATCH


class Floors(NamedTuple):
    """Where matching goes on: in windows `low` .. `high`, the rows of one key before `sn` are not matched again.

    A row kept for one window is replayed into all windows that contain it, also into those that have consumed it, and only
    the floor tells them so. `witness` is a row of the key that will be replayed if any of its rows is.
    """

    low: Int64s
    high: Int64s
    sn: Int64s
    witness: Int64s


NO_FLOORS = Floors(*(np.empty(0, np.int64) for _ in range(4)))


class KeyFloors(NamedTuple):
    """The same for a kernel: key k has the floors `offsets[k] .. offsets[k + 1]`."""

    offsets: Int64s
    low: Int64s
    high: Int64s
    sn: Int64s


# Which floors a kernel reports: none, those that a replay of what is held needs, or all of them.
FLOORS_NEVER, FLOORS_NEEDED, FLOORS_ALWAYS = 0, 1, 2


class Nodes(NamedTuple):
    """Bound rows of all runs as a tree: node n bound `row[n]` to `symbol[n]` after what `parent[n]` bound (-1: nothing).

    The running aggregates over everything bound up to and including n stand beside it, one column per aggregate.
    """

    parent: Int64s
    row: Int64s
    symbol: Int64s
    agg_int: Any  # (nodes, aggregates) int64
    agg_float: Any  # (nodes, aggregates) float64
    agg_count: Any  # (nodes, aggregates) int64: how many values went in, NULLs left out
    excluded: Any  # bool: the step was written as {- A -}


def new_nodes(capacity: int, aggregates: int) -> Nodes:
    return Nodes(
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.empty((capacity, aggregates), np.int64),
        np.empty((capacity, aggregates), np.float64),
        np.empty((capacity, aggregates), np.int64),
        np.empty(capacity, np.bool_),
    )
