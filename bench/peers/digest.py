"""A digest of matches: how many there are, and the sum of a hash of each. Two sets of matches are equal if these are.

A match is its window's number and the SNs of its events, in order; FlinkPeer.java computes the same. Sums do not depend on
the order in which matches come, and a match that comes twice counts twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Digest(NamedTuple):
    matches: int
    sum: str  # 64 bits, in hexadecimal digits


def digest(y: Any, sns: pa.ListArray, until: int) -> Digest:
    """Of the matches whose last event is not beyond an SN."""
    numbers = np.asarray(sns.flatten()).astype(np.uint64)
    lengths = np.asarray(sns.value_lengths()).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    known = numbers[starts + lengths - 1] <= until
    starts, lengths = starts[known], lengths[known]
    with np.errstate(over="ignore"):
        hashes = _mixed(np.asarray(y)[known].astype(np.uint64))
        for place in range(int(lengths.max(initial=0))):
            has = np.flatnonzero(lengths > place)
            hashes[has] = _mixed(hashes[has] ^ numbers[starts[has] + place])
        return Digest(int(known.sum()), f"{int(hashes.sum(dtype=np.uint64)):016x}")


def _mixed(z: Any) -> Any:
    """splitmix64."""
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
