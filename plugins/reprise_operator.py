"""RepriseOperator: one `reprise` command as one Airflow task.

The command runs in a process of its own: a Spark driver that is killed must not take the task runner along, and
its exit code says what happened. The process dies with the task that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from spark_jobs.drills.steps import SKIPPED

ROOT = Path(__file__).resolve().parents[1]

# What the scheduled DAGs work on unless a run says otherwise.
PIPELINE = os.environ.get("REPRISE_PIPELINE", str(ROOT / "examples" / "card_probing.yaml"))
LANDING = os.environ.get("REPRISE_LANDING", str(ROOT / ".local" / "landing"))
LAKE = os.environ.get("REPRISE_LAKE", str(ROOT / ".local" / "lake"))
MASTER = os.environ.get("REPRISE_MASTER", "local[2]")


class RepriseOperator(BaseOperator):
    """Runs `reprise` with `arguments`; a template that renders `skip_when` to a text skips the task."""

    template_fields: Sequence[str] = ("arguments", "skip_when")
    ui_color = "#e9f0fb"

    def __init__(self, *, arguments: list[str], skip_when: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arguments = arguments
        self.skip_when = skip_when
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Any) -> None:
        if self.skip_when:
            raise AirflowSkipException(f"not needed: {self.skip_when}")
        command = [sys.executable, "-m", "spark_jobs", *self.arguments]
        self.log.info("running reprise %s", " ".join(self.arguments))
        environment = {**os.environ, "REPRISE_WITH_PARENT": "1", "PYTHONUNBUFFERED": "1"}
        environment.pop("REPRISE_PROGRAM", None)  # a drill through Airflow was started as another program
        if "test" not in sys.argv[1:3]:  # `airflow dags test` runs all tasks in its own process
            environment["REPRISE_TASK_PROCESS"] = "1"
        # In a group of its own: a drill may end the whole group and mean the job, not the task.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.info(line.rstrip())
        code = self._process.wait()
        if code == SKIPPED:
            raise AirflowSkipException("nothing to do")
        if code < 0:
            raise AirflowException(f"reprise {self.arguments[0]} was killed by {signal.Signals(-code).name}; a retry recovers")
        if code:
            raise AirflowException(f"reprise {self.arguments[0]} ended with exit code {code}; its message is in the log above")

    def on_kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


def common_params(*names: str) -> dict[str, Param]:
    """The parameters of the DAGs, described once."""
    known = {
        "pipeline": Param(PIPELINE, type="string", description="The pipeline file (YAML)"),
        "landing": Param(LANDING, type="string", description="The landing folder, in hive partitions; never changed"),
        "lake": Param(LAKE, type="string", description="The folder of Delta tables"),
        "batch_events": Param(1_000_000, type="integer", minimum=1, description="Events per micro-batch"),
        "master": Param(MASTER, type="string", description="Spark master URL"),
    }
    return {name: known[name] for name in names}
