"""Find the pipeline's patterns in what the event log has, from the last savepoint on."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, task
from reprise_operator import RepriseOperator, common_params

with DAG(
    dag_id="detect_patterns",
    description="Micro-batches over the event log, each published by one commit",
    doc_md=__doc__ + "\n\nA retry, a cleared task and a second run that overlaps all resume from the last savepoint; "
    "an attempt that lost its place is fenced and writes nothing. Where the pipeline says `strategy: replication`, every "
    "replica is a task of its own: one that is killed is tried again while the others go on.",
    schedule=[Asset("event_log")],
    params=common_params("pipeline", "lake", "batch_events", "master"),
    tags=["reprise"],
):

    @task(retries=3)
    def commands(params: dict[str, Any] | None = None) -> list[list[str]]:
        """What every replica has to run; one command where detection works alone."""
        from spark_jobs.pipeline_file import load_pipeline

        said = params or {}
        words = ["detect", said["pipeline"], "--lake", said["lake"]]
        words += ["--batch-events", str(said["batch_events"]), "--master", said["master"]]
        replicas = load_pipeline(said["pipeline"]).recovery.replicas
        return [words] if replicas == 1 else [[*words, "--replica", str(number)] for number in range(replicas)]

    RepriseOperator.partial(task_id="detect", outlets=[Asset("complex_events")], retries=3).expand(arguments=commands())
