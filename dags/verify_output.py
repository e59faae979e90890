"""Compare the complex events with a reference run over the same log, and keep the verdict."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, Param
from reprise_operator import RepriseOperator, common_params

with DAG(
    dag_id="verify_output",
    description="Five properties against the reference run; an invalid or unknown verdict fails the task",
    doc_md=__doc__ + "\n\nOnly what was published since the last valid verdict is compared, unless `full` asks for everything.",
    schedule=[Asset("complex_events")],
    params={
        **common_params("pipeline", "lake", "master"),
        "full": Param(False, type="boolean", description="Compare everything anew, also what a valid verdict covers"),
    },
    tags=["reprise"],
):
    RepriseOperator(
        task_id="verify",
        arguments=[
            "verify",
            "{{ params.pipeline }}",
            "--lake",
            "{{ params.lake }}",
            "--master",
            "{{ params.master }}",
            "{{ '--full' if params.full else '--no-full' }}",
        ],
        outlets=[Asset("verdicts")],
        retries=0,  # a verdict does not change by asking again
    )
