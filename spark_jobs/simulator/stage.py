"""Work that takes turns: a virtual clock, and threads of which one runs at a time, so that a run repeats itself exactly."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count


class Fiber:
    """Work that pauses where it wants to and goes on when it is told to. A thread, but never beside another one."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def resume(self) -> None:
        """Let it run until it pauses or ends."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()

    def pause(self) -> None:
        """Called by the work itself: wait until it is resumed."""
        self._back.release()
        self._go.acquire()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._back.release()


class Stage:
    """What happens when, in virtual time. Of two things due at the same time, the one that was planned first comes first."""

    def __init__(self) -> None:
        self.clock = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = count()

    def tick(self) -> None:
        self.clock += 1

    def plan(self, ticks: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.clock + ticks, next(self._planned), act))

    def pause(self, fiber: Fiber, ticks: int) -> None:
        self.plan(ticks, fiber.resume)
        fiber.pause()

    def run(self) -> None:
        """Until nothing is due any more."""
        while self._due:
            due, _, act = heapq.heappop(self._due)
            self.clock = max(self.clock, due)
            act()
