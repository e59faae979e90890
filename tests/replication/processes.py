"""Replicas as real processes that tests kill, stop and continue, and the lake they share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spark_jobs.drills.processes import Process, Warm, awaited
from spark_jobs.lake.tables import Lake
from spark_jobs.replication.heartbeats import Heartbeats
from spark_jobs.replication.protocol import Beat

F = 2
HEARTBEAT = 0.3
RECOVERY = f"recovery: {{strategy: replication, f: {F}, heartbeat: {int(1000 * HEARTBEAT)} ms}}\n"
# A machine with more to do than this may take its time; a replica alone needs two seconds.
SECONDS = 90.0


@dataclass
class Replicas:
    """The processes of one detection, and the lake they share."""

    folder: Path
    start: Warm
    batch_events: int
    processes: dict[int, Process] = field(default_factory=dict)

    @property
    def lake(self) -> Lake:
        return Lake(self.folder / "lake")

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            words = ["detect", str(self.folder / "small.yaml"), "--lake", str(self.lake.root), "--master", "inline"]
            words += ["--batch-events", str(self.batch_events), "--replica", str(number)]
            self.processes[number] = self.start(words, dict(os.environ), self.folder / "replicas.log")

    def beats(self) -> list[Beat]:
        return Heartbeats(self.lake, "small", number=-1).peers()

    def published(self) -> int:
        return max((beat.acknowledged.get("probing/1", 0) for beat in self.beats()), default=0)

    def led_by(self, *allowed: int, after: int) -> int:
        """The number of the leader, once so many batches are published."""
        found: list[int] = []

        def leads() -> bool:
            found[:] = [beat.replica for beat in self.beats() if beat.leading and beat.replica in allowed]
            return bool(found) and self.published() >= after

        assert awaited(leads, SECONDS), self.log()
        return found[0]

    def signal(self, number: int, which: signal.Signals) -> None:
        os.kill(self.processes[number].pid, which)

    def ended(self, number: int) -> int:
        try:
            return self.processes[number].wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"replica {number} did not end\n{self.log()}") from None

    def log(self) -> str:
        file = self.folder / "replicas.log"
        return file.read_text()[-4000:] if file.exists() else ""

    def end(self) -> None:
        for process in self.processes.values():
            try:
                process.wait(0)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait(SECONDS)


@contextmanager
def replicas_of(text: str, ingested: Path, folder: Path, start: Warm, batch_events: int) -> Iterator[Replicas]:
    """A copy of a lake, and replicas of a pipeline to begin on it."""
    shutil.copytree(ingested, folder / "lake")
    (folder / "small.yaml").write_text(text)
    group = Replicas(folder, start, batch_events)
    try:
        yield group
    finally:
        group.end()
