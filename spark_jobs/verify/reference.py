"""The reference run: the whole log in one pass, with none of the recovery code.

For plain sequences it has a kernel of its own: a plain automaton walks every window of every key event by event and keeps a
list of runs (seed 000, figure 5, with WITHIN). It is slower than the engine's and has another shape on purpose:
agreement of the two is evidence, not tautology. For the rest of the language the reference is the engine's matcher over
the whole log at once, without batches, savepoints, shards or residuals; what that matcher finds is held
against a brute-force oracle in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import NOT_HELD
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.compiled import allocating
from spark_jobs.cep.matcher import Known, found_steps, key_codes, match_shard, match_table, step_mask
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, number
from spark_jobs.streams import traced


def reference_events(operator: Operator, events: pa.Table, known: Known | None = None, inputs: Sequence[str] = ()) -> pa.Table:
    """The complex events of a failure-free run over `events`, which hold the whole stream in SN order.

    `known` says where the stream begins and how far time has come; by default it begins with the log and ends with its last
    event. `inputs` are the names of those the stream was merged from.
    """
    events = events.unify_dictionaries().combine_chunks()
    known = known or _whole(operator, events)
    matches = _walked(operator, events, known) if operator.plain else match_shard(operator, events, known).matches
    return number(operator, Seed(), 0, [traced(matches, events, None, inputs)])[0]


def _whole(operator: Operator, events: pa.Table) -> Known:
    watermark = int(int64s(events["stream_ts"])[-1]) if events.num_rows else NOT_HELD
    return Known(0, events.num_rows, NOT_HELD, watermark, operator.window.first_window())


def _walked(operator: Operator, events: pa.Table, known: Known) -> pa.Table:
    mask = step_mask(operator, events)
    codes, _ = key_codes(operator, events, np.arange(events.num_rows))
    by_key = np.argsort(codes, kind="stable")
    sn, ts = int64s(events["sn"])[by_key], int64s(events["stream_ts"])[by_key]
    axis = ts if operator.window.kind == "time" else sn - 1
    rows, windows = _walk(
        codes[by_key],
        mask[by_key],
        axis,
        ts,
        len(operator.pattern.steps or ()),
        operator.window.kind != "none",
        operator.window.size,
        operator.window.slide,
        known.first_window if known.after_sn or operator.window.kind == "count" else -(2**62),
        operator.within,
        operator.after_match.kind == "to next row",
    )
    return match_table(operator, events, None, found_steps(operator, events, by_key[rows], windows))


def warm_up() -> None:
    """Compile the automaton where this host has not yet."""
    one = np.ones(1, np.int64)
    _walk(one, one, one, one, 1, False, 0, 0, 1, 0, False)


@allocating
def _walk(
    key: Any,
    mask: Any,
    axis: Any,
    ts: Any,
    steps: int,
    windowed: bool,
    size: int,
    slide: int,
    lowest: int,
    within: int,
    to_next_row: bool,
) -> Any:
    out_rows = [np.empty(steps, np.int64) for _ in range(0)]
    out_windows = [0 for _ in range(0)]
    n = key.size
    begin = 0
    while begin < n:
        end = begin
        while end < n and key[end] == key[begin]:
            end += 1
        if not windowed:
            _run(mask, ts, begin, end, steps, within, to_next_row, 1, out_rows, out_windows)
        else:
            y = max(lowest, (axis[begin] - size) // slide + 2)
            while y <= axis[end - 1] // slide + 1:
                low = begin + np.searchsorted(axis[begin:end], (y - 1) * slide, side="left")
                high = begin + np.searchsorted(axis[begin:end], (y - 1) * slide + size, side="left")
                if low == high and low < end:  # an empty stretch: go to the first window of the next event
                    y = max(y + 1, (axis[low] - size) // slide + 2)
                    continue
                _run(mask, ts, low, high, steps, within, to_next_row, y, out_rows, out_windows)
                y += 1
        begin = end
    rows = np.empty((len(out_rows), steps), np.int64)
    for i in range(len(out_rows)):
        rows[i] = out_rows[i]
    return rows, np.array(out_windows, dtype=np.int64)


@allocating
def _run(
    mask: Any,
    ts: Any,
    low: int,
    high: int,
    steps: int,
    within: int,
    to_next_row: bool,
    y: int,
    out_rows: Any,
    out_windows: Any,
) -> None:
    """One window of one key: runs in order of their start, each a row of bound positions and a count of them."""
    runs = [np.empty(steps, np.int64) for _ in range(0)]
    bound = [0 for _ in range(0)]
    for i in range(low, high):
        if mask[i] == 0:
            continue
        consumed = False
        kept_runs = [np.empty(steps, np.int64) for _ in range(0)]
        kept_bound = [0 for _ in range(0)]
        for r in range(len(runs)):
            if within > 0 and ts[i] - ts[runs[r][0]] >= within:
                continue
            state = bound[r]
            if mask[i] >> state & 1:
                runs[r][state] = i
                state += 1
            if state == steps:
                out_rows.append(runs[r])
                out_windows.append(y)
                consumed = not to_next_row
                if consumed:
                    break
                continue
            kept_runs.append(runs[r])
            kept_bound.append(state)
        if consumed:
            runs = [np.empty(steps, np.int64) for _ in range(0)]
            bound = [0 for _ in range(0)]
            continue
        runs, bound = kept_runs, kept_bound
        if mask[i] & 1:
            run = np.empty(steps, np.int64)
            run[0] = i
            if steps == 1:
                out_rows.append(run)
                out_windows.append(y)
            # Without WITHIN a later start can never overtake the first one; it is kept only if it may report.
            elif within > 0 or to_next_row or len(runs) == 0:
                runs.append(run)
                bound.append(1)
