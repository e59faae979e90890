"""Upkeep: trim what nobody needs, compute new versions of operators, cut over to them."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_jobs.commands.common import (
    LOCAL,
    BatchEvents,
    LakeDir,
    Master,
    PipelineFile,
    Shards,
    existing,
    open_job,
)
from spark_jobs.commands.work import tell_detected
from spark_jobs.console import say, table


def trim(
    pipeline: PipelineFile,
    lake: LakeDir,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be trimmed.")] = False,
    keep_hours: Annotated[
        int, typer.Option(min=0, help="Delete files that were trimmed at least so long ago; others may be reading them.")
    ] = 1,
    retire: Annotated[
        list[str] | None, typer.Option(help="NAME, or NAME:VERSION, that is not wanted any more: do not wait for it.")
    ] = None,
) -> None:
    """Remove events that every operator has read and none needs any more; what is still needed stays.

    The event log is trimmed, and operators with [bold]keep: false[/bold]. Verify before: what was
    trimmed without a valid verdict can never be verified, and operators added later cannot read it.
    """
    from spark_jobs.lake.history import Attempt
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline
    from spark_jobs.trim import trim as run_trim
    from spark_jobs.trim import vacuum
    from spark_jobs.versions import registry, retirable
    from spark_jobs.versions import retire as let_go

    loaded, target = load_pipeline(pipeline), Lake(existing(lake))
    without = [version for name in retire or [] for version in retirable(registry(target), loaded, name)]
    if not plan:
        for name in retire or []:
            let_go(target, loaded, name)
            say(f"retired {name}: trims do not wait for it any more, its output stays")
    done = run_trim(loaded, target, Attempt(target, "trim", say), dry_run=plan, without=without)
    if not done:
        say("nothing to trim: no operator has read anything yet")
        return
    columns = ["queue", "events", "trimmed", "left", "acknowledged up to", "held by", "files replaced"]
    rows: list[list[object]] = [[d.queue, d.events, d.removed, d.events - d.removed, d.upto, d.held_by, d.files] for d in done]
    table("what would be trimmed" if plan else "trimmed", columns, rows)
    if not plan:
        deleted = vacuum(target, keep_hours)
        say(f"deleted {deleted:,} files that were trimmed {keep_hours} h ago or earlier")


def upgrade(
    pipeline: PipelineFile,
    lake: LakeDir,
    from_: Annotated[
        int | None, typer.Option("--from", min=0, help="Begin after this SN of the log; otherwise with its first event.")
    ] = None,
    again: Annotated[
        list[str] | None, typer.Option(help="An operator to begin another version of, although it was not changed.")
    ] = None,
    batch_events: BatchEvents = 1_000_000,
    shards: Shards = 2,
    master: Master = LOCAL,
) -> None:
    """Compute the new version of changed operators by replay, beside the old one, which stays the current one.

    An operator is changed if its pattern, window, key, measures or one of its inputs is. Run it as often as you like; then
    [bold]reprise cut-over[/bold].
    """
    from spark_jobs.detect import Settings, detect_versions
    from spark_jobs.graph import Graph
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline
    from spark_jobs.versions import upgrade as new_versions

    graph = Graph(load_pipeline(pipeline), Lake(existing(lake)))
    versions = new_versions(graph.lake, graph.pipeline, graph.admit, from_, again or [])
    for version in versions.values():
        if not version.current:
            begins = f"version {version.number} begins after event {version.after_sn:,}"
            say(f"{version.operator}: {begins}; 'reprise cut-over' makes it the current one")
    if all(version.current for version in versions.values()):
        say("no operator was changed: the versions of the pipeline file are the current ones")
    with open_job(pipeline, lake, master, "detect") as job:
        tell_detected(detect_versions(graph, versions, job.runner, job.attempt, Settings(batch_events, shards)))


def cut_over(pipeline: PipelineFile, lake: LakeDir) -> None:
    """Make the versions that the pipeline file defines the current ones, all in one commit.

    They must have come as far as those they replace. The output of the old versions stays in the table.
    """
    from spark_jobs.cutover import cut_over as run_cut_over
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline

    done = run_cut_over(load_pipeline(pipeline), Lake(existing(lake)))
    for version in done:
        say(f"{version.operator}: version {version.number} is the current one now")
    if not done:
        say("nothing to do: every operator of the pipeline file is the current version")
