"""The command line, used by people and DAGs alike. Heavy imports happen inside the commands that need them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from deltalake.exceptions import DeltaError
from rich.markup import escape

from spark_jobs.console import ERR, PROGRESS_FILE, WITH_PARENT, say, table
from spark_jobs.errors import RepriseError

if TYPE_CHECKING:
    from spark_jobs.detect import Detected
    from spark_jobs.lake.history import Attempt
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import Pipeline
    from spark_jobs.plan import OperatorPlan
    from spark_jobs.runner import Runner

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find row patterns in partitioned event logs on Spark, survive being killed, and prove it.\n\n"
    "A first look: [bold]reprise drill examples/card_probing.yaml[/bold]",
)

PipelineFile = Annotated[Path, typer.Argument(help="The pipeline file (YAML); examples are in examples/.")]
LakeDir = Annotated[Path, typer.Option("--lake", help="The folder of Delta tables; created if it does not exist.")]
LandingDir = Annotated[Path, typer.Option("--landing", help="The folder of landing files, in hive partitions. Never changed.")]
Master = Annotated[str, typer.Option(help="Spark master URL, or 'inline' to run without Spark (tiny logs, tests).")]
BatchEvents = Annotated[int, typer.Option("--batch-events", min=1, help="Events per micro-batch.")]
Shards = Annotated[int, typer.Option(min=1, help="Parallel tasks per micro-batch. Does not change the result.")]

LOCAL = "local[2]"
_KILL = (
    "PHASE@BATCH, or PHASE@BATCH:OPERATOR: SIGKILL the driver there, once; may be given several times. "
    "[dim]\\[default: detect.saved@3][/dim]"
)


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="The landing folder to write; must be empty.")],
    events: Annotated[int, typer.Option(help="How many events.")],
    types: Annotated[int, typer.Option(help="Event types, named a, b, c, ...")] = 10,
    keys: Annotated[int, typer.Option(help="Distinct keys.")] = 1000,
    sources: Annotated[int, typer.Option(help="Sources, each in partitions of its own.")] = 2,
    seed: Annotated[int, typer.Option(help="The same seed gives the same log.")] = 1,
    rate: Annotated[float, typer.Option(help="Events per second of event time.")] = 10.0,
    disorder: Annotated[float, typer.Option(help="Share of events that arrive late, 0 to 1.")] = 0.0,
    max_delay: Annotated[float, typer.Option(help="Largest delay of a late event in seconds.")] = 60.0,
    poison: Annotated[int, typer.Option(help="Rows made unusable, to see the quarantine at work.")] = 0,
    format: Annotated[str, typer.Option(help="parquet, jsonl or csv.")] = "parquet",
) -> None:
    """Write a synthetic event log in hive partitions (date, hour, source)."""
    from spark_jobs.generate import FORMATS, Recipe
    from spark_jobs.generate import generate as write

    if format not in FORMATS:
        raise RepriseError(f"unknown format '{format}'; known are {', '.join(FORMATS)}")
    recipe = Recipe(events, types, keys, sources, seed, rate, disorder, max_delay, poison, format)
    files = write(recipe, out)
    say(f"generated {events:,} events in {files} files below {out}")


@app.command()
def ingest(pipeline: PipelineFile, landing: LandingDir, lake: LakeDir, master: Master = LOCAL) -> None:
    """Validate, quarantine and number new landing files into the event log."""
    with _job(pipeline, lake, master, "ingest") as job:
        _ingest(job, landing)


@app.command()
def detect(
    pipeline: PipelineFile,
    lake: LakeDir,
    batch_events: BatchEvents = 1_000_000,
    shards: Shards = 2,
    master: Master = LOCAL,
) -> None:
    """Find the patterns in what the event log has, from the last savepoint on."""
    with _job(pipeline, _existing(lake), master, "detect") as job:
        _detect(job, batch_events, shards)


@app.command()
def recover(
    pipeline: PipelineFile,
    lake: LakeDir,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be replayed.")] = False,
    batch_events: BatchEvents = 1_000_000,
    shards: Shards = 2,
    master: Master = LOCAL,
) -> None:
    """Say what a recovery will replay, then do it: detect, with the plan before and the facts after.

    There is no other way to recover than to start: every start reads the last savepoint and replays its residual.
    """
    from spark_jobs.detect import Settings, detect_versions
    from spark_jobs.graph import Graph
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.plan import recovery_plan
    from spark_jobs.versions import resolve

    graph = Graph(load_pipeline(pipeline), Lake(_existing(lake)))
    versions = resolve(graph.lake, graph.pipeline, graph.admit)
    planned = recovery_plan(graph, versions)
    _show_plan(planned)
    if plan:
        return
    with _job(pipeline, lake, master, "detect") as job:
        done = detect_versions(graph, versions, job.runner, job.attempt, Settings(batch_events, shards))
    expected = {operator.operator: operator.replay for operator in planned}
    table(
        "what was replayed",
        ["operator", "planned", "replayed", "by shard", "new events", "matches", "seconds"],
        [[d.operator, expected[d.operator], *_replayed(d), d.events, d.matches, f"{d.first_batch:.1f}"] for d in done],
    )


@app.command()
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

    The event log is trimmed, and operators with [bold]keep: false[/bold]. What was trimmed can neither be verified nor be
    read by operators added later: verify first.
    """
    from spark_jobs.lake.history import Attempt
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.trim import trim as run_trim
    from spark_jobs.trim import vacuum
    from spark_jobs.versions import registry, retirable
    from spark_jobs.versions import retire as let_go

    loaded, target = load_pipeline(pipeline), Lake(_existing(lake))
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


