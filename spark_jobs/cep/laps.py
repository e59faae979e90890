"""Where the time of a task goes: a stopwatch that is read after every stage. Nothing but reports depends on it."""

from __future__ import annotations

import time
from collections.abc import Callable

Lap = Callable[[str], None]


class Laps:
    """Seconds by stage; calling it ends a stage, and begins the next one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._at
        self._at = now


def unmeasured(stage: str) -> None:
    """For who does not want to know."""
