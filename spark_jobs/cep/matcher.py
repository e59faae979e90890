"""The matcher: what an operator does to the events of one shard.

What depends on one row is evaluated columnar into a symbol mask, rows that cannot matter are dropped, and one kernel
call does the rest: completion arrays for plain sequences (kernel.py), ordered runs for everything else (runs.py).
Nothing here runs once per event or key in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep import kernel, run_state, runs
from spark_jobs.cep.arrays import (
    FLOORS_ALWAYS,
    FLOORS_NEEDED,
    FLOORS_NEVER,
    FOREVER,
    NO_FLOORS,
    NOT_HELD,
    Floors,
    Found,
    Int64s,
    KeyFloors,
    new_nodes,
)
from spark_jobs.cep.columns import codes_of, decoded, int64s, one_chunk
from spark_jobs.cep.expressions import Expression
from spark_jobs.cep.laps import Lap, unmeasured
from spark_jobs.cep.operator import SKIPS, Operator
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.sequencer import in_final_order
from spark_jobs.errors import RepriseError

TIMESTAMP = pa.timestamp("us", "UTC")
WINDOWS = ("none", "count", "time", "keyed", "opened")
NOTHING: Int64s = np.empty(0, np.int64)


class Known(NamedTuple):
    """How far the log is known: a batch reads the events after `after_sn` up to `end_sn`, besides the residual.

    `since` and `watermark` are the stream times of those two events: what a deadline up to `since` decided has been
    reported, what one up to `watermark` decides is reported now.
    """

    after_sn: int
    end_sn: int
    since: int
    watermark: int
    first_window: int
    last_window: int = FOREVER  # windows on the grid may be shared out among shards


class ShardMatches(NamedTuple):
    """What one shard found and what it still needs."""

    matches: pa.Table  # y, _at_ts, _at_sn, _first_sn, key, ts, symbols, sns, timed_out and the measures; not yet numbered
    held_sn: Int64s
    context_sn: Int64s  # needed for PREV only: they are read again, but not matched again
    floors: Floors  # from where on windows that are still open go on


class Replay(NamedTuple):
    """What a shard is told about the residual among its events.

    Without `skip`, everything from the first held row on will be replayed, so every key has to know where it goes on.
    """

    context: Int64s = NOTHING
    floors: Floors = NO_FLOORS
    skip: bool = True


NO_REPLAY = Replay()


class Complete(NamedTuple):
    """All matches of an input that is known to its end."""

    events: pa.Table  # by key, then SN
    offsets: Int64s
    found: Found


def match_shard(
    operator: Operator,
    events: pa.Table,
    known: Known,
    *,
    replay: Replay = NO_REPLAY,
    boundaries: Boundaries | None = None,
    lap: Lap = unmeasured,
) -> ShardMatches:
    """Match the residual and the new events of one shard; only what was decided after `known.after_sn` is reported.

    `events` holds SN, stream time and `operator.columns`; the events of a key are in SN order. `boundaries` give the stream
    times of the rows that close count windows, where other shards may hold them.
    """
    events = events.unify_dictionaries().combine_chunks()
    if operator.plain:
        return _match_plain(operator, events, known, replay, lap)
    offsets = None
    if operator.back or operator.complete:  # rows look at their neighbours
        events, offsets = _by_key(operator, events)
        lap("kernel")
    found, held, floors = _match_runs(operator, events, offsets, known, replay, boundaries, lap)
    sn = int64s(events[operator.sn])
    context = NOTHING if offsets is None else np.sort(sn[_context(operator.back, offsets, held)])
    return ShardMatches(match_table(operator, events, offsets, found), np.sort(sn[held]), context, floors)


def match_complete(operator: Operator, events: pa.Table) -> Complete:
    """All matches of a whole input, in which the events of a key are in SN order."""
    events, offsets = _by_key(operator, events.unify_dictionaries().combine_chunks())
    last = int(int64s(events[operator.stream_ts]).max()) if events.num_rows else NOT_HELD
    known = Known(0, events.num_rows, NOT_HELD, last, operator.window.first_window())
    found, *_ = _match_runs(operator, events, offsets, known, NO_REPLAY, None, unmeasured)
    order = np.lexsort((np.arange(found.first.size), found.first))
    return Complete(events, offsets, _numbered(_taken(found, order), offsets))


def warm_up() -> None:
    """Load the compiled kernels, compiling them where this host has not yet: the first call pays for all that follow."""
    columns = {"sn": [1, 2], "stream_ts": pa.array([1, 2], TIMESTAMP), "v": [1, 2]}
    # Codes have another type where a key is NULL, and where there is no key.
    same, null = pa.array(["k", "k"]).dictionary_encode(), pa.array(["k", None]).dictionary_encode()
    many = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(map(str, range(kernel.MANY_KEYS))))
    plain, general = ("A -> B", "v > 1"), ("A B", "v > A.v")
    for keys, (text, predicate) in (
        (same, plain),
        (null, plain),
        (None, plain),
        (many, plain),
        (same, general),
        (many, general),
    ):
        events = pa.table({**columns, "key": same if keys is None else keys})
        operator = Operator(
            name="warm_up",
            pattern=parse_pattern(text),
            define={"A": "v > 0", "B": predicate},
            types={"v": pa.int64(), "key": pa.string()},
            partition_by="key" if keys else None,
        )
        match_shard(operator, events, Known(0, 2, NOT_HELD, 2, 1))
    kernel.rows_by_number(int64s(events["sn"]), 1, 2)


# Plain sequences


def _match_plain(operator: Operator, events: pa.Table, known: Known, replay: Replay, lap: Lap) -> ShardMatches:
    mask = step_mask(operator, events)
    lap("predicate")
    codes, keys = key_codes(operator, events, None)
    rows, *stream = kernel.arrange(codes, keys, mask, mask, int64s(events[operator.sn]), int64s(events[operator.stream_ts]))
    matched = kernel.match(
        kernel.Stream(*stream),
        len(operator.pattern.steps or ()),
        operator.window,
        within=operator.within,
        to_next_row=operator.after_match.kind == "to next row",
        first_window=known.first_window,
        last_window=known.last_window,
        after_sn=known.after_sn,
        end_sn=known.end_sn,
        watermark=known.watermark,
        floors=_key_floors(operator, replay.floors, stream[0], stream[2], known),
        report_floors=_report_floors(operator, known, replay),
    )
    bound = rows[matched.rows]
    # In their final order already here, where a match is a row of numbers: tables of texts and lists take ten times as long.
    order = in_final_order(*_places(operator, events, bound), matched.window, int64s(events[operator.sn])[bound[:, 0]])
    found = found_steps(operator, events, bound[order], matched.window[order])
    held = np.sort(stream[2][matched.held])
    return ShardMatches(match_table(operator, events, None, found), held, NOTHING, matched.floors)


def _report_floors(operator: Operator, known: Known, replay: Replay) -> int:
    """A match that consumes rows of one window leaves them to the others, and to replays that know nothing of it."""
    window = operator.window
    if window.kind in ("keyed", "opened"):  # their windows begin at a row: what is replayed before it would be counted
        return FLOORS_NEVER if replay.skip or operator.complete else FLOORS_ALWAYS
    if operator.complete or operator.pattern.at_start or not operator.after_match.consumes:
        return FLOORS_NEVER
    shared_out = known.last_window != FOREVER  # other shards' windows hold rows that are replayed into these as well
    if not replay.skip or (shared_out and window.overlapping):
        return FLOORS_ALWAYS
    return FLOORS_NEEDED if window.overlapping and window.on_grid else FLOORS_NEVER


def _key_floors(operator: Operator, floors: Floors, offsets: Int64s, sn: Int64s, known: Known) -> KeyFloors:
    """The floors of the shard's keys. The witness says which key; one that is not among the rows stands for another shard's."""
    keys = offsets.size - 1
    if not floors.sn.size or not keys:
        return kernel.no_floors(keys)
    if operator.partition_by is None:
        return KeyFloors(np.array([0, *[floors.sn.size] * keys], np.int64), floors.low, floors.high, floors.sn)
    old = np.flatnonzero(sn <= known.after_sn)
    if not old.size:
        return kernel.no_floors(keys)
    old = old[np.argsort(sn[old])]
    place = old[np.minimum(np.searchsorted(sn[old], floors.witness), old.size - 1)]
    mine = np.flatnonzero(sn[place] == floors.witness)
    key = np.searchsorted(offsets, place[mine], side="right") - 1
    mine = mine[np.argsort(key, kind="stable")]
    bounds = np.searchsorted(np.sort(key), np.arange(keys + 1)).astype(np.int64)
    return KeyFloors(bounds, floors.low[mine], floors.high[mine], floors.sn[mine])


def step_mask(operator: Operator, events: pa.Table) -> Int64s:
    """Bit s of the result is set where the event fits step s of a plain sequence."""
    fits = operator.terms.row_mask(events, None)
    if operator.pattern.steps == operator.pattern.symbols:  # each symbol is one step, as it mostly is
        return fits.view(np.int64)
    mask = np.zeros(events.num_rows, np.int64)
    for step, symbol in enumerate(operator.pattern.steps or ()):
        bit = np.uint64(operator.pattern.symbols.index(symbol))
        mask |= ((fits >> bit) & np.uint64(1)).astype(np.int64) << step
    return mask


def found_steps(operator: Operator, events: pa.Table, bound: Int64s, window: Int64s) -> Found:
    """Matches of a plain sequence, one row of `bound` each; the last event decides."""
    count, steps = bound.shape
    at_ts, at_sn = _places(operator, events, bound)
    symbols = np.array([operator.pattern.symbols.index(symbol) for symbol in operator.pattern.steps or ()], np.int64)
    return Found(
        offsets=np.arange(count + 1, dtype=np.int64) * steps,
        rows=bound.ravel(),
        symbols=np.tile(symbols, count),
        window=window,
        first=bound[:, 0],
        at_ts=at_ts,
        at_sn=at_sn,
        timed_out=np.zeros(count, np.bool_),
        number=np.zeros(count, np.int64),
        excluded=np.zeros(bound.size, np.bool_),
    )


def _places(operator: Operator, events: pa.Table, bound: Int64s) -> tuple[Int64s, Int64s]:
    last = bound[:, -1]
    return int64s(events[operator.stream_ts])[last], int64s(events[operator.sn])[last]


# Everything else


class Boundaries(NamedTuple):
    """Stream times of the rows that close count windows: window y is closed at `ts[y - first]`."""

    first: int
    ts: Int64s


def closing_windows(operator: Operator, known: Known) -> tuple[int, Int64s]:
    """The count windows that a batch closes: the first one's number, and the SNs of their last positions."""
    window = operator.window
    if window.kind != "count" or operator.plain:
        return known.first_window, NOTHING
    last = (known.end_sn - window.size) // window.slide + 1
    numbers = np.arange(known.first_window, max(last, known.first_window - 1) + 1, dtype=np.int64)
    return known.first_window, (numbers - 1) * window.slide + window.size


