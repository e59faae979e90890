"""Find the pipeline's patterns in what the event log has, from the last savepoint on."""

from __future__ import annotations

from airflow.sdk import DAG, Asset
from reprise_operator import RepriseOperator, common_params

with DAG(
    dag_id="detect_patterns",
    description="Micro-batches over the event log, each published by one commit",
    doc_md=__doc__ + "\n\nA retry, a cleared task and a second run that overlaps all resume from the last savepoint; "
    "an attempt that lost its place is fenced and writes nothing.",
    schedule=[Asset("event_log")],
    params=common_params("pipeline", "lake", "batch_events", "master"),
    tags=["reprise"],
):
    RepriseOperator(
        task_id="detect",
        arguments=[
            "detect",
            "{{ params.pipeline }}",
            "--lake",
            "{{ params.lake }}",
            "--batch-events",
            "{{ params.batch_events }}",
            "--master",
            "{{ params.master }}",
        ],
        outlets=[Asset("complex_events")],
        retries=3,
    )
