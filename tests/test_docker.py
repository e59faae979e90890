"""docker/ as far as it can be checked without a Docker engine; what its services run is run by test_cluster.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.compose import COMPOSE, LOOPBACK, ROOT, Loopback, services

DOCKERFILE = ROOT / "docker" / "Dockerfile"
# The Compose Specification's own schema, which comes with check-jsonschema.
SCHEMA = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
AIRFLOW = {"airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}


def problems(document: dict[str, Any]) -> list[str]:
    """What the specification does not allow. Of `x-` fields it says nothing, as they are for who writes the file."""
    schema = json.loads(SCHEMA.read_text())
    checker = jsonschema.validators.validator_for(schema)(schema)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in checker.iter_errors(document)]


def lint(file: Path) -> str:
    hadolint = Path(sys.executable).with_name("hadolint")
    return subprocess.run([hadolint, "--no-color", str(file)], stdout=subprocess.PIPE, text=True, check=False).stdout


def test_the_compose_file_is_one() -> None:
    assert problems(yaml.safe_load(COMPOSE.read_text())) == []


@pytest.mark.parametrize("wrong", [{"comand": ["scripts/spark"]}, {"ports": 8080}, {"depends_on": {"postgres": "healthy"}}])
def test_a_compose_file_that_is_wrong_is_noticed(wrong: dict[str, Any]) -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    document["services"]["spark-master"] |= wrong
    assert problems(document)


def test_the_dockerfile_is_clean() -> None:
    assert lint(DOCKERFILE) == ""


def test_a_dockerfile_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp && apt-get install postgresql\n")
    assert "DL3006" in lint(bad)


def test_the_services_are_those_of_the_design() -> None:
    assert set(services()) == {"postgres", "airflow-init", *AIRFLOW, "spark-master", "spark-worker-1", "spark-worker-2"}


def test_every_service_runs_a_script_of_the_project_in_an_image_of_the_dockerfile() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE.read_text(), re.MULTILINE))
    for name, service in services().items():
        script = ROOT / service["command"][0]
        assert os.access(script, os.X_OK), name
        assert service["build"]["target"] in stages, name
        assert (COMPOSE.parent / service["build"]["context"]).resolve() == ROOT, name
        assert (ROOT / service["build"]["dockerfile"]) == DOCKERFILE, name


def test_what_is_copied_into_the_images_is_there() -> None:
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE.read_text(), re.MULTILINE):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        assert all((ROOT / source).exists() for source in sources), line


def test_all_parts_of_airflow_share_one_home_and_one_database() -> None:
    """A component with a home of its own would have other secrets, and no task could log in."""
    for variable in ("AIRFLOW_HOME", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "REPRISE_LAKES", "REPRISE_JOBS"):
        assert len({services()[name]["environment"][variable] for name in (*AIRFLOW, "airflow-init")}) == 1, variable


def test_drivers_and_executors_see_the_lake_under_the_same_path() -> None:
    for name in ("airflow-scheduler", "airflow-triggerer", "spark-worker-1", "spark-worker-2"):
        assert "data:/data" in services()[name]["volumes"], name


def test_nothing_is_open_to_other_machines_and_no_password_is_written_down() -> None:
    assert all(port.startswith("127.0.0.1:") for service in services().values() for port in service.get("ports", []))
    text = COMPOSE.read_text()
    assert text.count("POSTGRES_PASSWORD:?") == 2, "compose stops where nobody has set one"


def test_a_service_depends_only_on_what_says_how_it_is() -> None:
    """Otherwise Docker would wait for ever."""
    found = services()
    for service in found.values():
        for other, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] == "service_completed_successfully" or "healthcheck" in found[other], other


def test_on_loopback_hosts_ports_folders_and_passwords_are_those_of_the_test(tmp_path: Path) -> None:
    file = services()
    here = Loopback(tmp_path, {"POSTGRES_PASSWORD": "secret"}, tuple(file))
    scheduler = here.environment("airflow-scheduler", file["airflow-scheduler"])
    postgres = here.environment("postgres", file["postgres"])
    master = here.environment("spark-master", file["spark-master"])
    worker = here.words("spark-worker-1", file["spark-worker-1"], file["spark-worker-1"]["command"])
    database = f"postgresql+psycopg2://airflow:secret@{LOOPBACK}:{postgres['PGPORT']}/airflow"
    assert scheduler["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == database
    assert scheduler["REPRISE_LAKES"] == str(tmp_path / "data" / "lakes")
    assert scheduler["SPARK_LOCAL_HOSTNAME"] == LOOPBACK
    assert worker == ["scripts/spark", "worker", f"spark://{LOOPBACK}:{master['SPARK_MASTER_PORT']}"]
    assert here.words("postgres", file["postgres"], ["scripts/listens", "postgres", "5432"])[2] == postgres["PGPORT"]
