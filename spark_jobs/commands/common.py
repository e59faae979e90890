"""What the commands share: the application, its arguments, and a job that records how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.console import say
from spark_jobs.errors import CommitStateUnknown, FencedAttempt, IngestRefused, RepriseError

if TYPE_CHECKING:
    from spark_jobs.lake.history import Attempt
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import Pipeline
    from spark_jobs.runner import Runner

PipelineFile = Annotated[Path, typer.Argument(help="The pipeline file (YAML); examples are in examples/.")]
LakeDir = Annotated[Path, typer.Option("--lake", help="The folder of Delta tables; created if it does not exist.")]
LandingDir = Annotated[Path, typer.Option("--landing", help="The folder of landing files, in hive partitions. Never changed.")]
Master = Annotated[str, typer.Option(help="Spark master URL, or 'inline' to run without Spark (tiny logs, tests).")]
BatchEvents = Annotated[int, typer.Option("--batch-events", min=1, help="Events per micro-batch.")]
Replica = Annotated[int | None, typer.Option(hidden=True, min=0, help="Be this replica of a group; for who starts groups.")]
Shards = Annotated[int, typer.Option(min=1, help="Parallel tasks per micro-batch. Does not change the result.")]

LOCAL = "local[2]"


@dataclass(frozen=True)
class Job:
    """What ingest and detect need."""

    pipeline: Pipeline
    lake: Lake
    runner: Runner
    attempt: Attempt


@contextmanager
def open_job(pipeline: Path, lake: Path, master: str, name: str, replica: int | None = None) -> Iterator[Job]:
    """Load the pipeline, begin an attempt, start Spark in the background; record how it ended."""
    from spark_jobs.faults.strike import InjectedFailure
    from spark_jobs.lake.history import Attempt
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline
    from spark_jobs.runner import open_runner

    loaded, target = load_pipeline(pipeline), Lake(lake)
    announce = say if replica is None else lambda line: say(f"replica {replica}: {line}")
    attempt = Attempt(target, name, announce, replica)
    attempt.start_clocks()
    ended = "error"
    try:
        with open_runner(master, target, name if replica is None else f"{name}-{replica}") as runner:
            yield Job(loaded, target, runner, attempt)
        ended = "done"
    except BaseException as error:
        # Who was fenced, or lost a commit, or was told to fail, has not met any damaged file.
        blind = (FencedAttempt, CommitStateUnknown, InjectedFailure)
        attempt.heal(inputs=isinstance(error, IngestRefused), files=not isinstance(error, blind))
        raise
    finally:
        attempt.settle()
        attempt.record("end", ended)


def existing(lake: Path) -> Path:
    if not lake.exists():
        raise RepriseError(f"lake {lake} does not exist; ingest into it first")
    return lake
