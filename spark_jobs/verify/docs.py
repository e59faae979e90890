"""Data Docs: the kept results of suites as pages that open offline. Runs in the suites' own process only.

Great Expectations renders suites and results; the page around them is ours, because its own loads scripts, fonts and styles
from public hosts and shows nothing without them. The index is a static page over the newest runs.
"""

from __future__ import annotations

import datetime as dt
import html
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from great_expectations.core import ExpectationSuite
from great_expectations.core.expectation_validation_result import expectationSuiteValidationResultSchema
from great_expectations.render.renderer.page_renderer import ExpectationSuitePageRenderer, ValidationResultsPageRenderer
from great_expectations.render.view.view import DefaultJinjaPageView

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
# With an ingest every five minutes these are 17 hours. Older runs keep their page and their rows in `validations`.
LISTED = 200


@dataclass(frozen=True)
class Run:
    """What the index says about one run of a suite."""

    name: str
    subject: str
    at: str
    expectations: int
    failed: list[dict[str, Any]]


@dataclass(frozen=True)
class Shelf:
    """What the index says about one suite; its newest run comes first."""

    file: str
    name: str
    runs: list[Run]
    older: int


def build(folder: Path) -> None:
    """Write the pages that `folder`/docs lacks for the results in `folder`/results, and the index.

    A page is never written again, so this costs the same with one run and with thousands behind it.
    """
    docs = folder / "docs"
    homes = sorted(path for path in (folder / "results").glob("*") if path.is_dir())
    shelves = [shelf for home in homes if (shelf := _shelf(home, docs))]
    made = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
    _write(docs / "index.html", _ours("docs_index.html.j2", shelves=shelves, lake=folder.parent, made=made))


def _shelf(home: Path, docs: Path) -> Shelf | None:
    files = sorted(home.glob("*.json"), reverse=True)
    kept = {file.stem: result for file in files[:LISTED] if (result := _load(file))}
    if not kept:
        return None
    newest = next(iter(kept.values()))
    pages = {docs / "validations" / home.name / f"{run}.html": result for run, result in kept.items()}
    new = {page: result for page, result in pages.items() if not page.exists()}
    for page, result in new.items():
        _write(page, _result_page(result, home.name))
    if new:
        _write(docs / "expectations" / f"{home.name}.html", _suite_page(newest))
    runs = [_run(name, result) for name, result in kept.items()]
    return Shelf(home.name, newest["suite_name"], runs, len(files) - len(kept))


def _load(file: Path) -> dict[str, Any] | None:
    """A kept result, or nothing if something has damaged it: it must not stop the jobs that come after."""
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        _run(file.stem, result)
    except (ValueError, KeyError, TypeError):
        return None
    return result


def _run(name: str, result: dict[str, Any]) -> Run:
    run, checks = result["meta"]["run_id"], result["meta"]["checks"]
    at = dt.datetime.fromisoformat(run["run_time"])
    return Run(name, run["run_name"], f"{at:%Y-%m-%d %H:%M:%S}", len(checks), [c for c in checks if not c["met"]])


def _result_page(result: dict[str, Any], suite: str) -> str:
    run = _run("", result)

    def rendered() -> Any:
        loaded = expectationSuiteValidationResultSchema.load(result)
        loaded.meta["batch_spec"] = {"data_asset_name": run.subject}
        return ValidationResultsPageRenderer().render(loaded)

    outcome = f"{len(run.failed)} of {run.expectations} not met" if run.failed else f"all {run.expectations} met"
    frame = _Frame(f"{run.subject}: {outcome}", f"Suite {result['suite_name']}, {run.at} UTC", "../../index.html", run.failed)
    page = _page(rendered, frame, result)
    # Great Expectations counts on folders of its own.
    return re.sub(r'href="(\.\./)+expectations/[^"]*"', f'href="../../expectations/{suite}.html"', page)


def _suite_page(result: dict[str, Any]) -> str:
    """The suite as it was in its newest run."""

    def rendered() -> Any:
        wanted = [entry["expectation_config"] for entry in result["results"]]
        renderer: Any = ExpectationSuitePageRenderer()
        return renderer.render(ExpectationSuite(name=result["suite_name"], expectations=wanted, meta=result["meta"]))

    frame = _Frame(f"Suite {result['suite_name']}", "What is expected, as of the newest run.", "../index.html", [])
    return _page(rendered, frame, result)


@dataclass(frozen=True)
class _Frame:
    """What stands around that which Great Expectations renders."""

    title: str
    said: str
    home: str
    failed: list[dict[str, Any]]


def _page(rendered: Callable[[], Any], frame: _Frame, kept: Any) -> str:
    """Docs are a by-product: what Great Expectations cannot render is shown as it was kept, and stops nobody."""
    try:
        page: str = _view().render(rendered(), template="docs_page.html.j2", frame=frame)
    except Exception as error:
        return _ours("docs_plain.html.j2", frame=frame, error=error, kept=json.dumps(kept, indent=1))
    return page


@cache
def _view() -> Any:
    """One for all pages: compiling the templates takes longer than rendering."""
    return _View(custom_views_directory=_TEMPLATES)


class _View(DefaultJinjaPageView):
    """Great Expectations writes cells of tables, which are data, into its pages as they are (1.24.1); here they are escaped."""

    @jinja2.pass_context
    def render_content_block(self, context: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(block, str):
            return html.escape(block)
        if isinstance(block, list) and not any(isinstance(part, dict) for part in block):
            return html.escape(", ".join(map(str, block)))  # values of a pair of columns, which it would write as one word
        return super().render_content_block(context, block, *args, **kwargs)


def _ours(template: str, **facts: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(template).render(**facts)


def _write(file: Path, text: str) -> None:
    """Whole or not at all, also when two jobs build at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(file)
