"""The Airflow connection that says where Spark is."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / ".local" / "airflow"))  # otherwise Airflow makes one outside of the project
sys.path.insert(0, str(ROOT / "plugins"))


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        (None, "local[2]"),
        ({"conn_type": "spark", "host": "local[*]"}, "local[*]"),
        ({"conn_type": "spark", "host": "spark://here", "port": 7077}, "spark://here:7077"),
        ({"conn_type": "spark", "host": "here", "port": 7077}, "spark://here:7077"),
        ({"conn_type": "spark", "host": "inline"}, "inline"),
    ],
)
def test_a_connection_says_the_master(
    connection: dict[str, object] | None, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprise_hook import RepriseHook

    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_REPRISE_SPARK", json.dumps(connection))
    assert RepriseHook().master() == master


@pytest.mark.parametrize(
    ("extra", "ui"),
    [
        (None, ""),
        ({"ui": "http://spark.example:8080"}, "http://spark.example:8080"),
        ({"ui": "https://spark.example"}, "https://spark.example"),
        ({"ui": "javascript:alert(1)"}, ""),
        ({"ui": ["http://"]}, ""),
        ({}, ""),
    ],
)
def test_only_addresses_for_browsers_are_links_to_spark(
    extra: dict[str, object] | None, ui: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprise_hook import RepriseHook

    if extra is not None:
        connection = {"conn_type": "spark", "host": "spark://here", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_REPRISE_SPARK", json.dumps(connection))
    assert RepriseHook().ui() == ui