def _boundaries(operator: Operator, events: pa.Table, known: Known) -> Boundaries:
    """From the events themselves, where they are all there is."""
    if events.num_rows == 0:
        return Boundaries(known.first_window, NOTHING)
    first, closing = closing_windows(operator, known)
    if not closing.size:
        return Boundaries(first, NOTHING)
    sn, ts = int64s(events[operator.sn]), int64s(events[operator.stream_ts])
    order = np.argsort(sn)
    place = np.searchsorted(sn[order], closing)
    return Boundaries(first, ts[order][np.minimum(place, sn.size - 1)])


def _match_runs(
    operator: Operator,
    events: pa.Table,
    offsets: Int64s | None,
    known: Known,
    replay: Replay,
    boundaries: Boundaries | None,
    lap: Lap,
) -> tuple[Found, Int64s, Floors]:
    """Matches, the rows that are held (both index into `events`), and the floors. `offsets`, where rows look at their
    neighbours: the events are sorted by key, and that is where each begins."""
    bits = operator.terms.row_mask(events, offsets)
    sn, ts = int64s(events[operator.sn]), int64s(events[operator.stream_ts])
    opens = _predicate(operator.open_when, events)
    closes = _predicate(operator.close_when, events)
    wanted = _wanted(operator, bits, [opens, closes], np.isin(sn, replay.context) if replay.context.size else None)
    lap("predicate")
    codes, keys = key_codes(operator, events, None)
    rows, row_offsets, row_bits, row_sn, row_ts = kernel.arrange(codes, keys, wanted, bits.view(np.int64), sn, ts)
    programs = operator.terms.bind(events, offsets, rows)
    limits = operator.limits
    boundaries = boundaries or _boundaries(operator, events, known)
    out, counts, held, where, floors = runs.find_runs(
        run_state.Rows(
            row_offsets,
            row_bits.view(np.uint64),
            row_sn,
            row_ts,
            _of_rows(opens, rows),
            _of_rows(closes, rows),
            _known_ts(operator, ts, offsets, known, keys),
        ),
        operator.automaton.tables(),
        programs,
        _rule(operator),
        _split(operator, known, _report_floors(operator, known, replay)),
        run_state.Progress(known.after_sn, known.end_sn, known.since, known.watermark, operator.complete),
        run_state.new_runs(limits.runs),
        run_state.new_runs(limits.runs),
        new_nodes(1024, programs.aggregates.shape[0]),
        boundaries.ts.copy(),  # also where it is read-only, for which the kernel would be compiled once more
        boundaries.first,
        _key_floors(operator, replay.floors, row_offsets, row_sn, known),
    )
    operator.terms.check(programs)
    if counts[run_state.ERROR]:
        raise _limit_error(operator, events, int(rows[where]), int(counts[run_state.ERROR]))
    matches, bound = int(counts[run_state.MATCHES]), int(counts[run_state.BOUND])
    head = out.head[:matches]
    found = Found(
        offsets=np.concatenate([[0], np.cumsum(head[:, 5])]).astype(np.int64),
        rows=rows[out.rows[:bound]],
        symbols=out.symbols[:bound],
        window=head[:, 0],
        first=rows[head[:, 1]],
        at_ts=head[:, 2],
        at_sn=head[:, 3],
        timed_out=head[:, 4] != 0,
        number=np.zeros(matches, np.int64),
        excluded=out.excluded[:bound],
    )
    return found, rows[held], Floors(*floors.T.copy())


