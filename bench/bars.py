"""A bar: a measured value, and the limit an issue sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """`at_least` says on which side of the limit is good; a bar without a limit only informs."""

    bar: str
    value: float
    limit: float | None = None
    at_least: bool = True
    unit: str = ""

    @property
    def ok(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def shown(self) -> str:
        return _number(self.value, self.unit)

    @property
    def limit_shown(self) -> str:
        if self.limit is None:
            return "for information"
        return f"{'at least' if self.at_least else 'at most'} {_number(self.limit, self.unit)}"

    def as_dict(self) -> dict[str, object]:
        return {"bar": self.bar, "value": self.value, "limit": self.limit, "ok": self.ok}


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}"
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 100 or value == int(value) else f"{value:.3f} {unit}".strip()