@app.command()
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
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.versions import upgrade as new_versions

    graph = Graph(load_pipeline(pipeline), Lake(_existing(lake)))
    versions = new_versions(graph.lake, graph.pipeline, graph.admit, from_, again or [])
    for version in versions.values():
        if not version.current:
            begins = f"version {version.number} begins after event {version.after_sn:,}"
            say(f"{version.operator}: {begins}; 'reprise cut-over' makes it the current one")
    if all(version.current for version in versions.values()):
        say("no operator was changed: the versions of the pipeline file are the current ones")
    with _job(pipeline, lake, master, "detect") as job:
        _tell_detected(detect_versions(graph, versions, job.runner, job.attempt, Settings(batch_events, shards)))


@app.command("cut-over")
def cut_over(pipeline: PipelineFile, lake: LakeDir) -> None:
    """Make the versions that the pipeline file defines the current ones, all in one commit.

    They must have come as far as those they replace. The output of the old versions stays in the table.
    """
    from spark_jobs.cutover import cut_over as run_cut_over
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline

    done = run_cut_over(load_pipeline(pipeline), Lake(_existing(lake)))
    for version in done:
        say(f"{version.operator}: version {version.number} is the current one now")
    if not done:
        say("nothing to do: every operator of the pipeline file is the current version")


@app.command()
def run(
    pipeline: PipelineFile,
    landing: LandingDir,
    lake: LakeDir,
    batch_events: BatchEvents = 1_000_000,
    shards: Shards = 2,
    master: Master = LOCAL,
) -> None:
    """Ingest and detect in one go."""
    with _job(pipeline, lake, master, "run") as job:
        _ingest(job, landing)
        _detect(job, batch_events, shards)


@app.command()
def reference(pipeline: PipelineFile, lake: LakeDir) -> None:
    """Make the reference run: the whole log in one pass, without the engine and without recovery."""
    from spark_jobs.lake.scan import open_log
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.verify.job import make_reference

    loaded = load_pipeline(pipeline)
    target = Lake(_existing(lake))
    log = open_log(target, loaded.source.schema)
    for name in loaded.order:
        found = make_reference(loaded, name, target, log, log.last_sn)
        say(f"reference run of {name}: {found.num_rows:,} matches in {log.last_sn:,} events")


@app.command()
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

    results = run_verification(load_pipeline(pipeline), Lake(_existing(lake)))
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


@app.command()
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


@app.command(hidden=True)
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


@app.command(hidden=True)
def warm_up() -> None:
    """Compile the kernels and prepare quick starts of Spark; part of the set-up, useful but not needed."""
    import tempfile

    from spark_jobs.cep import matcher
    from spark_jobs.lake.tables import Lake
    from spark_jobs.recovery import sets
    from spark_jobs.runner import make_class_archive
    from spark_jobs.verify import reference

    matcher.warm_up()
    sets.warm_up()
    reference.warm_up()
    with tempfile.TemporaryDirectory() as folder:
        make_class_archive(Lake(folder))


