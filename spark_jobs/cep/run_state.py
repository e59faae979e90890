"""What the ordered runs of runs.py are made of: rows, rules, windows and the lists themselves, as tuples of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_jobs.cep.arrays import FOREVER
from spark_jobs.cep.compiled import inlined

WAIT, ACCEPTING, DONE, TIMED = 0, 1, 2, 3
PAST_LAST_ROW, TO_NEXT_ROW, TO_FIRST, TO_LAST, NO_SKIP = range(5)
NO_WINDOW, BY_COUNT, BY_TIME, PER_KEY, OPENED = range(5)
STRICT, NEXT, ANY = range(3)
TOO_MANY_RUNS, TOO_LONG, TOO_LARGE = 1, 2, 3

# As 64-bit numbers and not as literals, for each of which numba would compile every function they are handed to once more.
NEVER: Any = np.int64(FOREVER)
NO_ROW: Any = np.int64(0)
NOTHING: Any = np.int64(-1)

# Counters, in one array so that every function can move them on.
COUNTERS = 11
RUNS, NEXT_RUNS, NODES, ERROR, MATCHES, BOUND, RESUME, USED, CHANGED, READY, PENDING = range(COUNTERS)


class Rows(NamedTuple):
    """The rows of one shard that can matter, sorted by key, then by SN."""

    offsets: Any  # key k owns rows offsets[k] .. offsets[k + 1]
    bits: Any  # uint64: bit s is set where the columnar part of symbol s holds
    sn: Any
    ts: Any  # stream time, never decreasing in SN
    opens: Any  # bool: opens a window
    closes: Any  # bool: closes a window
    known: Any  # per key: the stream time up to which WITHIN can have expired


class Rule(NamedTuple):
    """What counts as a match, and what it consumes."""

    within: int
    within_steps: int
    skip: int
    skip_symbols: Any  # uint64, a bit per symbol of TO FIRST, TO LAST
    all_runs: bool
    timed_out: bool
    at_start: bool
    at_end: bool
    merges: bool  # runs of one start in the same state cannot be told apart: the first one stands for all
    dominates: bool  # .. nor can those of different starts, and a match of the first one consumes the others
    max_runs: int
    max_length: int
    max_nodes: int


class Split(NamedTuple):
    """The windows."""

    kind: int
    size: int
    slide: int
    by_rows: bool
    first_window: int
    last_window: int
    report_floors: int


class Progress(NamedTuple):
    """How far the log is known. What was decided at or before `after_sn` and `since` has been reported already."""

    after_sn: int
    end_sn: int
    since: int
    watermark: int
    complete: bool


class Runs(NamedTuple):
    start: Any
    state: Any
    live: Any
    node: Any
    deadline: Any
    kind: Any


class Out(NamedTuple):
    rows: Any
    symbols: Any
    excluded: Any
    head: Any  # (matches, 6): window, first row, at_ts, at_sn, timed out, rows bound


def new_runs(capacity: int) -> Runs:
    whole = [np.empty(capacity, np.int64) for _ in range(5)]
    return Runs(whole[0], whole[1], np.empty(capacity, np.uint64), whole[2], whole[3], whole[4])


@inlined
def copy_run(source: Runs, r: int, target: Runs, to: int) -> None:
    target.start[to] = source.start[r]
    target.state[to] = source.state[r]
    target.live[to] = source.live[r]
    target.node[to] = source.node[r]
    target.deadline[to] = source.deadline[r]
    target.kind[to] = source.kind[r]
