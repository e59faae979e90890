"""The tables of a lake: one module per table, each the only source of its Arrow schema.

Names and types are a contract: other tools read these tables. `SCHEMA_VERSION` rises when an existing column
changes its meaning; added columns do not raise it.
"""

from __future__ import annotations

from schemas import complex_events, event_log, history, landing, quarantine, savepoints, validations, verdicts, versions

SCHEMA_VERSION = 2

__all__ = [
    "SCHEMA_VERSION",
    "complex_events",
    "event_log",
    "history",
    "landing",
    "quarantine",
    "savepoints",
    "validations",
    "verdicts",
    "versions",
]
