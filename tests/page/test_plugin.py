"""The plugin as Airflow loads it: one entry in the navigation, nothing heavy in processes that never show the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from airflow._shared.plugins_manager import _load_plugins_from_plugin_directory
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.page.conftest import ROOT

PLUGINS = ROOT / "plugins"
# Airflow reads .airflowignore with a class that its own library has renamed since.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")


def test_airflow_finds_one_plugin_and_imports_no_file_of_its_package() -> None:
    (plugin,), errors = _load_plugins_from_plugin_directory(str(PLUGINS))
    assert (plugin.name, errors) == ("reprise", {})
    (view,) = plugin.external_views
    assert (view["name"], view["destination"], view["url_route"]) == ("Reprise", "nav", "reprise")
    assert view["href"].endswith("/reprise/")


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    heavy = {"pyarrow", "deltalake", "pandas", "numba", "reprise_page_app", "spark_jobs"}
    code = f"import sys; sys.path.insert(0, {str(PLUGINS)!r}); import reprise_page; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "[]"


def test_the_app_is_made_when_somebody_asks_for_it() -> None:
    (plugin,), _ = _load_plugins_from_plugin_directory(str(PLUGINS))
    (mounted,) = plugin.fastapi_apps
    airflow = FastAPI()
    airflow.mount(mounted["url_prefix"], mounted["app"])
    assert TestClient(airflow).get("/reprise/api/pipelines").status_code == 401


def test_views_load_neither_spark_nor_airflow() -> None:
    modules = ["spark_jobs.views." + file.stem for file in Path(ROOT / "spark_jobs" / "views").glob("[a-z]*.py")]
    code = f"import sys, {', '.join(modules)}; print(sorted({{'pyspark', 'airflow'}} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip() == "[]"
