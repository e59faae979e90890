"""What a command of Reprise reads and writes, as OpenLineage names it; asked for where Airflow has OpenLineage switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# How OpenLineage calls the files of a machine, or of a file system that all machines see.
NAMESPACE = "file"


class Tables(NamedTuple):
    """The tables of a lake that a command reads, and those that people use of what it writes."""

    read: tuple[str, ...]
    written: tuple[str, ...]


COMMANDS = {
    "ingest": Tables((), ("event_log", "quarantine")),
    "detect": Tables(("event_log",), ("complex_events",)),
    "verify": Tables(("event_log", "complex_events"), ("verdicts",)),
    "trim": Tables(("event_log",), ("event_log",)),
}


def lineage(arguments: Sequence[str]) -> Any:
    """For Airflow's OpenLineage provider; None where a command works on no lake."""
    # Only here: where nobody asks, the provider need not be installed.
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage

    tables, lake, landing = COMMANDS.get(arguments[0]), _after("--lake", arguments), _after("--landing", arguments)
    if tables is None or lake is None:
        return None
    read = ([landing] if landing else []) + [f"{lake}/{table}" for table in tables.read]
    written = [f"{lake}/{table}" for table in tables.written]
    inputs, outputs = ([Dataset(namespace=NAMESPACE, name=path) for path in paths] for paths in (read, written))
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _after(word: str, arguments: Sequence[str]) -> str | None:
    return arguments[arguments.index(word) + 1] if word in arguments else None
