"""Names: how the events of several inputs are told apart by one number each, which never changes."""

from __future__ import annotations

import numpy as np

from spark_jobs.cep.arrays import Int64s


def names_of(numbers: Int64s, index: int, inputs: int) -> Int64s:
    """With one input, a name is the number itself."""
    return numbers * inputs + index


def numbers_in(names: Int64s, index: int, inputs: int) -> Int64s:
    """Of some events, the numbers of those that one input has, in order."""
    mine: Int64s = np.sort(names[names % inputs == index] // inputs)
    return mine
