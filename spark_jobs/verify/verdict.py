"""Verdicts are three-valued: valid, invalid, or unknown. Unknown is never a pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        return {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}[self]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """One broken property makes the whole invalid; otherwise one that could not be checked makes it unknown."""
    found = set(verdicts)
    if Verdict.INVALID in found:
        return Verdict.INVALID
    return Verdict.UNKNOWN if Verdict.UNKNOWN in found or not found else Verdict.VALID


@dataclass(frozen=True)
class Finding:
    """What one checker says about one property."""

    property: str
    verdict: Verdict
    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
