"""Every fault of the catalogue strikes, is noticed where it must be, is healed, and changes no complex event."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_jobs.drills.cluster import local_cluster
from spark_jobs.drills.judge import judge
from spark_jobs.drills.processes import Program, Warm
from spark_jobs.faults import storage
from spark_jobs.faults.catalogue import CATALOGUE, Needs
from spark_jobs.lake.history import read_history
from spark_jobs.lake.seal import broken, seal
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.verify.job import open_suites
from tests.conftest import PIPELINE
from tests.drills.grounds import Grounds, drilled, new_ground

# Each kind that needs nothing but a driver strikes in tests/drills/test_campaign.py; here are places that those may not meet.
INLINE = [
    "kill_driver:detect.saved@3*2",
    "kill_driver:ingest.written@1",
    "lose_request:ingest.listed@1",
    "lose_answer:ingest.listed@1",
    "zombie:ingest.committed@1",  # it has done its work: there is nothing to stop it from
    "flip_events:detect.finished@5",  # nobody reads it any more but the verification
    "full_disk:detect.saved@3",
]
LOCAL = [
    "kill_jvm:detect.started@2",
    "stop_jvm:detect.matched@2",
    "kill_worker:match.read@2/1*2",
    "stop_worker:match.written@2/0",
    "kill_jvm:1.5s",
]
CLUSTER = ["kill_executor:match.read@2/0", "stop_executor:match.written@3/1"]
# In a running Airflow: tests/test_up.py.
AIRFLOW = {"kill_task", "stop_task"}


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    with open_suites() as suite:
        yield new_ground(tmp_path_factory.mktemp("ground"), suite)


@pytest.fixture(scope="module")
def warm() -> Warm:
    return Warm()


@pytest.mark.parametrize("fault", INLINE)
def test_it_strikes_and_every_complex_event_comes_out_once(fault: str, grounds: Grounds, warm: Warm, tmp_path: Path) -> None:
    done = drilled(grounds, tmp_path, warm, fault)
    assert (done.why, done.left) == ("", [])
    assert set(done.fired) == {fault}
    assert done.verdicts == ["valid"], done.verifications


@pytest.mark.parametrize("fault", LOCAL)
def test_it_strikes_processes_of_spark(fault: str, grounds: Grounds, tmp_path: Path) -> None:
    done = drilled(grounds, tmp_path, Program(), fault, master="local[2]")
    assert (done.why, done.left, done.verdicts) == ("", [], ["valid"])
    assert set(done.fired) == {fault}


def test_it_strikes_executors_of_a_real_cluster(grounds: Grounds, tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster") as url:
        for number, fault in enumerate(CLUSTER):
            done = drilled(grounds, tmp_path / str(number), Program(), fault, master=url)
            assert (done.why, done.left, done.verdicts, done.fired) == ("", [], ["valid"], [fault])


def test_no_kind_is_left_out() -> None:
    tried = {text.partition(":")[0] for text in (*LOCAL, *CLUSTER)} | AIRFLOW
    assert tried == {kind.name for kind in CATALOGUE.values() if kind.needs is not Needs.NOTHING}, (
        "the others: test_campaign.py"
    )
    assert {kind.name for kind in CATALOGUE.values() if kind.needs is Needs.AIRFLOW} == AIRFLOW


def test_a_fault_is_recorded_as_it_happens_with_its_healing(grounds: Grounds, warm: Warm, tmp_path: Path) -> None:
    done = drilled(grounds, tmp_path, warm, "delete_events:detect.matched@2")
    rows = [row for row in read_history(done.lake) if row["kind"] in ("fault", "heal", "end")]
    assert [row["kind"] for row in rows[:4]] == ["fault", "heal", "end", "end"]
    assert [row["name"] for row in rows[2:4]] == ["error", "done"]
    assert rows[0]["name"] == "delete_events"
    assert rows[1]["name"].startswith("put sn-")


def test_damage_that_nobody_notices_makes_a_drill_invalid(
    grounds: Grounds, warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: there is a damaged file, and the verification says valid all the same."""

    def nowhere(lake: Lake) -> list[storage.Wound]:
        other = lake.root / "some file"
        other.write_bytes(b"whole")
        return [storage.Wound(other, b"damaged")]

    monkeypatch.setattr(storage, "unmet", nowhere)
    done = drilled(grounds, tmp_path, warm, "kill_driver:detect.saved@2")
    assert done.verdicts == ["invalid"]
    assert done.finding("faults noticed") == "invalid"


def test_damage_is_not_repaired_before_somebody_has_met_it(grounds: Grounds, warm: Warm, tmp_path: Path) -> None:
    """The attempt that fails after it has nothing to do with the damaged file, so the verification has to find it."""
    done = drilled(grounds, tmp_path, warm, "flip_output:detect.published@1", "raise_error:detect.saved@2")
    assert (done.verdicts, done.finding("faults noticed")) == (["valid"], "valid")
    healed = [row["job"] for row in read_history(done.lake) if row["kind"] == "heal"]
    assert healed == ["verify"]


def test_what_was_damaged_twice_is_whole_again(lake: Lake) -> None:
    file = lake.root / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"as it was")
    for kind in ("flip_output", "truncate_output", "delete_output"):
        storage.damage(lake, kind, file, "seed")
    assert [wound.content for wound in storage.unmet(lake)] == [None]
    assert storage.heal(lake, files=False) == []
    storage.heal(lake)
    assert file.read_bytes() == b"as it was"


def test_a_wound_is_opened_and_closed_again(tmp_path: Path) -> None:
    for content in (b"damaged", None):
        file = tmp_path / "file"
        file.write_bytes(b"whole")
        with storage.Wound(file, content).open():
            assert (file.read_bytes() if file.exists() else None) == content
        assert file.read_bytes() == b"whole"


def test_folders_that_cannot_be_made_read_only_are_not_said_to_be(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not storage.can_be_read_only(lake), "there are none"
    Path(lake.path("savepoints")).mkdir(parents=True)
    monkeypatch.setattr(storage, "_set_writable", lambda folder, writable: False)
    assert not storage.can_be_read_only(lake), "the file system does not know how"


def test_a_sealed_file_that_was_changed_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "ce-1.parquet"
    file.write_bytes(b"some bytes")
    sealed = Path(seal(str(file)))
    assert broken(str(sealed)) is None
    sealed.write_bytes(b"some bytez")
    assert "do not fit the checksum" in str(broken(str(sealed)))
    sealed.unlink()
    assert broken(str(sealed)) == "it is gone"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return ballast


def test_a_really_full_disk_costs_nothing_but_an_error(grounds: Grounds, warm: Warm, small_disk: Path, tmp_path: Path) -> None:
    lake, log = Lake(small_disk / "lake"), tmp_path / "log"
    shutil.copytree(grounds.ground.lake, lake.root)
    ballast = fill(small_disk)
    detect = ["detect", str(grounds.ground.pipeline), "--lake", str(lake.root), "--batch-events", "400", "--master", "inline"]
    assert warm(detect, dict(os.environ), log).wait(60) == 1
    assert "No space left" in log.read_text()
    assert "Traceback" not in log.read_text()
    ballast.unlink()
    assert warm(detect, dict(os.environ), log).wait(60) == 0
    (done,) = judge(parse_pipeline(PIPELINE, "small.yaml"), lake, suite=grounds.suite)
    assert done.verdict.value == "valid"
