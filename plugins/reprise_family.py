"""The DAGs of one pipeline: each follows the one before it by the asset that it writes.

All of them mean replay: a scheduled run, a run made by a backfill, a cleared task and a run by hand all take what is new since
the last commit, whoever made that. So none can publish anything twice, leave something out or change an order, and two that
overlap fence each other.
"""

from __future__ import annotations

import json
from datetime import timedelta
from importlib import import_module
from typing import Any

from airflow.sdk import DAG, Asset, BaseNotifier, Param, task
from airflow.sdk.configuration import conf
from reprise_operator import RepriseOperator

from spark_jobs.errors import PipelineError
from spark_jobs.places import Place

MASTER = Param("", type="string", description="Spark master URL; empty: that of the connection reprise_spark, or local[2]")
BATCH = Param(1_000_000, type="integer", minimum=1, description="Events per micro-batch")
FULL = Param(False, type="boolean", description="Compare everything anew, also what a valid verdict covers")
KEEP = Param(1, type="integer", minimum=0, description="Delete files that were trimmed at least so long ago")
# A job that was killed goes on from its savepoint: soon, and as often as a bad night may need.
RESUMED: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=10)}


def family(place: Place) -> list[DAG]:
    return [_ingest(place), _detect(place), _verify(place), _trim(place)]


def asset_of(place: Place, table: str) -> Asset:
    return Asset(f"{place.name}.{table}", uri=f"reprise://{place.name}/{table}")


def _dag(place: Place, step: str, description: str, doc: str, schedule: Any, params: dict[str, Param]) -> DAG:
    return DAG(
        dag_id=f"{place.name}.{step}",
        description=description,
        doc_md=f"{description}, pipeline `{place.name}` ({place.file.name}).\n\n{doc}",
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        params=params,
        default_args={"on_failure_callback": notifiers()},
        tags=["reprise", place.name],
    )


def notifiers() -> list[BaseNotifier]:
    """Whom to tell when a task has failed, by an invalid verdict or otherwise: Airflow's setting `[reprise] notifiers`.

    It is JSON: a list of `{"class": "path.of.a.Notifier", "arguments": {..}}`.
    """
    found = []
    for said in json.loads(conf.get("reprise", "notifiers", fallback="[]")):
        module, _, name = said["class"].rpartition(".")
        notifier = getattr(import_module(module), name)
        if not (isinstance(notifier, type) and issubclass(notifier, BaseNotifier)):
            raise PipelineError(f"[reprise] notifiers: {said['class']} is no notifier of Airflow")
        found.append(notifier(**said.get("arguments", {})))
    return found


def _words(place: Place, step: str, *more: str) -> list[str]:
    return [step, str(place.file), "--lake", str(place.lake), *more]


def _ingest(place: Place) -> DAG:
    doc = (
        f"Files are looked for in `{place.landing}`: new ones, late ones, and ones delivered again. The same content changes "
        "nothing; unusable rows go to the table `quarantine`."
    )
    with _dag(place, "ingest", "Take new landing files into the event log", doc, place.schedule, {"master": MASTER}) as dag:
        RepriseOperator(
            task_id="ingest",
            arguments=_words(place, "ingest", "--landing", str(place.landing)),
            master="{{ params.master }}",
            pipeline=place.name,
            outlets=[asset_of(place, "event_log")],
            doc_md="`reprise ingest`: validated, numbered, and committed once per run.",
            **RESUMED,
        )
    return dag


def _detect(place: Place) -> DAG:
    doc = (
        "Micro-batches over the event log, each published by one commit. A retry, a cleared task and a run that overlaps all "
        "resume from the last savepoint; an attempt that lost its place is fenced and writes nothing. Where the pipeline says "
        "`strategy: replication`, every replica is a task of its own: one that is killed is tried again while the others go on."
    )
    params, schedule = {"master": MASTER, "batch_events": BATCH}, [asset_of(place, "event_log")]
    with _dag(place, "detect", "Find the patterns in what is new in the event log", doc, schedule, params) as dag:

        @task(retries=3)
        def commands(params: dict[str, Any] | None = None) -> list[list[str]]:
            """What every replica has to run; one command where detection works alone."""
            from spark_jobs.pipeline_file import load_pipeline

            words = _words(place, "detect", "--batch-events", str((params or {})["batch_events"]))
            replicas = load_pipeline(place.file).recovery.replicas
            return [words] if replicas == 1 else [[*words, "--replica", str(number)] for number in range(replicas)]

        RepriseOperator.partial(
            task_id="detect",
            master="{{ params.master }}",
            pipeline=place.name,
            outlets=[asset_of(place, "complex_events")],
            doc_md="`reprise detect`: resumes from the last savepoint.",
            **RESUMED,
        ).expand(arguments=commands())
    return dag


def _verify(place: Place) -> DAG:
    doc = "Five properties against a reference run over the same log. Only what was published since the last valid verdict is "
    doc += "compared, unless `full` asks for everything. An invalid or unknown verdict fails the run."
    schedule = [asset_of(place, "complex_events")]
    with _dag(place, "verify", "Prove that the output is right", doc, schedule, {"master": MASTER, "full": FULL}) as dag:
        RepriseOperator(
            task_id="verify",
            arguments=_words(place, "verify", "{{ '--full' if params.full else '--no-full' }}"),
            master="{{ params.master }}",
            pipeline=place.name,
            outlets=[asset_of(place, "verdicts")],
            retries=0,  # a verdict does not change by asking again
            doc_md="`reprise verify`: ends with 0 for valid, 1 for invalid and 2 for unknown.",
        )
    return dag


def _trim(place: Place) -> DAG:
    doc = (
        "A consumer's savepoint is its acknowledgement. What was trimmed can neither be verified nor be read by operators that "
        f"are added later: let `{place.name}.verify` run first. Trimming twice, or while a detection runs, is safe."
    )
    with _dag(place, "trim", "Remove events that nobody needs any more", doc, None, {"keep_hours": KEEP}) as dag:
        RepriseOperator(
            task_id="trim",
            arguments=_words(place, "trim", "--keep-hours", "{{ params.keep_hours }}"),
            pipeline=place.name,
            outlets=[asset_of(place, "event_log_trimmed")],
            retries=2,
        )
    return dag
