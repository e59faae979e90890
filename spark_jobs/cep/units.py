"""Units of time in microseconds: those of pipelines and the builder, and those of SQL's INTERVAL."""

from __future__ import annotations

UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}

SQL_UNITS = {
    "MICROSECOND": UNITS["us"],
    "MILLISECOND": UNITS["ms"],
    "SECOND": UNITS["s"],
    "MINUTE": UNITS["min"],
    "HOUR": UNITS["h"],
    "DAY": UNITS["d"],
    "WEEK": 7 * UNITS["d"],
}