def _wanted(operator: Operator, bits: Any, predicates: Sequence[Any], context: Any) -> Int64s:
    """Not 0 for the rows that can matter. Those of the context are there for PREV to look at."""
    if operator.every_row:
        wanted = np.ones(bits.size, np.int64)
    else:
        wanted = bits.view(np.int64)
        for holds in predicates:
            wanted = wanted if holds is None else wanted | holds
    return wanted if context is None else np.where(context, 0, wanted)


def _of_rows(holds: Any, rows: Int64s) -> Any:
    return np.zeros(rows.size, np.bool_) if holds is None else holds[rows]


def _known_ts(operator: Operator, ts: Int64s, offsets: Int64s | None, known: Known, keys: int) -> Int64s:
    """How far each key has come in time: with all others, or, where the input is complete, on its own."""
    if not operator.complete or offsets is None or not ts.size:
        return np.full(keys, known.watermark, np.int64)
    return ts[np.maximum(offsets[1:] - 1, 0)]


def _rule(operator: Operator) -> run_state.Rule:
    index = {symbol: k for k, symbol in enumerate(operator.pattern.symbols)}
    target = operator.after_match.symbol
    members = operator.subsets.get(target, (target,)) if target else ()
    # Two runs in one state have one future if no predicate looks back at what they bound.
    merges = not (operator.all_runs or operator.terms.crossing or operator.timed_out)
    return run_state.Rule(
        within=operator.within,
        within_steps=operator.within_steps,
        skip=SKIPS.index(operator.after_match.kind),
        skip_symbols=np.uint64(sum(1 << index[symbol] for symbol in members)),
        all_runs=operator.all_runs,
        timed_out=operator.timed_out,
        at_start=operator.pattern.at_start,
        at_end=operator.pattern.at_end,
        merges=merges,
        dominates=merges and operator.after_match.kind == "past last row" and not (operator.within or operator.within_steps),
        max_runs=operator.limits.runs,
        max_length=operator.limits.length,
        max_nodes=operator.limits.nodes,
    )


