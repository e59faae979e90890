"""Runs in Airflow's database: those of the DAG recovery_drill and how far their tasks are, and new ones of any DAG."""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagNotFound, ParamValidationError
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from fastapi import Depends
from sqlalchemy import select

from reprise_page_app.access import DRILL_DAG
from spark_jobs.errors import RepriseError
from spark_jobs.places import drills_folder, places
from spark_jobs.views.drills import NAME

# Older runs have a report, or were removed.
RECENT = 200


@dataclass(frozen=True)
class Run:
    """One run of the DAG."""

    run_id: str
    state: str
    conf: dict[str, Any]
    queued: dt.datetime | None
    by: str | None

    @property
    def drill(self) -> str | None:
        """The name of its drill; None where its folder is not one of ours."""
        folder = self.conf.get("folder")
        name = self.run_id.replace(":", "-").replace("+", "-")  # as the DAG does
        if folder:
            path = Path(str(folder))
            name = path.name if path.parent == drills_folder() else ""
        return name if NAME.fullmatch(name) else None

    @property
    def pipeline(self) -> str | None:
        """The pipeline it drills, if it is one of this installation."""
        return next((place.name for place in places() if str(place.file) == self.conf.get("pipeline")), None)

    @property
    def going(self) -> bool:
        return self.state in ("queued", "running")


class AirflowRuns:
    """Asked by the page; tests have others."""

    def recent(self) -> list[Run]:
        """The newest first."""
        columns = (DagRun.run_id, DagRun.state, DagRun.conf, DagRun.queued_at, DagRun.triggering_user_name)
        wanted = select(*columns).where(DagRun.dag_id == DRILL_DAG).order_by(DagRun.id.desc()).limit(RECENT)
        with create_session() as session:
            return [Run(run, str(state), conf or {}, at, by) for run, state, conf, at, by in session.execute(wanted)]

    def tasks(self, run_id: str) -> dict[str, tuple[str | None, int]]:
        """State and number of tries of each task."""
        columns = (TaskInstance.task_id, TaskInstance.state, TaskInstance.try_number)
        wanted = select(*columns).where(TaskInstance.dag_id == DRILL_DAG, TaskInstance.run_id == run_id)
        with create_session() as session:
            return {task: (state and str(state), tries) for task, state, tries in session.execute(wanted)}

    def start(self, dag: str, run_id: str, conf: dict[str, Any], by: str, followed_by: Sequence[str] = ()) -> None:
        """A run made as Airflow's own API makes them, if it would begin, and those that follow it by assets would too."""
        with create_session() as session:
            for needed in (dag, *followed_by):
                _check_runs(needed, DagModel.get_current(needed, session=session))
        try:
            trigger_dag(dag, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=by, run_id=run_id, conf=conf)
        except (DagNotFound, ParamValidationError, ValueError) as error:
            raise RepriseError(f"Airflow refused the run: {error}. Nothing was started.") from error


def _check_runs(name: str, dag: DagModel | None) -> None:
    if dag is None or dag.is_stale or dag.has_import_errors:
        raise RepriseError(
            f"The DAG {name} is not there or cannot be imported, so nothing was started. Airflow's list of DAGs says why; a "
            "moment after Airflow has started it may simply not be read yet."
        )
    if dag.is_paused:
        raise RepriseError(
            f"The DAG {name} is paused, so a run would wait. Nothing was started. Unpause it in Airflow's list of DAGs, then "
            "start again."
        )


def new_run(what: str) -> str:
    """A name that no other run has."""
    return f"{what}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def airflow_runs() -> AirflowRuns:
    return AirflowRuns()


Runs = Annotated[AirflowRuns, Depends(airflow_runs)]
