"""No DAG: where Airflow lists files that it could not import, it says which pipeline files give no pipeline, and why."""

from __future__ import annotations

import airflow.sdk  # noqa: F401  # by this word the DAG processor knows files that it has to read

from spark_jobs.errors import PipelineError
from spark_jobs.places import misplaced

if wrong := misplaced():
    problems = "\n".join(f"{file.name}: {problem}" for file, problem in wrong)
    raise PipelineError(f"{len(wrong)} pipeline files give no DAGs, the others do:\n{problems}")
