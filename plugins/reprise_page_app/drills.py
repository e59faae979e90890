"""The API of drills: what there was, how far one is, its report, and a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reprise_page_app.access import DRILL_DAG, Access, DrillReader, DrillStarter, Rights
from reprise_page_app.guard import REPORT_POLICY, from_our_page
from reprise_page_app.pipelines import Buckets, Moment, Offset, in_microseconds, microseconds
from reprise_page_app.runs import AirflowRuns, Run, Runs, new_run
from spark_jobs.drills.request import MOST_EVENTS, DrillRequest, conf_of, masters
from spark_jobs.drills.steps import SECOND_ROUND
from spark_jobs.errors import PipelineError
from spark_jobs.faults.catalogue import CATALOGUE, Needs
from spark_jobs.faults.phases import TRIM_PHASES
from spark_jobs.lake.tables import Lake
from spark_jobs.places import drills_folder, place_of, places
from spark_jobs.views.drills import STEPS, drill_folder, drill_names, progress, report_file, summary
from spark_jobs.views.records import records_of
from spark_jobs.views.timeline import timeline
from spark_jobs.views.values import moment, plain

router = APIRouter()

# A task's state in the words of a drill's steps.
_STATES = {
    "success": "done",
    "running": "running",
    "up_for_retry": "broken",
    "restarting": "broken",
    "failed": "failed",
    "upstream_failed": "failed",
    "skipped": "skipped",
}


NO_DRILL = "No drill was made yet. Start one: it breaks a copy of a pipeline on purpose and proves that it recovers."


class DrillBody(BaseModel):
    """What the form sends; `conf_of` checks what it means."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pipeline: str = Field(max_length=63)
    faults: str = Field("", max_length=1_000)
    seed: int | None = None
    own_data: bool = False
    events: int = Field(100_000, ge=1, le=MOST_EVENTS)
    batch_events: int = Field(20_000, ge=1)
    master: str = Field("inline", max_length=100)


async def sent(request: Request, rights: DrillStarter, ours: Annotated[None, Depends(from_our_page)]) -> DrillBody:
    """The body, which is not even read before the login, the right and the sender are known."""
    try:
        return DrillBody.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from None


@router.get("/drills/form")
def drill_form(rights: Rights) -> dict[str, Any]:
    """What can be chosen, and whether this user may start anything."""
    kinds = [
        {
            "kind": kind.name,
            "group": kind.group.value,
            "breaks": kind.breaks,
            "heals": kind.heals,
            "needs_spark": kind.needs is Needs.SPARK,
            "phases": [phase for phase in kind.phases if phase not in TRIM_PHASES],
        }
        for kind in CATALOGUE.values()
        if kind.needs is not Needs.CLUSTER
    ]
    readable = [place for place in places() if rights.reads_pipeline(place.name)]
    return {
        "may_start": rights.starts_drills(),
        "pipelines": [{"name": place.name, "has_files": place.landing.is_dir()} for place in readable],
        "masters": masters(),
        "kinds": kinds,
    }


@router.get("/drills")
def drills(
    rights: DrillReader, runs: Runs, offset: Offset = 0, limit: Annotated[int, Query(ge=1, le=100)] = 25
) -> dict[str, Any]:
    """The newest first. Runs that have no folder yet come before them."""
    known = {run.drill: run for run in runs.recent()}
    names = drill_names(drills_folder())
    waiting = [run for name, run in known.items() if name and name not in names and run.going] if not offset else []
    found = [_queued(run) for run in waiting if rights.reads_drill_on(run.pipeline)]
    place = offset
    while place < len(names) and len(found) < limit:
        seen = _with_run(summary(drill_folder(drills_folder(), names[place])), known.get(names[place]))
        found += [seen] if rights.reads_drill_on(seen["pipeline"]) else []
        place += 1
    note = "" if found else NO_DRILL
    return {"drills": found, "next": place if place < len(names) else None, "note": note}


