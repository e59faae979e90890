"""Runs DAGs as `airflow dags test` does, several in one process, and says whether they ended as expected.

`python -m tests.dag_runs '[["dag id", {"conf": 1}, "success"], ..]'`

One line that it prints is JSON: the DAGs there are, what could not be imported, and how long each file took.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow.cli.commands.dag_command import get_bagged_dag
from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import BaseNotifier
from airflow.utils import timezone


class Told(BaseNotifier):
    """A notifier that says what it was told."""

    template_fields = ("message",)

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Any) -> None:
        print(f"told: {self.message}", flush=True)


def main(wanted: str) -> int:
    bag = DagBag(dag_folder=conf.get("core", "dags_folder"))
    seconds = {stat.file: stat.duration.total_seconds() for stat in bag.dagbag_stats}
    print(json.dumps({"dags": sorted(bag.dags), "errors": bag.import_errors, "seconds": seconds}), flush=True)
    for dag_id, conf_of_run, state in json.loads(wanted):
        dag = get_bagged_dag(bundle_names=None, dag_id=dag_id)
        run = dag.test(logical_date=timezone.utcnow(), run_conf=conf_of_run)
        if run.state != state:
            print(f"{dag_id}: {run.state}")
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
