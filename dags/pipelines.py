"""A family of DAGs for every file of the pipelines folder: NAME.ingest, NAME.detect, NAME.verify and NAME.trim."""

from __future__ import annotations

from airflow.sdk import DAG
from reprise_family import family

from spark_jobs.places import places

dags: dict[str, DAG] = {dag.dag_id: dag for place in places() for dag in family(place)}
globals().update(dags)
