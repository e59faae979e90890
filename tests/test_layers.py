"""Dependencies point one way: `cep` knows neither Spark nor Airflow nor the lake, and DAG files load nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def imports_of(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


ALLOWED = {
    "spark_jobs/cep": {"spark_jobs.cep", "spark_jobs.errors"},
    "spark_jobs/faults": {"spark_jobs.faults", "spark_jobs.lake.journals", "spark_jobs.lake.tables", "spark_jobs.errors"},
    "spark_jobs/ordering": {"spark_jobs.ordering", "spark_jobs.recovery.sets", "spark_jobs.cep", "spark_jobs.errors"},
    "spark_jobs/transactions": {"spark_jobs.transactions", "spark_jobs.cep", "spark_jobs.errors"},
    "schemas": set(),
}


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_layer_imports_only_what_lies_below(folder: str) -> None:
    for file in (ROOT / folder).glob("*.py"):
        ours = {name for name in imports_of(file) if name.startswith("spark_jobs")}
        above = {name for name in ours if not any(name == a or name.startswith(f"{a}.") for a in ALLOWED[folder])}
        assert not above, f"{file} imports {above}"


def test_the_engine_imports_neither_spark_nor_airflow() -> None:
    code = "import sys, spark_jobs.cep.matcher; print(sorted({'pyspark', 'airflow', 'deltalake'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("file", sorted((ROOT / "dags").glob("*.py")), ids=lambda file: file.stem)
def test_a_dag_file_loads_nothing_heavy(file: Path) -> None:
    heavy = {"pyspark", "pandas", "pyarrow", "numba", "great_expectations", "deltalake"}
    reachable = (
        imports_of(file) | imports_of(ROOT / "spark_jobs/drills/steps.py") | imports_of(ROOT / "spark_jobs/faults/catalogue.py")
    )
    assert not {name for name in reachable if name.split(".")[0] in heavy}
