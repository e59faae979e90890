"""The sequencer: stamps complex events with `x:y` and a dense ordinal (seed 000, section III-B4).

x counts what produced complex events, in order: a row, or the passing of a deadline; y is the window. Both survive the
loss of windows that a recovery does not rebuild, which a plain counter does not (figure 8). The ordinal is dense, so that
a downstream operator can cut count windows without counting what is left after skipping.

Shards number nothing. Each puts its matches into the common order; the order is then cut into slices at producers, and
every slice is stamped alone, from the shards' matches that lie in it and a count of those that lie below it:

    order           (at_ts, at_sn), which is the producer; then y, first_sn, and the place in the shard
    x of a slice    seed.x + distinct producers below; shards share deadlines, and the rows that close count windows
    its ordinals    seed.ordinal + matches below

So neither the number of shards nor that of slices nor the cut into batches can show in a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.operator import Operator

Producer = tuple[int, int]  # at_ts, at_sn; at_sn 0: a deadline, which comes before all rows of its time

# What orders matches and is no part of a complex event. LOG_SN stands where the input is not the log, and its numbers not SNs.
LOG_SN = "_log_sn"
_PLACE = ["_at_ts", "_at_sn", "_first_sn", LOG_SN]
TIMESTAMP = pa.timestamp("us", "UTC")
# How many places in its matches a shard reports, for slices of about equal size: off by a few percent at most.
_MARKS = 32


class Seed(NamedTuple):
    """The first numbers to stamp."""

    x: int = 1
    ordinal: int = 1


class Slice(NamedTuple):
    """The matches from producer `low` up to, not including, producer `high`; None is no bound."""

    low: Producer | None = None
    high: Producer | None = None


EVERYTHING = Slice()


def number(operator: Operator, seed: Seed, batch: int, shards: Sequence[pa.Table]) -> tuple[pa.Table, Seed]:
    """Join the shards' matches of one batch into complex events in their final order, all in memory, text as plain text."""
    complex_events, seed = stamp(seed, batch, [in_order(matches) for matches in shards], EVERYTHING)
    complex_events = complex_events.add_column(0, "operator", pa.repeat(operator.name, complex_events.num_rows))
    return complex_events.cast(pa.schema([(field.name, plain(field.type)) for field in complex_events.schema])), seed


def in_order(matches: pa.Table) -> pa.Table:
    """A shard's matches in their final order."""
    order = in_final_order(*_place(matches))
    return matches if _ascending(order) else matches.take(pa.array(order))


def stamp(seed: Seed, batch: int, shards: Sequence[pa.Table], part: Slice) -> tuple[pa.Table, Seed]:
    """The complex events of one slice, and the seed for the slice after it.

    The shards' matches are given whole and in order: of what lies below the slice, the producers are counted.
    """
    seed, matches = _below(seed, shards, part.low), pa.concat_tables(_between(shard, part) for shard in shards)
    place = _place(matches)
    order = in_final_order(*place)
    names = set(matches.column_names)
    decided_sn = matches[LOG_SN if LOG_SN in names else "_at_sn"]
    decided = {"decided_ts": matches["_at_ts"].cast(TIMESTAMP), "decided_sn": decided_sn}
    matches = matches.drop_columns([name for name in _PLACE if name in names])
    for name, column in decided.items():
        matches = matches.append_column(name, column)
    if not _ascending(order):
        matches = matches.unify_dictionaries().combine_chunks().take(pa.array(order))
    new = _differs_from_last(place[0][order], place[1][order])
    count = matches.num_rows
    columns = {
        "x": pa.array(seed.x - 1 + np.cumsum(new)),
        "y": matches["y"],
        "ordinal": pa.array(seed.ordinal + np.arange(count)),
        **{name: matches[name] for name in matches.column_names if name != "y"},
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
    }
    return pa.table(columns), Seed(seed.x + int(new.sum()), seed.ordinal + count)


