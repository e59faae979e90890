"""The sequencer: stamps complex events with `x:y` and a dense ordinal (seed 000, section III-B4).

x counts the input events that produced anything, y is the window. Both survive the loss of windows that a
recovery does not rebuild, which a plain counter does not (figure 8). The ordinal is dense, so that a
downstream operator can cut count windows without counting what is left after skipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.operator import Operator


class Seed(NamedTuple):
    """The first numbers to stamp."""

    x: int = 1
    ordinal: int = 1


class Stamps(NamedTuple):
    """Row order of the complex events and their numbers in that order, with the seed for what follows."""

    order: Int64s
    x: Int64s
    ordinal: Int64s
    seed: Seed


def number(operator: Operator, seed: Seed, batch: int, shards: Sequence[pa.Table]) -> tuple[pa.Table, Seed]:
    """Join the shards' matches of one batch into complex events in their final order."""
    matches = pa.concat_tables(shards).combine_chunks()
    sns = np.asarray(matches["sns"].combine_chunks().flatten()).reshape(-1, len(operator.pattern.steps))
    stamps = stamp(seed, sns[:, -1], np.asarray(matches["y"].combine_chunks()), sns[:, 0])
    matches = matches.take(pa.array(stamps.order))
    count = matches.num_rows
    symbols = pa.array([operator.pattern.steps], pa.list_(pa.string()))
    columns = {
        "operator": pa.repeat(operator.name, count),
        "x": pa.array(stamps.x),
        "y": matches["y"],
        "ordinal": pa.array(stamps.ordinal),
        "key": matches["key"],
        "ts": matches["ts"],
        "symbols": symbols.take(pa.array(np.zeros(count, np.int64))),
        "sns": matches["sns"],
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
        **{name: matches[name] for name in operator.measure_expressions},
    }
    return pa.table(columns), stamps.seed


def stamp(seed: Seed, last_sn: Int64s, window: Int64s, first_sn: Int64s) -> Stamps:
    """Number matches by completing event, then window, then first event: a total order without ties."""
    order = np.lexsort((first_sn, window, last_sn))
    producing, rank = np.unique(last_sn[order], return_inverse=True)
    ordinal = seed.ordinal + np.arange(order.size, dtype=np.int64)
    x = seed.x + rank.astype(np.int64)
    return Stamps(order, x, ordinal, Seed(seed.x + producing.size, seed.ordinal + order.size))
