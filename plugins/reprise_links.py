"""What a task of Reprise leads to: its pipeline or drill on the page, the report, the Data Docs, and Spark's own pages.

Airflow asks for the links when the task has ended, and keeps what it is told; an empty text is no link.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink
from reprise_address import address
from reprise_hook import RepriseHook

from spark_jobs.places import drills_folder

if TYPE_CHECKING:
    from reprise_operator import RepriseOperator


class _Link(BaseOperatorLink):
    """A link of a RepriseOperator, which alone has these."""

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return self.of(cast("RepriseOperator", operator))

    def of(self, operator: RepriseOperator) -> str:
        raise NotImplementedError


class PageLink(_Link):
    name = "Reprise page"

    def of(self, operator: RepriseOperator) -> str:
        return _on_the_page(operator, "/#/p/{}", "/#/drills/{}")


class ReportLink(_Link):
    name = "Report"

    def of(self, operator: RepriseOperator) -> str:
        return _on_the_page(operator, "/api/pipelines/{}/report", "/api/drills/{}/report")


class DocsLink(_Link):
    name = "Data Docs"

    def of(self, operator: RepriseOperator) -> str:
        return address(f"/api/pipelines/{operator.pipeline}/docs/index.html") if operator.pipeline else ""


class SparkLink(_Link):
    name = "Spark UI"

    def of(self, operator: RepriseOperator) -> str:
        """Of the connection, where it was the connection that said the master."""
        return RepriseHook(operator.spark_conn_id).ui() if operator.master == "" else ""


LINKS = (PageLink(), ReportLink(), DocsLink(), SparkLink())


def _on_the_page(operator: RepriseOperator, pipeline: str, drill: str) -> str:
    """Where the page has the operator's pipeline, or its drill."""
    if operator.pipeline:
        return address(pipeline.format(operator.pipeline))
    return address(drill.format(name)) if (name := _drill(operator)) else ""


def _drill(operator: RepriseOperator) -> str:
    """The name of the drill, as the page knows it; drills elsewhere are not on the page."""
    folder = Path(operator.drill)
    return quote(folder.name) if operator.drill and folder.parent == drills_folder() else ""
