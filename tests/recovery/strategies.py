"""The ways to recover, as a pipeline file says them: the same tests run over all of them, with the same verdicts."""

from __future__ import annotations

import pytest

STRATEGIES = {
    "savepoint": "",
    "savepoint, seldom": "recovery: {save: {events: 700}}\n",
    "checkpoint": "recovery: {strategy: checkpoint}\n",
    "checkpoint, seldom": "recovery: {strategy: checkpoint, save: {events: 700}}\n",
    "checkpoint, adaptive": "recovery: {strategy: checkpoint, save: adaptive}\n",
}

# For tests that take no other.
every_strategy = pytest.mark.parametrize("recovery", STRATEGIES.values(), ids=STRATEGIES)
