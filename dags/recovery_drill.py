"""Break a pipeline on purpose, let it recover, and prove that every complex event came out exactly once.

The drill works in a folder and a lake of its own: on a generated log, or on the landing files you name, which are
only read. Its report is `report.html` in that folder.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from reprise_operator import ROOT, RepriseOperator

from spark_jobs.drills.steps import POISON, SECOND_ROUND, VERDICTS, drill_steps
from spark_jobs.faults.catalogue import CATALOGUE
from spark_jobs.places import drills_folder

# What is wrong here stays wrong.
UNTRIED = ("generate", "arm", SECOND_ROUND[0])
SEED = "{{ params.seed if params.seed is not none else '' }}"
BATCHES = "{{ 1 if params.landing else [params.events // params.batch_events, 1] | max }}"
EXAMPLE = ROOT / "examples" / "card_probing.yaml"
FOLDER = "{{ params.folder or '" + str(drills_folder()) + "/' + run_id | replace(':', '-') | replace('+', '-') }}"

with DAG(
    dag_id="recovery_drill",
    description="Generate, ingest, be broken in the middle of the work, recover, verify, report",
    doc_md=__doc__,
    schedule=None,
    is_paused_upon_creation=False,  # it runs only when somebody asks for it, also from the Reprise page
    params={
        "pipeline": Param(str(EXAMPLE), type="string", description="The pipeline file (YAML)"),
        "master": Param("local[2]", type="string", description="Spark master URL"),
        "events": Param(100_000, type="integer", minimum=1, description="Events to generate"),
        "batch_events": Param(20_000, type="integer", minimum=1, description="Events per micro-batch"),
        "faults": Param(
            "kill_driver:detect.saved@3",
            type="string",
            description="KIND:PHASE@BATCH[:OPERATOR][/SHARD][#REPLICA][*TIMES] or KIND:SECONDSs, several with commas. "
            f"Kinds: {', '.join(CATALOGUE)}",
        ),
        "plan": Param("", type="string", description="A fault plan (YAML file) besides, or instead of, these faults"),
        "seed": Param(None, type=["null", "integer"], description="Draw one more fault from this seed"),
        "strategy": Param("savepoint", type="string", enum=["savepoint"], description="How detection recovers"),
        "landing": Param("", type="string", description="Drill on these landing files instead of generated ones"),
        "folder": Param("", type="string", description="Folder of the drill; a new one by default"),
    },
    # A killed driver is the point of the drill: try again at once, as often as faults may strike.
    default_args={"retries": 8, "retry_delay": timedelta(seconds=0), "execution_timeout": timedelta(minutes=15)},
    tags=["reprise", "drill"],
):
    commands = drill_steps(
        pipeline="{{ params.pipeline }}",
        folder=FOLDER,
        given="{{ params.landing or '' }}" + "{% if not params.landing %}" + FOLDER + "/given{% endif %}",
        faults=["--fault", "{{ params.faults }}", "--plan", "{{ params.plan }}", "--seed", SEED, "--batches", BATCHES],
        events="{{ params.events }}",
        poison="{{ [params.events, " + str(POISON) + "] | min }}",
        batch_events="{{ params.batch_events }}",
        master="{{ params.master }}",
    )
    skip = {"generate": "{{ params.landing }}"}
    # The report is wanted most when the verdict is bad; it ends with the verdict's exit code, so the run fails too.
    rules = {"arm": "none_failed", "verify": "none_failed", "report": "none_skipped"}
    previous = None
    for name, arguments in commands.items():
        task = RepriseOperator(
            task_id=name,
            arguments=arguments,
            drill=FOLDER,
            skip_when=skip.get(name, ""),
            trigger_rule=rules.get(name, "all_success"),
            **({"retries": 0} if name in (*VERDICTS, *UNTRIED) else {}),
        )
        if previous is not None:
            previous >> task
        previous = task