def marks(matches: pa.Table) -> list[tuple[int, int, int]]:
    """Producers that cut a shard's matches into parts of about equal size, each with the number of matches it stands for."""
    at_ts, at_sn = int64s(matches["_at_ts"]), int64s(matches["_at_sn"])
    places = np.unique(np.arange(_MARKS) * at_ts.size // _MARKS) if at_ts.size else np.empty(0, np.int64)
    weights = np.diff(places, append=at_ts.size)
    return [(int(at_ts[i]), int(at_sn[i]), int(w)) for i, w in zip(places, weights, strict=True)]


def slices(shards: Sequence[Sequence[tuple[int, int, int]]], count: int) -> list[Slice]:
    """At most `count` slices with about equally many matches, from the marks of all shards."""
    known = sorted((at_ts, at_sn, weight) for shard in shards for at_ts, at_sn, weight in shard)
    reached = np.cumsum([weight for _, _, weight in known])
    cuts: list[Producer] = []
    for share in range(1, count if known else 1):
        at_ts, at_sn, _ = known[min(int(np.searchsorted(reached, reached[-1] * share / count)), len(known) - 1)]
        if (not cuts or (at_ts, at_sn) > cuts[-1]) and (at_ts, at_sn) > known[0][:2]:
            cuts.append((at_ts, at_sn))
    return [Slice(low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]


def _place(matches: pa.Table) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    at_ts, at_sn, y, first_sn = (int64s(matches[name]) for name in ("_at_ts", "_at_sn", "y", "_first_sn"))
    return at_ts, at_sn, y, first_sn


def in_final_order(at_ts: Int64s, at_sn: Int64s, y: Int64s, first_sn: Int64s) -> Int64s:
    """The order of matches. Mostly one row of the log produces all matches of its SN, found window by window: then sorting
    by SN, as one number with the place in its low bits, is all there is to do, and ten times faster than four keys.
    """
    size = at_sn.size
    if size == 0:
        return np.empty(0, np.int64)
    low, bits = int(at_sn.min()), size.bit_length()
    if low > 0 and int(at_sn.max() - low).bit_length() + bits < 64:
        order = np.sort((at_sn - low) << bits | np.arange(size)) & ((1 << bits) - 1)
        if _in_order(at_ts[order], at_sn[order], y[order], first_sn[order]):
            return order
    return np.lexsort((first_sn, y, at_sn, at_ts))


def _in_order(*keys: Int64s) -> bool:
    """No row comes before the one above it."""
    equal: Any = np.ones(keys[0].size - 1, bool)
    for key in keys:
        if (equal & (key[1:] < key[:-1])).any():
            return False
        equal &= key[1:] == key[:-1]
    return True


def _ascending(order: Int64s) -> bool:
    """The identity: nothing has to be moved."""
    return bool((order == np.arange(order.size)).all())


def _differs_from_last(at_ts: Int64s, at_sn: Int64s) -> Any:
    """True where another producer begins."""
    new = np.ones(at_sn.size, bool)
    new[1:] = (at_sn[1:] != at_sn[:-1]) | (at_ts[1:] != at_ts[:-1])
    return new


def _below(seed: Seed, shards: Sequence[pa.Table], low: Producer | None) -> Seed:
    """The seed of a slice. A row is known by its SN, a deadline by its time; either may have produced in many shards."""
    if low is None:
        return seed
    below = [shard.slice(0, _end(shard, low)) for shard in shards]
    at_ts, at_sn = (np.concatenate([int64s(part[name]) for part in below]) for name in ("_at_ts", "_at_sn"))
    return Seed(seed.x + _distinct(at_sn[at_sn > 0]) + _distinct(at_ts[at_sn == 0]), seed.ordinal + at_sn.size)


def _distinct(numbers: Int64s) -> int:
    """How many there are. They are few sorted runs: sorting them takes a tenth of the time of a hash table."""
    ordered = np.sort(numbers)
    return int((ordered[1:] != ordered[:-1]).sum()) + int(ordered.size > 0)


def _between(shard: pa.Table, part: Slice) -> pa.Table:
    begin = _end(shard, part.low) if part.low else 0
    end = _end(shard, part.high) if part.high else shard.num_rows
    return shard.slice(begin, end - begin)


def _end(shard: pa.Table, producer: Producer) -> int:
    """How many matches of a shard come before `producer`."""
    at_ts, at_sn = int64s(shard["_at_ts"]), int64s(shard["_at_sn"])
    first, last = np.searchsorted(at_ts, producer[0], side="left"), np.searchsorted(at_ts, producer[0], side="right")
    return int(first + np.searchsorted(at_sn[first:last], producer[1], side="left"))


def plain(type_: pa.DataType) -> pa.DataType:
    """The type without codes: of text that may be coded, alone or in lists."""
    if pa.types.is_list(type_):
        return pa.list_(plain(type_.value_type))
    return type_.value_type if pa.types.is_dictionary(type_) else type_
