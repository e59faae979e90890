"""RepriseOperator: one `reprise` command as one Airflow task.

The command runs in a process of its own: a Spark driver that is killed must not take the task runner along, and
its exit code says what happened. The process dies with the task that started it; where the task is deferred, with its lease.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from reprise_hook import RepriseHook
from reprise_links import LINKS
from reprise_metrics import tell
from reprise_trigger import JobTrigger

from spark_jobs.drills.steps import SKIPPED
from spark_jobs.leased import Job
from spark_jobs.places import jobs_folder
from spark_jobs.with_parent import die_with_parent

ROOT = Path(__file__).resolve().parents[1]


class RepriseOperator(BaseOperator):
    """Runs `reprise` with `arguments`.

    :param arguments: the command and its arguments. (templated)
    :param master: Spark master URL for commands that use Spark; an empty text is that of the connection. None: the command
        needs none, or its arguments say it. (templated)
    :param spark_conn_id: the connection that says where Spark is, of type `spark`. (templated)
    :param pipeline: the pipeline that the command changes; what it has come to is told to Airflow's metrics.
    :param drill: the folder of the drill that the command is a step of. (templated)
    :param skip_when: a template that renders to a text skips the task. (templated)
    :param deferrable: leave the worker's slot to others while the command runs, and wait in the triggerer.
    """

    template_fields: Sequence[str] = ("arguments", "master", "spark_conn_id", "drill", "skip_when")
    operator_extra_links = LINKS
    ui_color = "#e9f0fb"

    def __init__(
        self,
        *,
        arguments: list[str],
        master: str | None = None,
        spark_conn_id: str = RepriseHook.default_conn_name,
        pipeline: str | None = None,
        drill: str = "",
        skip_when: str = "",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.arguments = arguments
        self.master = master
        self.spark_conn_id = spark_conn_id
        self.pipeline = pipeline
        self.drill = drill
        self.skip_when = skip_when
        self.deferrable = deferrable
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Any) -> None:
        if self.skip_when:
            raise AirflowSkipException(f"not needed: {self.skip_when}")
        words = [*self.arguments, *self._where()]
        command = [sys.executable, "-m", "spark_jobs", *words]
        self.log.info("running reprise %s", " ".join(words))
        environment = {**os.environ, "REPRISE_WITH_PARENT": "1", "PYTHONUNBUFFERED": "1"}
        environment.pop("REPRISE_PROGRAM", None)  # a drill through Airflow was started as another program
        if self.deferrable:
            folder = jobs_folder() / str(context["ti"].id)
            Job(folder).begin(command, environment, ROOT)
            self.defer(trigger=JobTrigger(str(folder)), method_name="ended", timeout=self.execution_timeout)
        if "test" not in sys.argv[1:3]:  # `airflow dags test` runs all tasks in its own process
            environment["REPRISE_TASK_PROCESS"] = "1"
            # Of a task whose supervisor is gone, Airflow hears nothing more: its retry would run beside it.
            die_with_parent()
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
        self._judge(self._process.wait())

    def ended(self, context: Any, event: dict[str, int | None]) -> None:
        """Called when the trigger has fired. What the job said is in the log of the triggerer."""
        shutil.rmtree(jobs_folder() / str(context["ti"].id), ignore_errors=True)
        if event["code"] is None:
            raise AirflowException(
                f"reprise {self.arguments[0]} is gone with the machine or the process that watched it; a retry recovers"
            )
        self._judge(event["code"])

    def _judge(self, code: int) -> None:
        if self.pipeline:
            self._measure(self.pipeline)
        if code == SKIPPED:
            raise AirflowSkipException("nothing to do")
        if code < 0:
            raise AirflowException(f"reprise {self.arguments[0]} was killed by {signal.Signals(-code).name}; a retry recovers")
        if code:
            raise AirflowException(f"reprise {self.arguments[0]} ended with exit code {code}; its message is in the log above")

    def _measure(self, pipeline: str) -> None:
        """Also after a failure. A metric that cannot be had is no reason for a task to fail."""
        try:
            tell(pipeline)
        except Exception:
            self.log.warning("no metrics of pipeline %s", pipeline, exc_info=True)

    def _where(self) -> list[str]:
        if self.master is None:
            return []
        return ["--master", self.master or RepriseHook(self.spark_conn_id).master()]

    def get_openlineage_facets_on_start(self) -> Any:
        """Asked for by Airflow's OpenLineage provider, where it is switched on: when the task begins, and at its end again."""
        from reprise_lineage import lineage

        return lineage(self.arguments)

    def on_kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