def _split(operator: Operator, known: Known, report_floors: int) -> run_state.Split:
    window = operator.window
    return run_state.Split(
        kind=WINDOWS.index(window.kind),
        size=window.size,
        slide=window.slide,
        by_rows=window.by_rows,
        first_window=known.first_window,
        last_window=known.last_window,
        report_floors=report_floors,
    )


def _limit_error(operator: Operator, events: pa.Table, row: int, error: int) -> RepriseError:
    limits = operator.limits
    what, value, word = {
        run_state.TOO_MANY_RUNS: (f"more than {limits.runs:,} runs at the same time", limits.runs, "runs"),
        run_state.TOO_LONG: (f"a match of more than {limits.length:,} events", limits.length, "length"),
        run_state.TOO_LARGE: (f"more than {limits.nodes:,} bound events in unfinished runs", limits.nodes, "nodes"),
    }[error]
    key = _key_texts(operator, events, pa.array([row]))[0].as_py()
    where = f"key '{key}'" if operator.partition_by else "the stream"
    event = events[operator.sn][row].as_py()
    return RepriseError(
        f"operator '{operator.name}': {where} has {what} (event {event:,}; rule: limits.{word} = {value:,}). "
        f"Nothing of this batch was published. Bound the pattern '{operator.pattern.text}' with WITHIN or a window, "
        f"or raise limits.{word} if memory allows."
    )


