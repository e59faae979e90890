"""When to save: after how many events the state of a shard is worth keeping (seed 001, section 4.7).

More often costs saving, less often costs doing again what was not saved. A policy says where, in a stretch of events, states
are to be saved; it sees counts and times it has measured, never the events. Others can be written: all that is asked of one
is `places`. Between batches, which end where they end, the question is whether a save is `due`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# However rarely a policy wants to save, what came since the last state must fit into memory (seed 001).
CAP = 1_000

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Since:
    """What has been processed since the last state was saved."""

    events: int = 0
    speculative: int = 0

    def and_then(self, events: int, speculative: int) -> Since:
        return Since(self.events + events, self.speculative + speculative)


class Policy(Protocol):
    """Where to save."""

    def places(self, speculative: Bools, since: Since) -> list[int]:
        """Before which of these events (their indexes) to save; `speculative` says which may have come too early."""


@dataclass(frozen=True)
class EveryEvents:
    """After every n events."""

    n: int

    def places(self, speculative: Bools, since: Since) -> list[int]:
        return list(range(max(0, self.n - since.events), speculative.size, self.n))


@dataclass(frozen=True)
class EverySpeculative:
    """After every n speculative events, and at the latest after `cap` events. With n = 1 it is seed 004's."""

    n: int
    cap: int = CAP

    def places(self, speculative: Bools, since: Since) -> list[int]:
        before = np.concatenate([[0], np.cumsum(speculative)]) + since.speculative
        found: list[int] = []
        last, saved = -since.events, 0
        while True:
            at = min(int(np.searchsorted(before, saved + self.n)), last + self.cap)
            at = max(at, 0, found[-1] + 1 if found else 0)
            if at >= speculative.size:
                return found
            found.append(at)
            last, saved = at, int(before[at])


@dataclass(frozen=True)
class Adaptive:
    """As soon as doing it again would take longer than saving: n * t_proc > t_cp."""

    event_seconds: float
    save_seconds: float

    def places(self, speculative: Bools, since: Since) -> list[int]:
        if self.event_seconds <= 0:
            return EveryEvents(CAP).places(speculative, since)
        return EveryEvents(math.floor(self.save_seconds / self.event_seconds) + 1).places(speculative, since)


@dataclass(frozen=True)
class Pace:
    """What an event and a save have taken lately; a new measurement counts as much as all before it."""

    event_seconds: float = 0.0
    save_seconds: float = 0.0

    def processed(self, events: int, seconds: float) -> Pace:
        return replace(self, event_seconds=_lately(self.event_seconds, seconds / max(1, events)))

    def saved(self, seconds: float) -> Pace:
        return replace(self, save_seconds=_lately(self.save_seconds, seconds))


def _lately(before: float, now: float) -> float:
    return (before + now) / 2 if before else now


def policy_of(said: dict[str, Any]) -> Policy:
    """The policy that a pipeline asks for, as tasks are told."""
    match said["kind"]:
        case "events":
            return EveryEvents(said["n"])
        case "speculative":
            return EverySpeculative(said["n"])
    return Adaptive(said["event_seconds"], said["save_seconds"])


def due(policy: Policy, since: Since) -> bool:
    """Would it save before the next event, whatever that is?"""
    return bool(policy.places(np.zeros(1, np.bool_), since))
