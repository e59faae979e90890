"""Take new landing partitions into the event log."""

from __future__ import annotations

from airflow.sdk import DAG, Asset
from reprise_operator import RepriseOperator, common_params

with DAG(
    dag_id="ingest_events",
    description="Validate, quarantine and number new landing files",
    doc_md=__doc__ + "\n\nA partition delivered twice changes nothing; unusable rows go to the table `quarantine`. "
    "Clearing the task repeats it safely.",
    schedule=None,
    max_active_runs=1,
    params=common_params("pipeline", "landing", "lake", "master"),
    tags=["reprise"],
):
    RepriseOperator(
        task_id="ingest",
        arguments=[
            "ingest",
            "{{ params.pipeline }}",
            "--landing",
            "{{ params.landing }}",
            "--lake",
            "{{ params.lake }}",
            "--master",
            "{{ params.master }}",
        ],
        outlets=[Asset("event_log")],
        retries=2,
    )
