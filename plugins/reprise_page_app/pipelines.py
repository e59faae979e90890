"""The API of pipelines: at a glance, their time line, their matches, what was set aside, their pages; and a replay."""

from __future__ import annotations

import datetime as dt
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Query, status
from fastapi.responses import FileResponse, HTMLResponse

from reprise_page_app.access import FOLLOWING, REPLAYED, Readable, Replayable, Rights
from reprise_page_app.guard import REPORT_POLICY, from_our_page
from reprise_page_app.runs import Runs, new_run
from spark_jobs.lake.tables import Lake
from spark_jobs.places import NAME, Place, misplaced, pipelines_folder, places
from spark_jobs.views import aside, matches
from spark_jobs.views.overview import not_ingested, overview
from spark_jobs.views.records import records_of
from spark_jobs.views.reports import docs_file, pages_of, pipeline_report
from spark_jobs.views.timeline import MOST_BUCKETS, timeline
from spark_jobs.views.values import shown

router = APIRouter()

Operator = Annotated[str, Path(pattern=f"^{NAME.pattern}$")]
Number = Annotated[int, Path(ge=1, le=2**62)]
Moment = Annotated[dt.datetime | None, Query()]
Text = Annotated[str, Query(max_length=200)]
Offset = Annotated[int, Query(ge=0, le=10_000_000)]
Limit = Annotated[int, Query(ge=1, le=matches.MOST_ROWS)]
Buckets = Annotated[int, Query(ge=1, le=MOST_BUCKETS)]


@router.get("/pipelines")
def pipelines(rights: Rights) -> dict[str, Any]:
    """Those that the user may read."""
    seen = [overview(place, microseconds()) for place in places() if rights.reads_pipeline(place.name)]
    files = [{"file": one.file.name, "problem": one.problem} for one in misplaced()] if rights.reads_drills() else []
    folder = shown(pipelines_folder())
    note = (
        ""
        if seen
        else f"There is no pipeline that you may see. Put a pipeline file into {folder}, or ask for the right to read."
    )
    return {"pipelines": seen, "misplaced": files, "note": note}


@router.get("/pipelines/{name}")
def pipeline(place: Readable, rights: Rights) -> dict[str, Any]:
    return {**overview(place, microseconds()), **pages_of(place), "may_replay": rights.replays(place.name)}


@router.post("/pipelines/{name}/replay", status_code=status.HTTP_201_CREATED)
def replay(place: Replayable, ours: Annotated[None, Depends(from_our_page)], rights: Rights, runs: Runs) -> dict[str, str]:
    """Trigger the ingest; detection and verification follow it by themselves. Nothing is chosen, so no body is read."""
    run = new_run("replay")
    following = [f"{place.name}.{step}" for step in FOLLOWING]
    runs.start(f"{place.name}.{REPLAYED}", run, {}, rights.user.get_name(), following)
    return {"run": run}


@router.get("/pipelines/{name}/report")
def report(place: Readable) -> HTMLResponse:
    page = pipeline_report(place, docs="docs/index.html")  # beside this address
    return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})


@router.get("/pipelines/{name}/docs/{page:path}")
def docs(place: Readable, page: Annotated[str, Path(max_length=500)]) -> FileResponse:
    file = docs_file(place, page)
    return FileResponse(file, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": REPORT_POLICY})


@router.get("/pipelines/{name}/timeline")
def pipeline_timeline(place: Readable, since: Moment = None, until: Moment = None, buckets: Buckets = 120) -> dict[str, Any]:
    seen = timeline(records_of(Lake(place.lake)), microseconds(), in_microseconds(since), in_microseconds(until), buckets)
    return {**seen, "note": "" if seen["whole"] else f"Nothing has happened yet. {not_ingested(place)}"}


@router.get("/pipelines/{name}/matches/{operator}")
def found_matches(
    place: Readable,
    operator: Operator,
    key: Text = "",
    text: Text = "",
    since: Moment = None,
    until: Moment = None,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    limit: Limit = 50,
) -> dict[str, Any]:
    wanted = matches.Wanted(key, text, in_utc(since), in_utc(until))
    return matches.search(detected(place), operator, wanted, before, limit)


@router.get("/pipelines/{name}/matches/{operator}/{version}/{ordinal}")
def opened_match(place: Readable, operator: Operator, version: Number, ordinal: Number) -> dict[str, Any]:
    return matches.opened(detected(place), operator, version, ordinal)


@router.get("/pipelines/{name}/quarantine")
def quarantine(place: Readable, offset: Offset = 0, limit: Limit = 50) -> dict[str, Any]:
    seen = aside.quarantine(place, offset, limit)
    return {
        **seen,
        "note": "" if seen["total"] else "No row was refused. What cannot be used would be listed here, with the reason.",
    }


@router.get("/pipelines/{name}/late")
def late(place: Readable, offset: Offset = 0, limit: Limit = 50) -> dict[str, Any]:
    seen = aside.late(place, offset, limit)
    note = "No event came too late. Events that come later than 'ordering: {revise: ..}' allows would be listed here."
    return {**seen, "note": "" if seen["total"] else note}


def detected(place: Place) -> Lake:
    lake = Lake(place.lake)
    if not lake.has("complex_events"):
        raise HTTPException(
            status.HTTP_404_NOT_FOUND, f"Nothing was detected yet. Run the DAG {place.name}.detect, then look again."
        )
    return lake


def microseconds() -> int:
    return time.time_ns() // 1_000


def in_microseconds(at: dt.datetime | None) -> int | None:
    moment = in_utc(at)
    return None if moment is None else int(moment.timestamp() * 1_000_000)


def in_utc(at: dt.datetime | None) -> dt.datetime | None:
    """A time without a zone is UTC, as everywhere in Reprise."""
    return at if at is None or at.tzinfo else at.replace(tzinfo=dt.UTC)