@router.post("/drills", status_code=status.HTTP_201_CREATED)
def start_drill(body: Annotated[DrillBody, Depends(sent)], rights: DrillStarter, runs: Runs) -> dict[str, str]:
    """Check every word, then trigger the DAG."""
    if not rights.reads_pipeline(body.pipeline):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "You may not read that pipeline, so no drill was started.")
    try:
        place = place_of(body.pipeline)
    except PipelineError:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such pipeline. Nothing was started.") from None
    drill = new_run("drill")
    conf = conf_of(DrillRequest(**body.model_dump()), place, drills_folder() / drill)
    runs.start(DRILL_DAG, drill, conf, rights.user.get_name())
    return {"drill": drill}


@router.get("/drills/{drill}")
def one_drill(drill: str, rights: DrillReader, runs: Runs) -> dict[str, Any]:
    """How far it is, from its folder and from Airflow's tasks."""
    run = _run_of(drill, runs)
    if run is not None and _has_no_folder(drill, rights, run):
        lists = ("steps", "operators", "armed", "struck", "attempts", "marks")
        seen = {**_queued(run), **{name: [] for name in lists}, "now": None, "has_report": False}
    else:
        seen = _with_run(progress(_folder(drill, rights, run), microseconds()), run)
    tasks = runs.tasks(run.run_id) if run else {}
    return {**seen, **({"steps": _steps(tasks)} if tasks else {})}


@router.get("/drills/{drill}/timeline")
def drill_timeline(
    drill: str, rights: DrillReader, runs: Runs, since: Moment = None, until: Moment = None, buckets: Buckets = 120
) -> dict[str, Any]:
    run = _run_of(drill, runs)
    folder = drills_folder() / drill if _has_no_folder(drill, rights, run) else _folder(drill, rights, run)
    seen = timeline(records_of(Lake(folder / "lake")), microseconds(), in_microseconds(since), in_microseconds(until), buckets)
    return {**seen, "note": "" if seen["whole"] else "Nothing has happened in this drill yet."}


@router.get("/drills/{drill}/report")
def drill_report(drill: str, rights: DrillReader, runs: Runs) -> FileResponse:
    report = report_file(_folder(drill, rights, _run_of(drill, runs)))
    return FileResponse(report, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": REPORT_POLICY})


def _folder(drill: str, rights: Access, run: Run | None) -> Path:
    folder = drill_folder(drills_folder(), drill)
    if not rights.reads_drill_on(summary(folder)["pipeline"] or (run.pipeline if run else None)):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "You may not read the pipeline that this drill is on.")
    return folder


def _run_of(drill: str, runs: AirflowRuns) -> Run | None:
    return next((run for run in runs.recent() if run.drill == drill), None)


def _queued(run: Run) -> dict[str, Any]:
    faults = [fault.strip().split(":")[0] for fault in str(run.conf.get("faults", "")).split(",") if fault.strip()]
    return _with_run({"drill": run.drill, "changed": moment(run.queued), "finished": False, "pipeline": None, "verdict": None,
                      "faults": [plain(fault) for fault in faults]}, run)  # fmt: skip


def _with_run(seen: dict[str, Any], run: Run | None) -> dict[str, Any]:
    """What Airflow knows besides: who started it, and whether it still goes on."""
    if run is None:
        return {**seen, "run": None}
    sizes = {name: run.conf.get(name) for name in ("events", "batch_events") if isinstance(run.conf.get(name), int)}
    about = {"state": run.state, "by": run.by, "run_id": run.run_id, **sizes}
    return {**seen, "pipeline": seen["pipeline"] or run.pipeline, "run": about}


def _steps(tasks: dict[str, tuple[str | None, int]]) -> list[dict[str, Any]]:
    """The steps in their order. Those of the second round only where there is one."""
    steps = [{"step": t, "state": _STATES.get(state or "", "waiting"), "tries": tries} for t, (state, tries) in tasks.items()]
    shown = [step for step in steps if step["step"] not in SECOND_ROUND or step["state"] not in ("waiting", "skipped")]
    return sorted(shown, key=lambda step: STEPS.index(step["step"]) if step["step"] in STEPS else len(STEPS))


def _has_no_folder(drill: str, rights: Access, run: Run | None) -> bool:
    """Airflow has yet to begin, or its first task has failed."""
    there = drill in drill_names(drills_folder())
    return not there and run is not None and rights.reads_drill_on(run.pipeline)
