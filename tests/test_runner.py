"""Tasks on Spark: one that is killed is run again, and only that one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.runner import Runner, _with_tries


def task(payload: dict[str, Any]) -> dict[str, Any]:
    """Counts its runs in a file, and dies in the first one if it is told to."""
    runs = Path(payload["runs"])
    with runs.open("a") as file:
        file.write("run\n")
    if payload["dies"] and len(runs.read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"shard": payload["shard"]}


def test_a_killed_worker_costs_its_own_shard_only(spark: Runner, tmp_path: Path) -> None:
    payloads = [{"shard": shard, "dies": shard == 1, "runs": str(tmp_path / f"runs-{shard}")} for shard in range(3)]
    assert spark.run(task, payloads) == [{"shard": shard} for shard in range(3)]
    assert [len((tmp_path / f"runs-{shard}").read_text().splitlines()) for shard in range(3)] == [1, 2, 1]


@pytest.mark.parametrize(
    ("master", "tried"),
    [
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_local_masters_try_tasks_again_too(master: str, tried: str) -> None:
    assert _with_tries(master) == tried


def kept_out_of_collections(payload: dict[str, Any]) -> dict[str, Any]:
    return {"frozen": gc.get_freeze_count()}


def test_workers_do_not_search_what_was_loaded_for_garbage_after_each_task(spark: Runner) -> None:
    """Without that, each task costs 95 ms more. Loaded are some hundred thousand objects, numba's alone more than this."""
    assert spark.run(kept_out_of_collections, [{}])[0]["frozen"] > 50_000


SETTINGS_OF_TWO = """
import os, sys
from pathlib import Path
from spark_jobs.lake.tables import Lake
from spark_jobs.runner import open_runner

for cores in "12":
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.cores.max={cores} pyspark-shell"
    with open_runner("local[1]", Lake(Path(sys.argv[1])), "test") as runner:
        print("cores", runner.context().getConf().get("spark.cores.max"))
        jvm = runner.context()._gateway.proc.pid
    print("ended", not Path(f"/proc/{jvm}").exists())
"""


def test_a_runner_has_its_own_jvm_and_ends_it(tmp_path: Path) -> None:
    """PySpark gives the second context of a process the JVM of the first: a bench with one and two executors had one twice."""
    command = [sys.executable, "-c", SETTINGS_OF_TWO, str(tmp_path)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True, timeout=120)
    assert done.stdout.split("\n")[:4] == ["cores 1", "ended True", "cores 2", "ended True"]
