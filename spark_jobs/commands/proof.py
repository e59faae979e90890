"""Proof: the reference run, verification, drills and their reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_jobs.commands.common import (
    LOCAL,
    BatchEvents,
    LakeDir,
    Master,
    PipelineFile,
    existing,
)
from spark_jobs.console import say, table

_KILL = (
    "PHASE@BATCH, or PHASE@BATCH:OPERATOR: SIGKILL the driver there, once; may be given several times. "
    "[dim]\\[default: detect.saved@3][/dim]"
)


def reference(pipeline: PipelineFile, lake: LakeDir) -> None:
    """Make the reference run: the whole log in one pass, without the engine and without recovery."""
    from spark_jobs.lake.scan import open_log
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.verify.job import make_reference

    loaded = load_pipeline(pipeline)
    target = Lake(existing(lake))
    log = open_log(target, loaded.source.schema)
    for name in loaded.order:
        found = make_reference(loaded, name, target, log, log.last_sn)
        say(f"reference run of {name}: {found.num_rows:,} matches in {log.last_sn:,} events")


def verify(
    pipeline: PipelineFile,
    lake: LakeDir,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per operator.")] = False,
) -> None:
    """Compare the output with the reference run. Exit code 0: valid, 1: invalid, 2: unknown."""
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.verify.job import verify as run_verification
    from spark_jobs.verify.verdict import worst

    results = run_verification(load_pipeline(pipeline), Lake(existing(lake)))
    for result in results:
        if as_json:
            sys.stdout.write(json.dumps(result.as_dict()) + "\n")
            continue
        rows: list[list[object]] = [
            [f.property, f.verdict.value, f.count, f.note or _first(f.examples)] for f in result.findings
        ]
        table(f"{result.operator}: {result.verdict.value}", ["property", "verdict", "found", "note"], rows)
        since = f" after event {result.after_sn:,}" if result.after_sn else ""
        events = result.events - result.after_sn
        say(f"verdict on {result.operator}: {result.verdict.value}, {result.matches:,} matches in {events:,} events{since}")
    raise typer.Exit(worst(result.verdict for result in results).exit_code)


def drill(
    pipeline: PipelineFile,
    kill: Annotated[list[str] | None, typer.Option(help=_KILL)] = None,
    events: Annotated[int, typer.Option(help="Events to generate.")] = 100_000,
    batch_events: BatchEvents = 20_000,
    landing: Annotated[Path | None, typer.Option(help="Drill on these landing files instead of generated ones.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the drill; a new one below .local/drills by default.")] = None,
    master: Master = LOCAL,
    airflow: Annotated[bool, typer.Option("--airflow", help="Run it as the DAG recovery_drill, through Airflow.")] = False,
) -> None:
    """Break it on purpose: ingest, be killed in the middle of a commit, recover, verify, report.

    PHASE@BATCH names where; the phases are listed by [bold]reprise show phases[/bold].
    """
    from spark_jobs.drill import Drill, run_drill

    chosen = Drill(pipeline, tuple(kill or ["detect.saved@3"]), events, batch_events, landing, out, master, airflow)
    raise typer.Exit(run_drill(chosen))


def arm(lake: LakeDir, kill: Annotated[list[str], typer.Option()]) -> None:
    """Make a new lake a drill's own and arm its faults."""
    from spark_jobs.faults.plan import FaultPlan, parse_fault
    from spark_jobs.lake.tables import Lake

    faults = [parse_fault(text) for text in kill]
    target = Lake(lake)
    plan = FaultPlan(target)
    if not target.has("event_log"):
        plan.allow()
    for fault in faults:
        plan.arm(fault)
        say(f"armed: SIGKILL at {fault.phase} of batch {fault.batch}")


def report(
    pipeline: PipelineFile,
    lake: LakeDir,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
) -> None:
    """Write the HTML report of a lake: verdict, timeline, replay, evidence. One file, opens offline.

    The exit code is the verdict's: 0 valid, 1 invalid, 2 unknown.
    """
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.report import summary_rows, write_report
    from spark_jobs.verify.verdict import Verdict

    facts = write_report(load_pipeline(pipeline), Lake(existing(lake)), out)
    for title, columns, rows in summary_rows(facts):
        table(title, columns, rows)
    say(f"report: {out}")
    raise typer.Exit(Verdict(facts["verdict"]).exit_code)


def _first(examples: list[dict[str, Any]]) -> str:
    return f"first: {examples[0]}" if examples else ""
