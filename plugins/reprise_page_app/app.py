"""The page's app: every route needs a login, every answer carries the headers, every error is a sentence."""

from __future__ import annotations

import logging
from html import escape
from pathlib import Path

from airflow.api_fastapi.core_api.security import get_user
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from reprise_page_app import drills, pipelines
from reprise_page_app.guard import secured, with_headers
from spark_jobs.errors import RepriseError
from spark_jobs.views.drills import NoSuchDrill
from spark_jobs.views.reports import NoSuchPage
from spark_jobs.views.values import told

STATIC = Path(__file__).parent / "static"
MEDIA = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

log = logging.getLogger(__name__)
files = APIRouter()


def make_app() -> FastAPI:
    # Airflow mounts it beside its own routes, open to anybody: the login is asked for here, for all of them.
    app = FastAPI(title="Reprise", docs_url=None, redoc_url=None, openapi_url=None)
    needs_login = [Depends(get_user)]
    app.include_router(files, dependencies=needs_login)
    for api in (pipelines.router, drills.router):
        app.include_router(api, prefix="/api", dependencies=needs_login)
    app.middleware("http")(with_headers)
    app.add_exception_handler(AnyHTTPException, _refused)
    app.add_exception_handler(RepriseError, _refused)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    app.add_exception_handler(Exception, _broken)
    return app


@files.get("/")
def index() -> FileResponse:
    return FileResponse(STATIC / "index.html", media_type="text/html", headers={"Cache-Control": "no-cache"})


@files.get("/static/{name}")
def static(name: str) -> FileResponse:
    """One of the files that are there; a name is compared, never joined to a path."""
    file = next((file for file in STATIC.iterdir() if file.name == name and file.suffix in MEDIA), None)
    if file is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such file.")
    return FileResponse(file, media_type=MEDIA[file.suffix], headers={"Cache-Control": "no-cache"})


def _refused(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, AnyHTTPException) else status.HTTP_400_BAD_REQUEST
    code = status.HTTP_404_NOT_FOUND if isinstance(error, (NoSuchDrill, NoSuchPage)) else code
    said = str(error.detail) if isinstance(error, AnyHTTPException) else told(error)
    if code == status.HTTP_401_UNAUTHORIZED:
        said = "You are not logged in, or no longer. Log in to Airflow, then open this page again."
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(f"<!doctype html><title>Reprise</title><p>{escape(said)}</p>", code)
    return JSONResponse({"detail": said[:1].upper() + said[1:]}, code)


def _misunderstood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"'{problem['loc'][-1] if problem['loc'] else 'body'}': {problem['msg']}" for problem in error.errors()]
    return JSONResponse({"detail": f"The request cannot be used: {'; '.join(problems)}. Nothing was done."}, 422)


def _broken(request: Request, error: Exception) -> Response:
    """Paths and stack traces go to Airflow's log, not to the browser."""
    log.error("the Reprise page could not answer %s", request.url.path, exc_info=error)
    said = (
        f"This could not be answered ({type(error).__name__}). Nothing was changed. The log of Airflow's API server says why."
    )
    return secured(JSONResponse({"detail": said}, 500))  # outside of what adds headers to the others
