"""The commands of a drill, in order. Plain text, so that a DAG can fill in its own parameters."""

from __future__ import annotations

# Rows of a generated log that are made unusable, so that a drill also shows the quarantine.
POISON = 5
# Steps whose exit code is a verdict, which asking again does not change.
VERDICTS = ("verify", "report")
# What comes late is ingested and detected in a second round; without such a fault these steps are skipped.
SECOND_ROUND = ("deliver_late", "ingest_late", "detect_late")
# The exit code of a step that has nothing to do, as Airflow knows it.
SKIPPED = 99


def drill_steps(
    *, pipeline: str, folder: str, given: str, faults: list[str], events: str, poison: str, batch_events: str, master: str
) -> dict[str, list[str]]:
    """Step: arguments of `reprise`."""
    lake = ["--lake", f"{folder}/lake"]
    landing = ["--landing", f"{folder}/landing"]
    deliver = ["deliver", pipeline, *lake, "--given", given, *landing, "--held", f"{folder}/held"]
    ingest = ["ingest", pipeline, *landing, *lake, "--master", master]
    detect = ["detect", pipeline, *lake, "--batch-events", batch_events, "--master", master]
    return {
        "generate": ["generate", "--out", given, "--events", events, "--poison", poison],
        "arm": ["arm", pipeline, *lake, "--master", master, *faults],
        "deliver": deliver,
        "ingest": ingest,
        "detect": detect,
        "deliver_late": [*deliver, "--late"],
        "ingest_late": ingest,
        "detect_late": detect,
        "verify": ["verify", pipeline, *lake],
        "report": ["report", pipeline, *lake, "--out", f"{folder}/report.html"],
    }
