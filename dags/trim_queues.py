"""Remove events that every operator has read and none needs any more."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, Param
from reprise_operator import RepriseOperator, common_params

with DAG(
    dag_id="trim_queues",
    description="Trim the event log, and operators with keep: false, to what consumers still need",
    doc_md=__doc__
    + "\n\nA consumer's savepoint is its acknowledgement. What was trimmed can neither be verified nor be read by operators "
    "that are added later: run `verify_output` first. Trimming twice, or while a detection runs, is safe.",
    schedule=None,
    max_active_runs=1,
    params={
        **common_params("pipeline", "lake"),
        "keep_hours": Param(1, type="integer", minimum=0, description="Delete files that were trimmed at least so long ago"),
    },
    tags=["reprise"],
):
    RepriseOperator(
        task_id="trim",
        arguments=["trim", "{{ params.pipeline }}", "--lake", "{{ params.lake }}", "--keep-hours", "{{ params.keep_hours }}"],
        outlets=[Asset("event_log_trimmed")],
        retries=2,
    )
