"""Heartbeats as small files in the lake, one per replica, replaced as a whole.

Nothing in a file is compared with a clock: a reader notices that it has changed, and when, by its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from spark_jobs.lake.tables import Lake
from spark_jobs.replication.protocol import Beat


class Heartbeats:
    """The heartbeats of the replicas of one pipeline, seen by one of them."""

    def __init__(self, lake: Lake, pipeline: str, number: int) -> None:
        self._folder = lake.root / "_replicas" / pipeline
        self._folder.mkdir(parents=True, exist_ok=True)
        self._number = number

    def send(self, beat: Beat) -> None:
        # By two processes with the same number, when one was taken for dead, each writes a file of its own first.
        new = self._folder / f"{beat.replica}.{os.getpid()}"
        new.write_text(json.dumps(asdict(beat)))
        new.replace(self._file(beat.replica))

    def peers(self) -> list[Beat]:
        """The last heartbeat of everybody else who ever was."""
        files = sorted(self._folder.glob("*.json"))
        return [Beat(**json.loads(file.read_text())) for file in files if file != self._file(self._number)]

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.json"