@app.command()
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

    facts = write_report(load_pipeline(pipeline), Lake(_existing(lake)), out)
    for title, columns, rows in summary_rows(facts):
        table(title, columns, rows)
    say(f"report: {out}")
    raise typer.Exit(Verdict(facts["verdict"]).exit_code)


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="savepoints, matches, versions, history, quarantine, verdicts or phases.")],
    lake: Annotated[Path | None, typer.Option(help="The lake folder.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most, the last ones.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per row.")] = False,
) -> None:
    """Look into a lake."""
    from spark_jobs.show import rows_of

    columns, rows = rows_of(what, lake, limit)
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(dict(zip(columns, row, strict=True)), default=str) + "\n")
    else:
        table(what, columns, rows)


@app.command()
def explain(
    pipeline: PipelineFile,
    operator: Annotated[str | None, typer.Option(help="Only this operator; all of them by default.")] = None,
    sql: Annotated[
        str | None,
        typer.Option(help="A MATCH_RECOGNIZE query over the pipeline's columns instead: its text, or a file with it."),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture of the automaton to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per operator.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 if there are warnings.")] = False,
) -> None:
    """Say what the engine will do: automaton, predicates, matching, what a replay needs, warnings. Runs nothing."""
    from spark_jobs.errors import suggest
    from spark_jobs.explain import explain as describe
    from spark_jobs.explain import operator_of_sql
    from spark_jobs.picture import draw
    from spark_jobs.pipeline import EVENT_LOG, expression_types, load_pipeline

    loaded = load_pipeline(pipeline)
    if operator is not None and sql is not None:
        raise RepriseError("--operator names one of the pipeline's own, --sql brings another; give one of the two")
    if operator is not None and operator not in loaded.built:
        raise RepriseError(f"pipeline {loaded.name} has no operator '{operator}'{suggest(operator, list(loaded.built))}")
    chosen = [(built, "") for name, built in loaded.built.items() if operator in (None, name)]
    if sql is not None:
        chosen = [operator_of_sql(sql, expression_types(loaded.source))]
    if svg is not None and len(chosen) > 1:
        names = ", ".join(built.name for built, _ in chosen)
        raise RepriseError(f"a picture shows one operator; choose one of {names} with --operator")
    upstream = {name: [] if spec.inputs == [EVENT_LOG] else spec.inputs for name, spec in loaded.operators.items()}
    found = [describe(built, keys or None, upstream.get(built.name, []) if sql is None else []) for built, keys in chosen]
    if as_json:
        for explanation in found:
            sys.stdout.write(json.dumps(explanation.as_dict()) + "\n")
    else:
        sys.stdout.write("\n\n".join(explanation.as_text() for explanation in found) + "\n")
    if svg is not None:
        built = chosen[0][0]
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(draw(built.automaton, f"{built.name}: {built.pattern.text}", built.define), encoding="utf-8")
        if not as_json:
            say(f"picture: {svg}")
    raise typer.Exit(1 if strict and any(explanation.warnings for explanation in found) else 0)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="Which bars to measure: loop, engine or savepoints.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per bar.")] = False,
    master: Master = LOCAL,
) -> None:
    """Measure and compare with the bars of an issue. Exit code 1 if one falls short."""
    from bench import BENCHES
    from spark_jobs.errors import suggest

    if name not in BENCHES:
        raise RepriseError(f"unknown benchmark '{name}'{suggest(name, list(BENCHES))}")
    bars = BENCHES[name](master)
    for bar in bars:
        if as_json:
            sys.stdout.write(json.dumps(bar.as_dict()) + "\n")
    if not as_json:
        table(
            f"bench {name}",
            ["bar", "value", "limit", "ok"],
            [[b.bar, b.shown, b.limit_shown, "yes" if b.ok else "NO"] for b in bars],
        )
    raise typer.Exit(0 if all(bar.ok for bar in bars) else 1)


