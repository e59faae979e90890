"""The report of a pipeline, made when somebody asks for it, and the pages of its Data Docs. Nothing is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake.exceptions import DeltaError

from spark_jobs.errors import RepriseError
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import load_pipeline
from spark_jobs.places import Place
from spark_jobs.report import gather, report_page
from spark_jobs.verify.expectations import docs_index
from spark_jobs.views.drills import LARGEST_REPORT
from spark_jobs.views.handles import looking_at
from spark_jobs.views.values import told

# A report reads the savepoint of every batch: five milliseconds of CPU each, so ten seconds. Nobody waits longer for a page.
MOST_BATCHES = 2_000


class NoSuchPage(RepriseError):
    """There is nothing to be shown, or not yet."""


def pages_of(place: Place) -> dict[str, bool]:
    """Which of them there are."""
    lake = Lake(place.lake)
    return {"has_report": lake.has("verdicts"), "has_docs": docs_index(lake).is_file()}


def pipeline_report(place: Place, docs: str) -> str:
    """The report as `reprise report` writes it; its Data Docs are at the address `docs`."""
    lake = Lake(place.lake)
    if not lake.has("verdicts"):
        raise NoSuchPage(f"there is no verdict on {place.name} to report. Run the DAG {place.name}.verify, then look again.")
    try:
        _check_size(place, lake)
        facts = gather(load_pipeline(place.file), lake)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise RepriseError(f"the report cannot be made: {told(error, place.lake)}. Nothing was changed.") from error
    return report_page({**facts, "docs": docs if facts["docs"] else None})


def _check_size(place: Place, lake: Lake) -> None:
    if not lake.has("complex_events"):
        return
    with looking_at(lake, "complex_events") as handle:
        batches = handle.version()
    if batches > MOST_BATCHES:
        raise RepriseError(
            f"{place.name} has published {batches:,} batches, and a page can report {MOST_BATCHES:,}. "
            "'reprise report' writes the report of any lake."
        )


def docs_file(place: Place, page: str) -> Path:
    """A page of the Data Docs, by a name that may come from anybody: a file that really lies among them, or none."""
    docs = docs_index(Lake(place.lake)).parent
    missing = NoSuchPage(f"there is no such page among the Data Docs of {place.name}. They are made when a suite has run.")
    try:
        file = (docs / page).resolve()
    except (ValueError, OSError):  # no name of a file
        raise missing from None
    # What the name says and where it leads are one: no link is followed, whoever has put it there.
    if file != docs / page or docs not in file.parents or file.suffix != ".html" or not file.is_file():
        raise missing
    if file.stat().st_size > LARGEST_REPORT:
        raise RepriseError(f"this page of the Data Docs of {place.name} is too large for a browser; open it in the lake.")
    return file
