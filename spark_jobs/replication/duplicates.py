"""The duplicate filter: per type, what is not newer than the newest is a duplicate (seed 003, section V-B).

Numbers of one type rise strictly wherever they are made, and links keep their order. So one number per type is all that has
to be remembered, however late a duplicate comes.
"""

from __future__ import annotations

from collections.abc import Mapping


class DuplicateFilter:
    """The newest number of every type that was let through; a number is a time stamp, an SN, or the number of a batch."""

    def __init__(self, newest: Mapping[str, int] | None = None) -> None:
        self._newest: dict[str, int] = dict(newest or {})

    @property
    def newest(self) -> dict[str, int]:
        """As a value, for whoever goes on from here."""
        return dict(self._newest)

    def of(self, type_: str) -> int:
        """0 before the first."""
        return self._newest.get(type_, 0)

    def passes(self, type_: str, number: int) -> bool:
        """Let it through if it is new; what comes again does not pass again."""
        if number <= self._newest.get(type_, 0):
            return False
        self._newest[type_] = number
        return True
