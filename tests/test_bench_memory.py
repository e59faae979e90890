"""The bench of memory measures what it says: all processes of a tree, and a log that comes through whole."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.memory import Peak, measured, tree

# Something that holds 200 MB in a process of its own, and says when it does.
HOLDS = "import sys; held = bytearray(b'x') * (200 << 20); print('held', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}])"


def test_what_a_child_holds_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        peak = Peak()
        peak.look(process.pid)
        assert len(list(tree(process.pid))) == 2
        assert peak.anonymous > 200 << 20
        assert peak.all >= peak.anonymous
        process.communicate(b"")


def test_a_process_that_is_gone_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    peak = Peak()
    peak.look(process.pid)
    assert (peak.all, peak.anonymous) == (0, 0)
    assert os.getpid() in tree(os.getpid())


def test_every_event_goes_through() -> None:
    """In small, and without Spark."""
    bars = measured("inline", 100_000, 5_000)
    assert [bar.bar for bar in bars if not bar.ok] == []