def _by_key(operator: Operator, events: pa.Table) -> tuple[pa.Table, Int64s]:
    """The events by key, each in SN order, and where each key begins."""
    if operator.partition_by is None:
        return events, np.array([0, events.num_rows], np.int64)
    codes, keys = key_codes(operator, events, None)
    order, offsets = kernel.sort_by_key(codes, keys)
    return events.take(pa.array(order)), offsets


def _context(back: int, offsets: Int64s, held: Int64s) -> Int64s:
    """The rows that PREV will look back at: before held rows, and at the end of each key."""
    rows, key_begins = int(offsets[-1]), np.repeat(offsets[:-1], np.diff(offsets))
    starting = np.concatenate([held, offsets[1:][np.diff(offsets) > 0]])
    begins = np.concatenate([key_begins[held], offsets[:-1][np.diff(offsets) > 0]])
    wanted = np.zeros(rows, np.bool_)
    for k in range(1, back + 1):
        place = starting - k
        wanted[place[place >= begins]] = True
    wanted[held] = False
    return np.flatnonzero(wanted)


def _predicate(predicate: Expression | None, events: pa.Table) -> Any:
    """Where it holds; None where there is none."""
    if predicate is None:
        return None
    value = predicate.evaluate({name: decoded(events[name]) for name in predicate.columns})
    if isinstance(value, pa.Scalar):
        return np.full(events.num_rows, bool(value.as_py()))
    return np.asarray(pc.fill_null(value, False))


def _taken(found: Found, order: Int64s) -> Found:
    """The same matches in another order."""
    lengths = np.diff(found.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = np.repeat(found.offsets[:-1][order] - offsets[:-1], lengths) + np.arange(offsets[-1])
    per_match = {name: getattr(found, name)[order] for name in ("window", "first", "at_ts", "at_sn", "timed_out", "number")}
    return Found(
        offsets=offsets, rows=found.rows[flat], symbols=found.symbols[flat], excluded=found.excluded[flat], **per_match
    )


def _numbered(found: Found, offsets: Int64s) -> Found:
    """MATCH_NUMBER: 1, 2, .. within each key, in order of the first row."""
    key = np.searchsorted(offsets, found.first, side="right")
    first_of_key = np.searchsorted(key, key, side="left")
    return found._replace(number=np.arange(key.size, dtype=np.int64) - first_of_key + 1)


# What a match says


def match_table(operator: Operator, events: pa.Table, offsets: Int64s | None, found: Found) -> pa.Table:
    """Matches with the values people asked for; `found.rows` index into `events`."""
    sn = int64s(events[operator.sn])
    last = pa.array(found.rows[found.offsets[1:] - 1])
    symbols = pa.DictionaryArray.from_arrays(pa.array(found.symbols.astype(np.int8)), pa.array(operator.pattern.symbols))
    list_offsets = pa.array(found.offsets.astype(np.int32))
    table = {
        "y": pa.array(found.window),
        "_at_ts": pa.array(found.at_ts),
        "_at_sn": pa.array(found.at_sn),
        "_first_sn": pa.array(sn[found.first]),
        "key": _key_texts(operator, events, last),
        "ts": one_chunk(events[operator.stream_ts]).take(last).cast(TIMESTAMP),
        "symbols": pa.ListArray.from_arrays(list_offsets, symbols),
        "sns": pa.ListArray.from_arrays(list_offsets, pa.array(sn[found.rows])),
        "timed_out": pa.array(found.timed_out),
        **operator.measured.evaluate(events, offsets, found, all_rows=False),
    }
    return pa.table(table)


def key_codes(operator: Operator, events: pa.Table, rows: Int64s | None) -> tuple[Any, int]:
    """A small integer per event (of `rows`, or of all) and key; NULL is a key of its own, as in SQL's PARTITION BY."""
    if operator.partition_by is None:
        return np.zeros(events.num_rows if rows is None else rows.size, np.int64), 1
    column = one_chunk(events[operator.partition_by])
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes = codes_of(coded)
    return codes if rows is None else codes[rows], len(coded.dictionary) + 1


def _key_texts(operator: Operator, events: pa.Table, rows: pa.Array) -> pa.Array:
    if operator.partition_by is None:
        return pa.nulls(len(rows), pa.string())
    return pc.cast(decoded(one_chunk(events[operator.partition_by]).take(rows)), pa.string())
