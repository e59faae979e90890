"""Proof: the reference run, verification, drills and their reports."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from spark_jobs.commands.common import (
    LOCAL,
    BatchEvents,
    LakeDir,
    Master,
    PipelineFile,
    existing,
)
from spark_jobs.console import OUT, say, table
from spark_jobs.errors import RepriseError

if TYPE_CHECKING:
    from spark_jobs.drills.campaign import Result
    from spark_jobs.drills.drill import Outcome
    from spark_jobs.faults.fault import Fault
    from spark_jobs.pipeline import Pipeline

DrillMaster = Annotated[
    str, typer.Option(help="Spark master URL, 'cluster' for a master and two workers on loopback, or 'inline'.")
]
_FAULT = (
    "KIND:PHASE@BATCH\\[:OPERATOR]\\[/SHARD]\\[#REPLICA]\\[*TIMES], KIND:SECONDSs, or KIND:PARTITION for faults of the input; "
    "several with commas or by repeating the option. [dim]\\[default: kill_driver:detect.saved@3][/dim]"
)
DEFAULT_FAULT = "kill_driver:detect.saved@3"


def reference(pipeline: PipelineFile, lake: LakeDir, master: Master = LOCAL) -> None:
    """Make the reference run: the whole log in one pass, without the engine and without recovery."""
    from spark_jobs.lake.scan import open_log
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline
    from spark_jobs.verify.job import SparkWhenLarge, make_reference

    loaded = load_pipeline(pipeline)
    target = Lake(existing(lake))
    log = open_log(target, loaded.source.schema)
    with SparkWhenLarge(master, target) as runner:
        for name in loaded.order:
            found = make_reference(loaded, name, target, log, log.last_sn, runner=runner)
            say(f"reference run of {name}: {found.rows:,} matches in {log.last_sn:,} events")


def verify(
    pipeline: PipelineFile,
    lake: LakeDir,
    full: Annotated[
        bool, typer.Option("--full/--no-full", help="Compare everything anew, also what a valid verdict covers.")
    ] = False,
    master: Master = LOCAL,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per operator.")] = False,
) -> None:
    """Compare what was published since the last valid verdict with the reference run. Spark is started only if that is much.

    Exit code 0: valid, 1: invalid, 2: unknown.
    """
    from spark_jobs.drills.judge import judge
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline
    from spark_jobs.verify.job import INCREMENTAL, SparkWhenLarge
    from spark_jobs.verify.verdict import worst

    target = Lake(existing(lake))
    with SparkWhenLarge(master, target) as runner:
        results = judge(load_pipeline(pipeline), target, runner, full=full, announce=say)
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
        if result.mode == INCREMENTAL:
            since += f"; compared since the last valid verdict, from match {result.from_ordinal:,} on"
        say(f"verdict on {result.operator}: {result.verdict.value}, {result.matches:,} matches in {events:,} events{since}")
    raise typer.Exit(worst(result.verdict for result in results).exit_code)


def drill(
    pipeline: PipelineFile,
    fault: Annotated[list[str] | None, typer.Option(help=_FAULT)] = None,
    plan: Annotated[Path | None, typer.Option(help="A fault plan (YAML) instead of, or besides, --fault.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draw a fault from this seed.")] = None,
    events: Annotated[int, typer.Option(help="Events to generate.")] = 100_000,
    batch_events: BatchEvents = 20_000,
    landing: Annotated[Path | None, typer.Option(help="Drill on a copy of these landing files, not on generated ones.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the drill; a new one below .local/drills by default.")] = None,
    master: DrillMaster = LOCAL,
    airflow: Annotated[bool, typer.Option("--airflow", help="Run it as the DAG recovery_drill, through Airflow.")] = False,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds after which the drill is ended and unknown.")] = 900,
) -> None:
    """Break it on purpose: ingest, be broken in the middle of the work, recover, verify, report.

    Faults are listed by [bold]reprise show faults[/bold], phases by [bold]reprise show phases[/bold]. The exit code is the
    verdict's: 0 valid, 1 invalid, 2 unknown.
    """
    from spark_jobs.drills.drill import Drill, run_drill
    from spark_jobs.pipeline_file import load_pipeline

    batches = 1 if landing else max(1, events // batch_events)
    faults = _faults(fault, plan, seed, load_pipeline(pipeline), batches, master)
    chosen = Drill(pipeline, tuple(faults), events, batch_events, landing, out, master, airflow, time_limit)
    OUT.print(f"[bold]Recovery drill[/bold] of {pipeline}: {', '.join(map(str, faults))}")
    outcome = run_drill(chosen, _show_progress)
    _finish(outcome)
    raise typer.Exit(outcome.verdict.exit_code)


def campaign(
    runs: Annotated[int, typer.Option(min=1, help="How many drills.")] = 40,
    seed: Annotated[int, typer.Option(help="The same seed draws the same plans.")] = 1,
    first: Annotated[int, typer.Option(min=1, help="The number of the first run, to repeat one.")] = 1,
    master: Annotated[
        list[str] | None, typer.Option(help="Masters, taken in turn: inline, a Spark master URL, or cluster; repeat it.")
    ] = None,
    pipeline: Annotated[list[Path] | None, typer.Option(help="Pipeline files, taken in turn; the examples by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the campaign; one below .local/campaigns by default.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Drills at the same time.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the lakes of valid runs too.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the campaign in --out, which was interrupted.")] = False,
    simulate: Annotated[int, typer.Option(min=0, help="Also simulate the protocol with so many seeds, without processes.")] = 0,
) -> None:
    """Many drills with faults drawn from a seed; stops at the first invalid one, keeps the evidence, and sums up.

    Exit code 0: all valid, 1: one was invalid, 2: some could not be judged.
    """
    from spark_jobs.drills.campaign import Campaign, run_campaign
    from spark_jobs.drills.campaign_report import summary_tables, write_campaign_report
    from spark_jobs.verify.verdict import Verdict, worst

    if resume and out is None:
        raise RepriseError("--resume needs --out: the folder of the campaign to go on with. Nothing was started.")
    chosen = Campaign(runs, seed, first, out=out, parallel=parallel, keep=keep, resume=resume)
    chosen = replace(chosen, masters=tuple(master)) if master else chosen
    chosen = replace(chosen, pipelines=tuple(pipeline)) if pipeline else chosen
    simulated = _simulated(seed, simulate, parallel) if simulate else None
    found = run_campaign(chosen, _tell_run, simulated)
    write_campaign_report(found, Path(found["folder"]) / "campaign.html")
    for title, columns, rows in summary_tables(found):
        table(title, columns, rows)
    for failure in found["failures"]:
        OUT.print(f"[red]{failure['verdict']}[/red] run {failure['number']}: {escape(failure['why'])}")
        OUT.print(f"  evidence: {failure['evidence']}\n  repeat it: {escape(failure['repeat'])}")
    OUT.print(f"report: {found['folder']}/campaign.html")
    verdicts = [Verdict(name) for name, count in found["verdicts"].items() if count]
    if simulated and simulated["anomalies"]:
        verdicts.append(Verdict.INVALID)
    raise typer.Exit(worst(verdicts).exit_code)


def docs(lake: LakeDir) -> None:
    """Build the Data Docs of a lake: every expectation, every result; pages that open offline."""
    from spark_jobs.lake.tables import Lake
    from spark_jobs.verify.expectations import build_docs

    say(f"docs: {build_docs(Lake(existing(lake)))}")


def arm(
    pipeline: PipelineFile,
    lake: LakeDir,
    fault: Annotated[list[str] | None, typer.Option(help=_FAULT)] = None,
    plan: Annotated[str, typer.Option(help="A fault plan (YAML).")] = "",
    seed: Annotated[str, typer.Option(help="Draw a fault from this seed.")] = "",
    batches: Annotated[int, typer.Option(min=1, help="How many batches there will be, to draw one of them.")] = 1,
    master: DrillMaster = LOCAL,
) -> None:
    """Arm faults in a lake that is yet to be made, or whose pipeline file allows it."""
    from spark_jobs.faults.fault import check_against
    from spark_jobs.faults.plan import BY_PIPELINE, FaultPlan
    from spark_jobs.faults.strike import TASK_PROCESS
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline

    loaded, target = load_pipeline(pipeline), Lake(lake)
    if seed and not re.fullmatch(r"-?[0-9]+", seed):
        raise RepriseError(f"--seed takes a whole number, not '{seed}'. Nothing was armed.")
    drawn = int(seed) if seed else None
    faults = _faults(fault, Path(plan) if plan else None, drawn, loaded, batches, master)
    for one in faults:
        check_against(one, list(loaded.operators), master, tasks_are_processes=TASK_PROCESS in os.environ)
    armed = FaultPlan(target)
    if not target.has("event_log"):
        armed.allow()
    elif loaded.allow_faults_in_any_lake:
        armed.allow(BY_PIPELINE)
    elif armed.why == BY_PIPELINE:  # it did once
        armed.forbid()
    for one in faults:
        armed.arm(one)
        say(f"armed: {one}: {one.known.breaks}")
    if armed.why == BY_PIPELINE:
        say(f"to disarm, remove the folder {armed.folder}")


def deliver(
    pipeline: PipelineFile,
    lake: LakeDir,
    given: Annotated[Path, typer.Option(help="The landing files to copy; only read.")],
    landing: Annotated[Path, typer.Option(help="The drill's own copy.")],
    held: Annotated[Path, typer.Option(help="Where partitions wait that come late.")],
    late: Annotated[bool, typer.Option("--late", help="Deliver what was held back.")] = False,
) -> None:
    """Copy landing files for a drill, and do to them what its input faults say."""
    from spark_jobs.drills.steps import SKIPPED
    from spark_jobs.faults.catalogue import Group
    from spark_jobs.faults.inputs import copy_files, deliver_late, spoil
    from spark_jobs.lake.history import Attempt
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline

    source, target = load_pipeline(pipeline).source, Lake(lake)
    numbered = source.columns.source_seq is not None
    if late:
        files = deliver_late(landing, held)
        say(f"delivered {files} files late" if files else "nothing was held back")
        raise typer.Exit(0 if files else SKIPPED)
    copy_files(given, landing)
    attempt = Attempt(target, "deliver", say)
    for one in attempt.waiting:
        if one.known.group is Group.INPUT:
            attempt.spoil(one, lambda f: spoil(f, target, landing, held, source.columns.ts, numbered=numbered))
    attempt.record("end", "done")


def report(
    pipeline: PipelineFile,
    lake: LakeDir,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
) -> None:
    """Write the HTML report of a lake: verdict, timeline, replay, evidence. One file, opens offline.

    The exit code is the verdict's: 0 valid, 1 invalid, 2 unknown.
    """
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline_file import load_pipeline
    from spark_jobs.report import summary_rows, write_report
    from spark_jobs.verify.verdict import Verdict

    facts = write_report(load_pipeline(pipeline), Lake(existing(lake)), out)
    for title, columns, rows in summary_rows(facts):
        table(title, columns, rows)
    say(f"report: {out}")
    raise typer.Exit(Verdict(facts["verdict"]).exit_code)


def _first(examples: list[dict[str, Any]]) -> str:
    return f"first: {examples[0]}" if examples else ""


def _faults(
    texts: list[str] | None, plan: Path | None, seed: int | None, pipeline: Pipeline, batches: int, master: str
) -> list[Fault]:
    """All faults that were asked for, in whatever form."""
    from spark_jobs.drills.cluster import CLUSTER
    from spark_jobs.faults.fault import FORM, parse_fault
    from spark_jobs.faults.script import World, draw, load_plan

    cluster = master == CLUSTER or master.startswith("spark://")
    world = World(
        operators=tuple(pipeline.operators),
        batches=batches,
        downstream=tuple(pipeline.downstream),
        unkeyed=tuple(pipeline.unkeyed),
        spark=master != "inline",
        cluster=cluster,
    )
    faults = [parse_fault(text) for one in texts or [] for text in one.split(",") if text.strip()]
    faults += load_plan(plan, world) if plan else []
    faults += draw(seed, world) if seed is not None else []
    if texts and not faults:
        raise RepriseError(f"--fault names no fault; write {FORM}, or leave it out for {DEFAULT_FAULT}. Nothing was started.")
    return faults or [parse_fault(DEFAULT_FAULT)]


def _simulated(seed: int, count: int, parallel: int) -> dict[str, int]:
    """Schedules of the commit protocol without processes: all short ones, and so many drawn from seeds."""
    from spark_jobs.simulator.schedules import simulate_many

    done = anomalies = 0
    for some in simulate_many(seed, count, parallel):
        done += some.schedules
        anomalies += len(some.anomalies)
        for one in some.anomalies:
            OUT.print(f"[red]anomaly[/red] {escape(one)}")
    return {"schedules": done, "anomalies": anomalies}


def _tell_run(result: Result) -> None:
    colour = {"valid": "green", "invalid": "red"}.get(result.verdict, "yellow")
    faults = escape(", ".join(result.faults))
    OUT.print(
        f"[dim]{result.number:5}[/dim] [{colour}]{result.verdict:8}[/{colour}]"
        f"{result.seconds:6.1f} s  {result.pipeline} on {escape(result.master)}: {faults}"
    )


def _show_progress(line: str) -> None:
    at, _, text = line.partition(" ")
    at, text = (at, text) if re.fullmatch(r"[0-9.]+", at) else (str(time.time()), line)
    colour = "red" if text.startswith(("fault", "error")) else "green" if "resumes" in text or "valid" in text else ""
    shown = f"[{colour}]{escape(text)}[/{colour}]" if colour else escape(text)
    OUT.print(f"[dim]{time.strftime('%H:%M:%S', time.localtime(float(at)))}[/dim] {shown}")


def _finish(outcome: Outcome) -> None:
    """The small table at the end, from the facts that the report step has written."""
    from spark_jobs.report import reasons, summary_rows

    if outcome.facts:
        for title, columns, rows in summary_rows(outcome.facts):
            table(title, columns, rows)
        for reason in reasons(outcome.facts):
            OUT.print(f"[yellow]{escape(reason)}[/yellow]")
        if not any(operator["matches"] for operator in outcome.facts["operators"]):
            OUT.print("[yellow]no complex event was there to be lost: drill with more events, or another pipeline[/yellow]")
        OUT.print(f"report: {outcome.folder}/report.html")
    if outcome.why:
        OUT.print(f"[red]{escape(outcome.why)}[/red]")
    if not outcome.facts:
        OUT.print(f"There is no report. What happened is in {outcome.folder}/drill.log")
