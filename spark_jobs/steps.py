"""The commands of a drill, in order. Plain text, so that a DAG can fill in its own parameters."""

from __future__ import annotations

# Rows of a generated log that are made unusable, so that a drill also shows the quarantine.
POISON = 5
# Steps whose exit code is a verdict, which asking again does not change.
VERDICTS = ("verify", "report")


def drill_steps(
    *, pipeline: str, folder: str, landing: str, kill: list[str], events: str, poison: str, batch_events: str, master: str
) -> dict[str, list[str]]:
    """Step: arguments of `reprise`."""
    lake = ["--lake", f"{folder}/lake"]
    return {
        "generate": ["generate", "--out", landing, "--events", events, "--poison", poison],
        "arm": ["arm", *lake, *(word for fault in kill for word in ("--kill", fault))],
        "ingest": ["ingest", pipeline, "--landing", landing, *lake, "--master", master],
        "reference": ["reference", pipeline, *lake],
        "detect": ["detect", pipeline, *lake, "--batch-events", batch_events, "--master", master],
        "verify": ["verify", pipeline, *lake],
        "report": ["report", pipeline, *lake, "--out", f"{folder}/report.html"],
    }
