"""Bounded memory: 200 million events of 10 million keys through 4 GB of driver and executor memory together.

The log is made by one process and matched by another: each is this module as a program, with all it starts. What they need is
looked at from outside, ten times a second: the sum over all processes, driver, JVM and Python workers, of what is theirs in
memory, with what they share counted once (PSS). Pages of files that Arrow has mapped count too, which is more than they cannot
do without: the system takes those back when it needs them.

There is no WITHIN, so that the unfinished run of every key is held to the end, and read again for every batch. What bounds the
memory of tasks is how many there are: two at a time, each with a few of many shards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bars import Bar

if TYPE_CHECKING:
    from spark_jobs.pipeline import Pipeline

EVENTS, KEYS = 200_000_000, 10_000_000
LIMIT = 4 << 30
# Events per commit of the log and per micro-batch: what is in memory at a time, of all shards together.
COMMIT, BATCH = 4_000_000, 5_000_000
BUCKETS, SHARDS = 64, 32
BETWEEN_LOOKS = 0.1


@dataclass
class Peak:
    """The most that a tree of processes has had in memory, in bytes."""

    all: int = 0
    anonymous: int = 0  # of it what no file backs

    def look(self, root: int) -> None:
        found = [_held(pid) for pid in tree(root)]
        self.all = max(self.all, sum(every for every, _ in found))
        self.anonymous = max(self.anonymous, sum(own for _, own in found))


def memory(master: str) -> list[Bar]:
    return measured(master, EVENTS, KEYS)


def measured(master: str, events: int, keys: int) -> list[Bar]:
    """On a lake of its own, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="memory-") as lake:
        made, _, made_in = _watched("make", lake, str(events), str(keys))
        peak, said, seconds = _watched("match", lake, master)
    size = f"{events:,} events of {keys:,} keys"
    return [
        Bar(f"{size}: memory of driver, JVM and workers together", peak.all / 1e9, LIMIT / 1e9, False, "GB"),
        Bar(".. of it not backed by files", peak.anonymous / 1e9, unit="GB"),
        Bar(".. events that went through", float(said["events"]), events),
        Bar(".. complex events", float(said["matches"]), 1),
        Bar(".. events per second, start-up included", events / seconds, unit="events/s"),
        Bar("making the log: memory", made.all / 1e9, LIMIT / 1e9, False, "GB"),
        Bar(".. time", made_in, unit="s"),
    ]


def _watched(*words: str) -> tuple[Peak, dict[str, int], float]:
    """Run this module as a program: the most memory it had, what it said at its end, and its seconds."""
    peak, started = Peak(), time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "bench.memory", *words], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak.look(process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(BETWEEN_LOOKS)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(process.returncode)
    return peak, json.loads(said), time.perf_counter() - started


def tree(root: int) -> Iterable[int]:
    """A process and all below it."""
    yield root
    with suppress(OSError):  # it may have ended meanwhile
        for task in Path(f"/proc/{root}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def _held(pid: int) -> tuple[int, int]:
    """Bytes of a process, what it shares divided among those who share it; and of them those without a file."""
    with suppress(OSError):
        said = dict(_lines(Path(f"/proc/{pid}/smaps_rollup").read_text()))
        return said.get("Pss", 0), said.get("Pss_Anon", 0)
    return 0, 0


def _lines(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines()[1:]:
        name, size, _ = line.split()
        yield name.rstrip(":"), int(size) << 10


# As a program


def _make(lake: str, events: str, keys: str) -> dict[str, int]:
    from bench.engine import Shape, make_log
    from spark_jobs.lake.tables import Lake

    make_log(_pipeline(), Lake(lake), Shape(int(events), int(keys)), COMMIT)
    return {"events": int(events)}


def _match(lake: str, master: str) -> dict[str, int]:
    from bench.engine import detected
    from spark_jobs.detect import Settings
    from spark_jobs.lake.tables import Lake
    from spark_jobs.runner import open_runner

    found = Lake(lake)
    with open_runner(master, found, "bench") as runner:
        _, done = detected(_pipeline(), found, runner, Settings(BATCH, SHARDS))
    return {"events": done.events, "matches": done.matches}


def _pipeline() -> Pipeline:
    from bench.engine import pipeline_with

    pipeline = pipeline_with("after_match: past last row")
    return pipeline.model_copy(update={"source": pipeline.source.model_copy(update={"buckets": BUCKETS})})


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    run = _make if what == "make" else _match
    sys.stdout.write(json.dumps(run(*words)))
