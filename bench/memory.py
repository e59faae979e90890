"""Bounded memory: 200 million events of 10 million keys through 4 GB of driver and executor memory together.

The log is made by one process and matched by another: each is this module as a program, with all it starts. What they need is
looked at from outside, ten times a second: the sum over all processes, driver, JVM and Python workers, of what is theirs in
memory, with what they share counted once (PSS). Pages of files that Arrow has mapped count too, which is more than they cannot
do without: the system takes those back when it needs them. No event is kept beyond its time (WITHIN), and of every key at least
one run was begun.
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

from bench.bars import Bar

EVENTS, KEYS = 200_000_000, 10_000_000
LIMIT = 4 << 30
# Events per commit of the log and per micro-batch: what is in memory at a time.
COMMIT, BATCH = 2_000_000, 1_000_000
# One event per millisecond: 2,000,000 events, in which every fifth key comes.
WITHIN = "within: 2000 s"
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
    from bench.engine import Shape, make_log, pipeline_with
    from spark_jobs.lake.tables import Lake

    make_log(pipeline_with(WITHIN), Lake(lake), Shape(int(events), int(keys)), COMMIT)
    return {"events": int(events)}


def _match(lake: str, master: str) -> dict[str, int]:
    from bench.engine import detected, pipeline_with
    from spark_jobs.detect import Settings
    from spark_jobs.lake.tables import Lake
    from spark_jobs.runner import open_runner

    found = Lake(lake)
    with open_runner(master, found, "bench") as runner:
        _, done = detected(pipeline_with(WITHIN), found, runner, Settings(BATCH))
    return {"events": done.events, "matches": done.matches}


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    sys.stdout.write(json.dumps({"make": _make, "match": _match}[what](*words)))
