"""Jobs that outlive the process that has started them, and not those that want them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from spark_jobs import leased
from spark_jobs.drills.processes import awaited
from spark_jobs.leased import Job, Sign, watch

SECONDS = 60.0


def begun(folder: Path, code: str) -> Job:
    job = Job(folder / "job")
    job.begin([sys.executable, "-c", code], os.environ, folder)
    return job


def test_it_says_what_it_says_and_how_it_has_ended(tmp_path: Path) -> None:
    job = begun(tmp_path, "print('one', flush=True); print('two'); raise SystemExit(3)")
    assert awaited(lambda: job.ended() is not None, SECONDS)
    assert job.ended() == 3
    assert job.news() == ["one", "two"]
    assert job.news() == []


def test_a_job_that_is_killed_says_by_what(tmp_path: Path) -> None:
    job = begun(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert awaited(lambda: job.ended() is not None, SECONDS)
    assert job.ended() == -signal.SIGKILL


def test_a_job_whose_watcher_is_killed_dies_too(tmp_path: Path) -> None:
    """As `reprise` does: it asks to die with its parent."""
    code = "import os, signal; from spark_jobs.with_parent import die_with_parent as die; die(); "
    code += "print(os.getpid(), os.getppid(), flush=True); signal.pause()"
    job = begun(tmp_path, code)
    said: list[str] = []
    assert awaited(lambda: bool(said.extend(job.news()) or said), SECONDS)
    pid, watcher = (int(word) for word in said[0].split())
    os.kill(watcher, signal.SIGKILL)
    assert awaited(lambda: not Path(f"/proc/{pid}").exists(), SECONDS)
    assert job.ended() is None


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(leased, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(leased, "END_SECONDS", 0.2)


@pytest.mark.parametrize("stubborn", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
@pytest.mark.usefixtures("short")
def test_a_job_that_nobody_wants_is_ended(tmp_path: Path, stubborn: str) -> None:
    code = watch(tmp_path, [sys.executable, "-c", f"import signal; {stubborn}signal.pause()"])
    assert code < 0
    assert (tmp_path / "exit").read_text() == str(code)


@pytest.mark.usefixtures("short")
def test_a_job_that_nobody_watches_is_lost(tmp_path: Path) -> None:
    job = Job(tmp_path)
    Sign(tmp_path / "alive").give()
    assert not job.lost()
    assert awaited(job.lost, SECONDS)
