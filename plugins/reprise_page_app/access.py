"""Who may do what: Airflow's login, and the rights on DAGs that its auth manager grants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Path, status

from spark_jobs.errors import PipelineError
from spark_jobs.places import NAME, Place, place_of, places

DRILL_DAG = "recovery_drill"
# The DAGs of a pipeline are called NAME.ingest and so on; who may not read all of them does not see its data.
PIPELINE_DAGS = ("ingest", "detect", "verify", "trim")
# A replay triggers the first of these; the others follow it by the assets it writes.
REPLAYED, FOLLOWING = "ingest", ("detect", "verify")


def auth_manager() -> Any:
    return get_auth_manager()


@dataclass(frozen=True)
class Access:
    """The rights of one user."""

    user: Any
    manager: Any

    def reads_pipeline(self, name: str) -> bool:
        return self._granted("GET", [f"{name}.{dag}" for dag in PIPELINE_DAGS])

    def reads_drills(self) -> bool:
        return self._granted("GET", [DRILL_DAG], DagAccessEntity.RUN)

    def starts_drills(self) -> bool:
        return self._granted("POST", [DRILL_DAG], DagAccessEntity.RUN)

    def replays(self, name: str) -> bool:
        return self._granted("POST", [f"{name}.{REPLAYED}"], DagAccessEntity.RUN)

    def reads_drill_on(self, pipeline: str | None) -> bool:
        """A drill shows the data of its pipeline. Where nobody can say which that is, it may be any of them."""
        guarded = [place.name for place in places()]
        concerned = guarded if pipeline is None else [pipeline] if pipeline in guarded else []
        return self.reads_drills() and all(self.reads_pipeline(name) for name in concerned)

    def _granted(self, method: str, dags: Sequence[str], entity: DagAccessEntity | None = None) -> bool:
        teams = DagModel.get_dag_id_to_team_name_mapping(list(dags)) if conf.getboolean("core", "multi_team") else {}
        return all(
            self.manager.is_authorized_dag(
                method=method, access_entity=entity, details=DagDetails(id=dag, team_name=teams.get(dag)), user=self.user
            )
            for dag in dags
        )


def access(user: Annotated[Any, Depends(get_user)], manager: Annotated[Any, Depends(auth_manager)]) -> Access:
    return Access(user, manager)


Rights = Annotated[Access, Depends(access)]


def readable(name: Annotated[str, Path(max_length=63)], rights: Rights) -> Place:
    """The pipeline that an address names. Who may not read it does not learn whether it exists."""
    if not NAME.fullmatch(name):
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such pipeline: that is no name of one.")
    if not rights.reads_pipeline(name):
        dags = ", ".join(f"{name}.{dag}" for dag in PIPELINE_DAGS)
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"You may not read the DAGs {dags}. Ask an admin of this Airflow for it."
        )
    try:
        return place_of(name)
    except PipelineError:
        raise HTTPException(
            status.HTTP_404_NOT_FOUND, f"There is no pipeline '{name}'. Put its file into the pipelines folder."
        ) from None


def drill_reader(rights: Rights) -> Access:
    if not rights.reads_drills():
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"You may not read runs of the DAG {DRILL_DAG}. Ask an admin of this Airflow for it."
        )
    return rights


def drill_starter(rights: Rights) -> Access:
    if not rights.starts_drills():
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"You may not trigger the DAG {DRILL_DAG}, so no drill was started. Ask an admin of this Airflow for it.",
        )
    return rights


Readable = Annotated[Place, Depends(readable)]


def replayable(place: Readable, rights: Rights) -> Place:
    if not rights.replays(place.name):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"You may not trigger the DAG {place.name}.{REPLAYED}, so nothing was started. Ask an admin for it.",
        )
    return place


Replayable = Annotated[Place, Depends(replayable)]
DrillReader = Annotated[Access, Depends(drill_reader)]
DrillStarter = Annotated[Access, Depends(drill_starter)]
