"""The reference run: the log in one pass, with none of the recovery code.

For plain sequences it has a kernel of its own: a plain automaton walks every window of every key event by event and keeps a
list of runs (seed 000, figure 5, with WITHIN). It is slower than the engine's and has another shape on purpose:
agreement of the two is evidence, not tautology. To go on later it keeps these runs as they are, with copies of the events they
have bound: a checkpoint (seed 001), where detection keeps a residual and floors. For the rest of the language the reference is
the engine's matcher over the whole log at once, without batches, savepoints, shards or residuals; what that matcher
finds is held against a brute-force oracle in the tests. Only where a verification goes on from an earlier one does it start
from what that matcher said it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import NO_FLOORS, NOT_HELD, Floors, Int64s
from spark_jobs.cep.columns import decoded, int64s
from spark_jobs.cep.compiled import allocating
from spark_jobs.cep.matcher import Known, Replay, found_steps, key_codes, match_shard, match_table, step_mask
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, number
from spark_jobs.streams import traced
from spark_jobs.tasks import read_arrow, write_arrow

NOTHING: Int64s = np.empty(0, np.int64)


class Runs(NamedTuple):
    """Unfinished runs of the automaton, in their order: the window, how many steps are bound, and to which events."""

    y: Int64s
    bound: Int64s
    sns: Any  # (runs, steps); what is not bound yet is 0


class Kept(NamedTuple):
    """What the reference run needs of the past to go on, with copies of the events: the log may be trimmed."""

    events: pa.Table | None = None
    runs: Runs | None = None  # of a plain sequence
    context: Int64s = NOTHING  # of everything else: what the matcher was told besides the events it held
    floors: Floors = NO_FLOORS
    memory: pa.Table | None = None  # of an operator with shared state: names and numbers (stateful.py)

    def save(self, path: str) -> None:
        runs = self.runs or Runs(NOTHING, NOTHING, np.empty((0, 0), np.int64))
        np.savez(f"{path}.npz", y=runs.y, bound=runs.bound, sns=runs.sns, context=self.context, floors=np.stack(self.floors))
        if self.events is not None:
            write_arrow(f"{path}.events", self.events)
        if self.memory is not None:
            write_arrow(f"{path}.memory", self.memory)

    @classmethod
    def load(cls, path: str) -> Kept:
        with np.load(f"{path}.npz") as stored:
            runs = Runs(stored["y"], stored["bound"], stored["sns"])
            context, floors = stored["context"], Floors(*stored["floors"])
        events, memory = (read_arrow(f) if Path(f).exists() else None for f in (f"{path}.events", f"{path}.memory"))
        return cls(events, runs if runs.sns.size else None, context, floors, memory)


NOTHING_KEPT = Kept()


def reference_events(operator: Operator, events: pa.Table) -> pa.Table:
    """The complex events of a failure-free run over `events`, which hold the whole stream in SN order."""
    watermark = int(int64s(events["stream_ts"])[-1]) if events.num_rows else NOT_HELD
    known = Known(0, events.num_rows, NOT_HELD, watermark, operator.window.first_window())
    return number(operator, Seed(), 0, [reference_run(operator, events, known)[0]])[0]


def reference_run(
    operator: Operator, events: pa.Table, known: Known, kept: Kept = NOTHING_KEPT, inputs: Sequence[str] = ()
) -> tuple[pa.Table, Kept]:
    """The matches of a stretch of the stream, not yet numbered, and what is kept after it.

    `events` are those after `known.after_sn`, in SN order. `inputs` are the names of those the stream was merged from.
    """
    if kept.events is not None:
        events = pa.concat_tables([_coded(kept.events, events), events], promote_options="permissive")
    events = events.unify_dictionaries().combine_chunks()
    if operator.plain:
        matches, runs = _walked(operator, events, known, kept.runs)
        keeps = Kept(_copies(events, np.unique(runs.sns[runs.sns > 0])), runs)
    else:
        found = match_shard(operator, events, known, replay=Replay(kept.context, kept.floors))
        matches, context = found.matches, np.setdiff1d(found.context_sn, found.held_sn)
        keeps = Kept(_copies(events, np.union1d(found.held_sn, context)), None, context, found.floors)
    return traced(matches, events, None, inputs), keeps


def _coded(kept: pa.Table, events: pa.Table) -> pa.Table:
    """What an earlier release has kept as texts, where events have codes."""
    columns = {name: kept[name] for name in kept.column_names}
    plain = [n for n in columns if pa.types.is_dictionary(events[n].type) and not pa.types.is_dictionary(kept[n].type)]
    return pa.table({**columns, **{name: columns[name].dictionary_encode() for name in plain}})


def _copies(events: pa.Table, sns: Int64s) -> pa.Table:
    """Some events, with texts of their own: the codes of all others would be kept with them."""
    rows = events.take(pa.array(np.searchsorted(int64s(events["sn"]), sns)))
    columns = {name: decoded(rows[name]) for name in rows.column_names}
    coded = {n: c.dictionary_encode() if pa.types.is_dictionary(rows[n].type) else c for n, c in columns.items()}
    return pa.table(coded)


def _walked(operator: Operator, events: pa.Table, known: Known, before: Runs | None) -> tuple[pa.Table, Runs]:
    mask = step_mask(operator, events)
    codes, _ = key_codes(operator, events, np.arange(events.num_rows))
    by_key = np.argsort(codes, kind="stable")
    all_sns, window = int64s(events["sn"]), operator.window
    sn, ts = all_sns[by_key], int64s(events["stream_ts"])[by_key]
    steps = len(operator.pattern.steps or ())
    rows, windows, y, bound, kept = _walk(
        codes[by_key],
        mask[by_key],
        ts if window.kind == "time" else sn - 1,
        sn,
        ts,
        steps,
        window.kind != "none",
        window.size,
        window.slide,
        known.first_window if known.after_sn or window.kind == "count" else -(2**62),
        operator.within,
        operator.after_match.kind == "to next row",
        known.after_sn,
        known.watermark,
        window.first_open(known.end_sn, known.watermark),
        *_placed(before or Runs(NOTHING, NOTHING, np.empty((0, steps), np.int64)), codes, by_key, all_sns),
    )
    runs = Runs(y, bound, np.where(kept >= 0, sn[kept], 0) if sn.size else kept)
    return match_table(operator, events, None, found_steps(operator, events, by_key[rows], windows)), runs


def _placed(runs: Runs, codes: Any, by_key: Int64s, sns: Int64s) -> tuple[Any, Int64s, Int64s, Any]:
    """Runs that were kept, by key and window, each in its order: key, window, steps bound, and where their events lie now."""
    place = np.empty(by_key.size, np.int64)
    place[by_key] = np.arange(by_key.size)
    events = np.searchsorted(sns, runs.sns)
    events[runs.sns == 0] = 0
    key = codes[events[:, 0]] if runs.y.size else codes[:0]
    order = np.lexsort((np.arange(runs.y.size), runs.y, key))
    rows = place[events[order]] if runs.y.size else events
    return key[order], runs.y[order], runs.bound[order], rows


def warm_up() -> None:
    """Compile the automaton where this host has not yet."""
    one, none = np.ones(1, np.int64), np.empty((0, 1), np.int64)
    _walk(one, one, one, one, one, 1, False, 0, 0, 1, 0, False, 0, 0, 1, NOTHING, NOTHING, NOTHING, none)


@allocating
def _walk(
    key: Any,
    mask: Any,
    axis: Any,
    sn: Any,
    ts: Any,
    steps: int,
    windowed: bool,
    size: int,
    slide: int,
    lowest: int,
    within: int,
    to_next_row: bool,
    after_sn: int,
    watermark: int,
    open_from: int,
    old_key: Any,
    old_y: Any,
    old_bound: Any,
    old_rows: Any,
) -> Any:
    """The matches that rows after `after_sn` complete, and the runs of windows from `open_from` on that are left."""
    out_rows = [np.empty(steps, np.int64) for _ in range(0)]
    out_windows = [0 for _ in range(0)]
    kept_rows = [np.empty(steps, np.int64) for _ in range(0)]
    kept_y = [0 for _ in range(0)]
    kept_bound = [0 for _ in range(0)]
    n = key.size
    begin = old = 0
    while begin < n:
        end = begin
        while end < n and key[end] == key[begin]:
            end += 1
        new = begin
        while new < end and sn[new] <= after_sn:
            new += 1
        last_old = old
        while last_old < old_key.size and old_key[last_old] == key[begin]:
            last_old += 1
        # Windows with new rows, and windows with runs: both in order, mostly the same ones.
        y, last_y = 1, 1
        if windowed and new < end:
            y, last_y = max(lowest, (axis[new] - size) // slide + 2), axis[end - 1] // slide + 1
        elif windowed:
            last_y = 0
        if old < last_old:
            y = min(y, old_y[old])
        while y <= last_y or old < last_old:
            if y > last_y:
                y = old_y[old]
            runs = [np.empty(steps, np.int64) for _ in range(0)]
            bound = [0 for _ in range(0)]
            while old < last_old and old_y[old] == y:
                runs.append(old_rows[old].copy())
                bound.append(old_bound[old])
                old += 1
            low: Any = new
            high: Any = end
            if windowed:
                low = new + np.searchsorted(axis[new:end], (y - 1) * slide, side="left")
                high = new + np.searchsorted(axis[new:end], (y - 1) * slide + size, side="left")
            if low == high and len(runs) == 0:  # an empty stretch: go to the next window with an event or a run
                y = max(y + 1, (axis[low] - size) // slide + 2) if windowed and low < end else y + 1
                if old < last_old:
                    y = min(y, old_y[old])
                continue
            runs, bound = _run(mask, ts, low, high, steps, within, to_next_row, y, runs, bound, out_rows, out_windows)
            for r in range(len(runs)):
                if (not windowed or y >= open_from) and (within == 0 or watermark - ts[runs[r][0]] < within):
                    runs[r][bound[r] :] = -1
                    kept_rows.append(runs[r])
                    kept_y.append(y)
                    kept_bound.append(bound[r])
            y += 1
        begin = end
    return (
        _stacked(out_rows, steps),
        np.array(out_windows, dtype=np.int64),
        np.array(kept_y, dtype=np.int64),
        np.array(kept_bound, dtype=np.int64),
        _stacked(kept_rows, steps),
    )


@allocating
def _stacked(rows: Any, steps: int) -> Any:
    stacked = np.empty((len(rows), steps), np.int64)
    for i in range(len(rows)):
        stacked[i] = rows[i]
    return stacked


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
    runs: Any,
    bound: Any,
    out_rows: Any,
    out_windows: Any,
) -> Any:
    """One window of one key: runs in order of their start, each a row of bound positions and a count of them."""
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
    return runs, bound
