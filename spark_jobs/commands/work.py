"""The work itself: generate a log, ingest it, find the patterns, recover."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.commands.common import (
    LOCAL,
    BatchEvents,
    Job,
    LakeDir,
    LandingDir,
    Master,
    PipelineFile,
    Replica,
    Shards,
    existing,
    open_job,
)
from spark_jobs.console import say, table
from spark_jobs.errors import RepriseError

if TYPE_CHECKING:
    from spark_jobs.detect import Detected
    from spark_jobs.plan import OperatorPlan


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
    delay: Annotated[
        list[str] | None, typer.Option(help="'s1 from 20 s for 50 s by 3 s [every 10 s]'; once per delay.")
    ] = None,
    jitter: Annotated[str, typer.Option(help="Random delay of every event, up to this, such as '2 s'.")] = "",
    burst: Annotated[list[str] | None, typer.Option(help="'from 20 s for 5 s times 10'; once per burst.")] = None,
    poison: Annotated[int, typer.Option(help="Rows made unusable, to see the quarantine at work.")] = 0,
    format: Annotated[str, typer.Option(help="parquet, jsonl or csv.")] = "parquet",
) -> None:
    """Write a synthetic event log in hive partitions (date, hour, source)."""
    from spark_jobs.delays import parse_burst, parse_delay, parse_jitter
    from spark_jobs.generate import FORMATS, Recipe
    from spark_jobs.generate import generate as write

    if format not in FORMATS:
        raise RepriseError(f"unknown format '{format}'; known are {', '.join(FORMATS)}")
    recipe = Recipe(
        events, types, keys, sources, seed, rate, disorder, max_delay, poison, format,
        delays=tuple(parse_delay(text) for text in delay or ()),
        jitter=parse_jitter(jitter),
        bursts=tuple(parse_burst(text) for text in burst or ()),
    )  # fmt: skip
    files = write(recipe, out)
    say(f"generated {events:,} events in {files} files below {out}")


def ingest(pipeline: PipelineFile, landing: LandingDir, lake: LakeDir, master: Master = LOCAL) -> None:
    """Validate, quarantine and number new landing files into the event log."""
    with open_job(pipeline, lake, master, "ingest") as job:
        _ingest(job, landing)


def detect(
    pipeline: PipelineFile,
    lake: LakeDir,
    batch_events: BatchEvents = 1_000_000,
    shards: Shards = 2,
    master: Master = LOCAL,
    replica: Replica = None,
) -> None:
    """Find the patterns in what the event log has, from the last savepoint on."""
    if replica is None and _replicas(pipeline) > 1:
        _detect_replicated(pipeline, existing(lake), batch_events, shards, master)
        return
    with open_job(pipeline, existing(lake), master, "detect", replica) as job:
        _detect(job, batch_events, shards, replica)


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
    from spark_jobs.pipeline_file import load_pipeline
    from spark_jobs.plan import recovery_plan
    from spark_jobs.versions import resolve

    graph = Graph(load_pipeline(pipeline), Lake(existing(lake)))
    versions = resolve(graph.lake, graph.pipeline, graph.admit)
    planned = recovery_plan(graph, versions)
    _show_plan(planned)
    if plan:
        return
    with open_job(pipeline, lake, master, "detect") as job:
        done = detect_versions(graph, versions, job.runner, job.attempt, Settings(batch_events, shards))
    expected = {operator.operator: operator.replay for operator in planned}
    table(
        "what was replayed",
        ["operator", "planned", "replayed", "by shard", "new events", "matches", "seconds"],
        [[d.operator, expected[d.operator], *_replayed(d), d.events, d.matches, f"{d.first_batch:.1f}"] for d in done],
    )


def run(
    pipeline: PipelineFile,
    landing: LandingDir,
    lake: LakeDir,
    batch_events: BatchEvents = 1_000_000,
    shards: Shards = 2,
    master: Master = LOCAL,
) -> None:
    """Ingest and detect in one go."""
    replicated = _replicas(pipeline) > 1
    with open_job(pipeline, lake, master, "ingest" if replicated else "run") as job:
        _ingest(job, landing)
        if not replicated:
            _detect(job, batch_events, shards)
    if replicated:
        _detect_replicated(pipeline, lake, batch_events, shards, master)


def _ingest(job: Job, landing: Path) -> None:
    from spark_jobs.ingest import ingest

    done = ingest(job.pipeline, landing, job.lake, job.runner, job.attempt)
    if not done.files and not done.known_files:
        say(
            f"there is no landing file below {landing}; files are looked for as date=../hour=../source=../*.parquet, .jsonl or "
            f".csv. The log ends at event {done.last_sn:,}"
        )
        return
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


def _detect(job: Job, batch_events: int, shards: int, replica: int | None = None) -> None:
    from spark_jobs.detect import Settings, detect

    settings = Settings(batch_events, shards)
    if replica is None:
        tell_detected(detect(job.pipeline, job.lake, job.runner, job.attempt, settings))
        return
    from spark_jobs.replication.outgoing import Outgoing
    from spark_jobs.replication.protocol import Group, lowest_latency, lowest_number

    recovery = job.pipeline.recovery
    if replica >= recovery.replicas:
        raise RepriseError(f"there is no replica {replica}: the pipeline file says that there are {recovery.replicas}")
    group = Group(recovery.replicas, recovery.period, lowest_number if job.pipeline.ordering else lowest_latency)
    with Outgoing(replica, group, job.pipeline.name, job.lake, job.attempt) as outgoing:
        done = detect(job.pipeline, job.lake, job.runner, job.attempt, settings, outgoing.run)
    published = ", ".join(f"{d.batches} batches of {d.operator}" for d in done)
    job.attempt.say(f"all is published, by this replica: {published}")


def _replicas(pipeline: Path) -> int:
    from spark_jobs.pipeline_file import load_pipeline

    return load_pipeline(pipeline).recovery.replicas


def _detect_replicated(pipeline: Path, lake: Path, batch_events: int, shards: int, master: str) -> None:
    from spark_jobs.replication.processes import run_replicas

    words = ["detect", str(pipeline.resolve()), "--lake", str(lake.resolve()), "--master", master]
    words += ["--batch-events", str(batch_events), "--shards", str(shards)]
    if code := run_replicas(words, _replicas(pipeline), say):
        raise typer.Exit(code)


def _replayed(done: Detected) -> list[object]:
    if not done.batches and not done.replayed:
        return ["nothing", "nothing new to go on with"]
    return [done.replayed, ", ".join(f"{shard:,}" for shard in done.by_shard)]


def tell_detected(detected: list[Detected]) -> None:
    for done in detected:
        if done.batches:
            batches = "1 batch" if done.batches == 1 else f"{done.batches} batches"
            say(f"{done.operator}: {done.events:,} events in {batches}, {done.matches:,} matches")
        else:
            say(f"{done.operator}: nothing new; all {done.resumed_at:,} events of the log were processed before")


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