def main() -> None:
    """Entry point: errors a user can act on are sentences, not stack traces."""
    if os.environ.get(WITH_PARENT):
        _die_with_parent()
    try:
        app()
    except RepriseError as error:
        ERR.print(f"[bold red]error:[/bold red] {escape(str(error))}")
        if os.environ.get(PROGRESS_FILE):
            say(f"error: {error}")
        raise SystemExit(error.exit_code) from None
    except (OSError, DeltaError, pa.ArrowException) as error:
        ERR.print(f"[bold red]error:[/bold red] {type(error).__name__}: {escape(str(error))}")
        ERR.print("A file or a table could not be read or written. What was committed before stands.")
        raise SystemExit(1) from None


def _die_with_parent() -> None:
    """An Airflow task that is killed takes its job along; an orphan would be fenced, but it would still burn CPU."""
    import ctypes
    import signal

    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


@dataclass(frozen=True)
class _Job:
    """What ingest and detect need."""

    pipeline: Pipeline
    lake: Lake
    runner: Runner
    attempt: Attempt


@contextmanager
def _job(pipeline: Path, lake: Path, master: str, name: str) -> Iterator[_Job]:
    """Load the pipeline, begin an attempt, start Spark in the background; record how it ended."""
    from spark_jobs.lake.history import Attempt
    from spark_jobs.lake.tables import Lake
    from spark_jobs.pipeline import load_pipeline
    from spark_jobs.runner import open_runner

    loaded, target = load_pipeline(pipeline), Lake(lake)
    attempt = Attempt(target, name, say)
    ended = "error"
    try:
        with open_runner(master, target, name) as runner:
            yield _Job(loaded, target, runner, attempt)
        ended = "done"
    finally:
        attempt.record("end", ended)


def _ingest(job: _Job, landing: Path) -> None:
    from spark_jobs.ingest import ingest

    done = ingest(job.pipeline, landing, job.lake, job.runner, job.attempt)
    if not done.files:
        say(f"nothing new below {landing}: {done.known_files} files are in the log already; it ends at event {done.last_sn:,}")
        return
    counts = {
        "delivered twice": done.duplicates,
        "quarantined": done.quarantined,
        "files known by content": done.known_files,
    }
    also = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
    say(
        f"ingested {done.accepted:,} of {done.rows:,} rows from {done.files} files{also}; "
        f"the log ends at event {done.last_sn:,}"
    )


def _detect(job: _Job, batch_events: int, shards: int) -> None:
    from spark_jobs.detect import Settings, detect

    _tell_detected(detect(job.pipeline, job.lake, job.runner, job.attempt, Settings(batch_events, shards)))


def _replayed(done: Detected) -> list[object]:
    if not done.batches:
        return ["nothing", "nothing new to go on with"]
    return [done.replayed, ", ".join(f"{shard:,}" for shard in done.by_shard)]


def _tell_detected(detected: list[Detected]) -> None:
    for done in detected:
        if done.batches:
            batches = "1 batch" if done.batches == 1 else f"{done.batches} batches"
            say(f"{done.operator}: {done.events:,} events in {batches}, {done.matches:,} matches")
        else:
            say(f"{done.operator}: nothing new; the output covers all {done.resumed_at:,} events of the log")


def _show_plan(planned: list[OperatorPlan]) -> None:
    columns = ["operator", "shard", "savepoint", "SN_seed", "SN_trim", "to replay", "of", "savepoint bytes"]
    rows: list[list[object]] = []
    for operator in planned:
        if not operator.shards:
            rows.append([operator.operator, "", operator.note, "", "", operator.replay, operator.processed, ""])
        for shard in operator.shards:
            savepoint = f"batch {shard.batch}" + (f", version {shard.version}" if shard.version > 1 else "")
            numbers = [shard.seed, shard.trim_sn, shard.replay, shard.processed, shard.savepoint_bytes]
            rows.append([operator.operator, shard.shard, savepoint, *numbers])
    table("plan: what a start replays", columns, rows)
    for operator in planned:
        if operator.shards:
            say(
                f"{operator.operator}: {operator.replay:,} of {operator.processed:,} processed events, "
                f"{operator.read_bytes:,} bytes to read, about {operator.seconds:.1f} s after start-up"
            )


def _existing(lake: Path) -> Path:
    if not lake.is_dir():
        raise RepriseError(f"lake {lake} does not exist; ingest into it first")
    return lake


def _first(examples: list[dict[str, Any]]) -> str:
    return f"first: {examples[0]}" if examples else ""
