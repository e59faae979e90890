"""Looking: into a lake, into a pattern, at the speed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from spark_jobs.commands.common import (
    LOCAL,
    Master,
    PipelineFile,
)
from spark_jobs.console import say, table
from spark_jobs.errors import RepriseError


def show(
    what: Annotated[
        str,
        typer.Argument(
            help="matches, standing, late, savepoints, versions, history, quarantine, verdicts, validations, metrics, "
            "phases, faults."
        ),
    ],
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
    from spark_jobs.explain import explain_stateful, operator_of_sql
    from spark_jobs.picture import draw
    from spark_jobs.pipeline import EVENT_LOG, expression_types
    from spark_jobs.pipeline_file import load_pipeline

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
    found = [
        explain_stateful(built, loaded.stateful[built.name])
        if sql is None and built.name in loaded.stateful
        else describe(built, keys or None, upstream.get(built.name, []) if sql is None else [])
        for built, keys in chosen
    ]
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


def bench(
    name: Annotated[str, typer.Argument(help="Which bars to measure, such as loop, engine, savepoints or replication.")],
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


def warm_up() -> None:
    """Compile the kernels and prepare quick starts of Spark; part of the set-up, useful but not needed."""
    import tempfile

    from spark_jobs.cep import matcher
    from spark_jobs.lake.tables import Lake
    from spark_jobs.recovery import sets
    from spark_jobs.runner import make_class_archive
    from spark_jobs.transactions import operators
    from spark_jobs.verify import records, reference

    matcher.warm_up()
    sets.warm_up()
    operators.warm_up()
    reference.warm_up()
    records.warm_up()
    with tempfile.TemporaryDirectory() as folder:
        make_class_archive(Lake(folder))
