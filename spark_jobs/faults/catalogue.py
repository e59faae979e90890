"""The catalogue of faults: what each breaks, how it is healed, where it can strike, what it needs.

Light enough to be imported by a DAG file. How a fault strikes is in strike.py, storage.py and inputs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spark_jobs.faults.phases import COMMITTING, DETECT_PHASES, INGEST_PHASES, TASK_PHASES, TRIM_PHASES

DRIVER_PHASES = (*INGEST_PHASES, *DETECT_PHASES, *TRIM_PHASES)
# When there is output, and a commit, and a savepoint to go on from.
AFTER = ("detect.published", "detect.finished")


class Group(StrEnum):
    PROCESS = "process"
    PROTOCOL = "commit protocol"
    STORAGE = "storage"
    INPUT = "input"


class Needs(StrEnum):
    """What has to run for a fault to be possible."""

    NOTHING = ""
    SPARK = "Spark"  # also as local[n]
    CLUSTER = "a Spark cluster"
    AIRFLOW = "an Airflow that runs tasks as processes"


@dataclass(frozen=True)
class Kind:
    """One entry of the catalogue."""

    name: str
    group: Group
    breaks: str
    heals: str
    phases: tuple[str, ...]  # where it can strike; none: before the data is ingested
    needs: Needs = Needs.NOTHING
    timed: bool = False  # may also strike a time after the start, wherever the work is


def _processes() -> list[Kind]:
    spark, cluster, airflow = Needs.SPARK, Needs.CLUSTER, Needs.AIRFLOW
    again = "the next start recovers from the savepoint"
    continued = "it is continued (SIGCONT) after some seconds"
    task = "Spark runs the task again"
    return [
        Kind("kill_driver", Group.PROCESS, "SIGKILL to the driver's Python", again, DRIVER_PHASES, timed=True),
        Kind("stop_driver", Group.PROCESS, "SIGSTOP to the driver's Python", continued, DRIVER_PHASES, timed=True),
        Kind("kill_jvm", Group.PROCESS, "SIGKILL to the driver's JVM", again, DRIVER_PHASES, spark, timed=True),
        Kind("stop_jvm", Group.PROCESS, "SIGSTOP to the driver's JVM", continued, DRIVER_PHASES, spark, timed=True),
        Kind("kill_executor", Group.PROCESS, "SIGKILL to an executor's JVM", task, TASK_PHASES, cluster),
        Kind("stop_executor", Group.PROCESS, "SIGSTOP to an executor's JVM", continued, TASK_PHASES, cluster),
        Kind("kill_worker", Group.PROCESS, "SIGKILL to the Python worker of a shard", task, TASK_PHASES, spark),
        Kind("stop_worker", Group.PROCESS, "SIGSTOP to the Python worker of a shard", continued, TASK_PHASES, spark),
        Kind("kill_task", Group.PROCESS, "SIGKILL to the Airflow task process", "Airflow retries", DRIVER_PHASES, airflow),
        Kind("stop_task", Group.PROCESS, "SIGSTOP to the Airflow task process", continued, DRIVER_PHASES, airflow),
        Kind("kill_group", Group.PROCESS, "SIGKILL to driver, JVM and workers at once", again, DRIVER_PHASES, timed=True),
        Kind("stop_group", Group.PROCESS, "SIGSTOP to driver, JVM and workers at once", continued, DRIVER_PHASES, timed=True),
    ]


def _protocol() -> list[Kind]:
    return [
        Kind("raise_error", Group.PROTOCOL, "the attempt fails with an error here", "the next start", DRIVER_PHASES),
        Kind("lose_request", Group.PROTOCOL, "the commit never reaches the table", "the next start", COMMITTING),
        Kind("lose_answer", Group.PROTOCOL, "the commit is done, its answer is lost", "the table is read again", COMMITTING),
        Kind(
            "zombie",
            Group.PROTOCOL,
            "the driver hangs, its retry does the work, then it wakes and goes on",
            "it is fenced",
            DRIVER_PHASES,
        ),
        Kind("rival", Group.PROTOCOL, "a second driver does the same work at once", "the slower one is fenced", DRIVER_PHASES),
    ]


def _storage() -> list[Kind]:
    restored = "the file is put back after somebody has noticed"
    kinds = []
    for target, what in {
        "events": "the newest file of the event log",
        "output": "the newest file of complex events",
        "savepoint": "the newest savepoint, and the driver is killed",
        "commit": "the newest commit of complex_events, and the driver is killed",
    }.items():
        heals = {
            "savepoint": "made anew by replay from an older one",
            "commit": "put back, or the batch is published again",
        }.get(target, restored)
        kinds += [
            Kind(
                f"{how}_{target}",
                Group.STORAGE,
                f"{done} {what}",
                heals,
                DETECT_PHASES if target == "events" else AFTER,
            )
            for how, done in {"truncate": "cut off half of", "flip": "flip a bit in", "delete": "delete"}.items()
        ]
    quota = "no file of the driver may grow any more, as on a full disk"
    return [
        *kinds,
        Kind("full_disk", Group.STORAGE, quota, "the next start has room again", DETECT_PHASES),
        Kind("read_only", Group.STORAGE, "the folders of the tables cannot be written", "made writable again", DETECT_PHASES),
    ]


def _inputs() -> list[Kind]:
    return [
        Kind(
            "deliver_twice",
            Group.INPUT,
            "a partition is delivered twice, in another order of rows",
            "known events are dropped",
            (),
        ),
        Kind("deliver_late", Group.INPUT, "a partition comes after detection has passed it", "detected when it comes", ()),
        Kind("deliver_out_of_order", Group.INPUT, "the second half of the log comes first", "numbered as it comes", ()),
        Kind("drop_partition", Group.INPUT, "a partition never comes", "ingest says which is missing", ()),
        Kind("change_schema", Group.INPUT, "a partition has a renamed column", "it is quarantined", ()),
        Kind("poison_rows", Group.INPUT, "rows without a time stamp", "they are quarantined", ()),
    ]


CATALOGUE: dict[str, Kind] = {kind.name: kind for kind in [*_processes(), *_protocol(), *_storage(), *_inputs()]}
