"""Processes that end with the one that started them. An orphan would be fenced, but it would still burn CPU."""

from __future__ import annotations

import signal

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def die_with_parent() -> None:
    """From now on, who kills the parent kills this process too."""
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
