"""How much to speculate: alpha, the share of K that is waited for, follows the load like a congestion window (seed 004, 4.4).

While there is time to spare alpha is halved; when there is none it goes back to 1, which is plain buffering, and remembers how
far it had come. Near there it then goes in small steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# The values that seed 004 found to work.
TARGET = (0.8, 0.9)
STEP = 0.05


@dataclass(frozen=True)
class Speculation:
    """Alpha, and what its control loop remembers."""

    alpha: float = 1.0
    best: float | None = None  # where it was when there was too much to do
    slowly: bool = False


def busy_factor(busy: float, span: float) -> float:
    """The share of the time available that was worked. (The seed prints one minus it, and computes this.)"""
    return busy / span if span > 0 else 0.0


def adapted(speculation: Speculation, busy: float, target: tuple[float, float] = TARGET, step: float = STEP) -> Speculation:
    """Algorithm 3: speculate less at once above the target zone, more below it."""
    low, high = target
    if busy > high:
        return Speculation(1.0, speculation.alpha, slowly=False)
    if busy >= low:
        return speculation
    if speculation.slowly:
        return replace(speculation, alpha=max(0.0, speculation.alpha - step))
    halved = speculation.alpha / 2
    if speculation.best is not None and (1 - speculation.best) / 2 > halved:
        return replace(speculation, alpha=max(0.0, speculation.alpha - step), slowly=True)
    return replace(speculation, alpha=halved)
