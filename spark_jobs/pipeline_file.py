"""Pipeline files: strict YAML in, a checked pipeline out.

Every mistake is reported with file and line, all of them at once, and with a suggestion where one is close.
Only YAML's safe subset is read; predicates are parsed, never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pydantic import BaseModel, ValidationError

from schemas import complex_events, event_log
from spark_jobs.cep.expressions import parse_predicate
from spark_jobs.cep.measures import Measures
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.pattern import Pattern, parse_pattern
from spark_jobs.cep.terms import Terms
from spark_jobs.errors import ExpressionError, PipelineError, suggest
from spark_jobs.pipeline import (
    AGGREGATES,
    EVENT,
    EVENT_LOG,
    Attribute,
    BalanceSpec,
    Columns,
    HeavyHittersSpec,
    LimitsSpec,
    OperatorSpec,
    Ordering,
    Pipeline,
    Recovery,
    SaveSpec,
    Source,
    StatefulSpec,
    WindowSpec,
)
from spark_jobs.places import MAX_FILE_BYTES

# Garbage collection, a commit or a busy machine hold a process up for a tenth of a second now and then.
SHORTEST_HEARTBEAT = 0.1
Path_ = tuple[str, ...]


def load_pipeline(path: str | Path) -> Pipeline:
    """Read and check a pipeline file."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise PipelineError(f"{file}: larger than {MAX_FILE_BYTES:,} bytes, which no pipeline is")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(f"{file}: no such file. Pipelines to start from are in examples/.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{file}: cannot be read: {error}") from None
    return parse_pipeline(text, str(file))


def parse_pipeline(text: str, file: str) -> Pipeline:
    document, lines = _read_yaml(text, file)
    try:
        pipeline = Pipeline.model_validate(document)
    except ValidationError as error:
        raise _refuse(file, lines, _schema_problems(error)) from None
    problems = _meaning_problems(pipeline)
    if problems:
        raise _refuse(file, lines, problems)
    return pipeline


def _read_yaml(text: str, file: str) -> tuple[Any, dict[Path_, int]]:
    """The document, and the line of every key in it."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise PipelineError(
            f"{file}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}{_quote_hint(error)}"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PipelineError(f"{file}:1: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise PipelineError(f"{file}:1: a pipeline is a mapping with name, source and operators")
    lines: dict[Path_, int] = {}
    try:
        twice = _note_lines(node, (), lines)
    except RecursionError:
        raise PipelineError(f"{file}:1: the file contains itself through an alias (&, *)") from None
    if twice:
        raise _refuse(file, lines, [(key, f"'{key[-1]}' is given twice") for key in twice])
    return document, lines


def _quote_hint(error: yaml.MarkedYAMLError) -> str:
    return "; put texts with commas, quotes or colons into quotes" if "flow mapping" in str(error.context) else ""


def _note_lines(node: Any, path: Path_, lines: dict[Path_, int]) -> list[Path_]:
    lines.setdefault(path, node.start_mark.line + 1)
    twice: list[Path_] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            if below in lines:
                twice.append(below)
            lines[below] = key.start_mark.line + 1
            twice += _note_lines(value, below, lines)
    return twice


_COMMA = "inside { } a comma ends an entry, so put texts with commas into quotes"


def _schema_problems(error: ValidationError) -> list[tuple[Path_, str]]:
    problems: dict[Path_, str] = {}
    for item in error.errors():
        path = tuple(str(part) for part in item["loc"] if _is_key(part))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            others = [key for key in _keys_at(path[:-1]) if key != path[-1]]  # an operator of another kind may have it
            message = f"unknown key '{path[-1]}'{suggest(path[-1], others)}"
        elif item["type"] == "union_tag_invalid":
            path = (*path, "aggregate")
            kind = str(item["input"]["aggregate"])
            message = f"unknown aggregate '{kind}'{suggest(kind, AGGREGATES)}"
        elif item["type"] == "missing":
            message = f"'{path[-1]}' is missing"
            path = path[:-1]
        elif item["input"] is None and len(path) > 1 and path[-2] in ("define", "measures", "attributes"):
            message = f"'{path[-1]}' has no text; {_COMMA}"
        elif item["type"] == "too_short":
            message = "is empty; at least one is needed"
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = f"should be a mapping, not {item['input']!r}"
        elif item["type"].endswith("_type"):
            message = f"{message}, not {item['input']!r}"
        problems.setdefault(path, message)
    return list(problems.items())


def _is_key(part: Any) -> bool:
    """Pydantic adds the names of union members to a place; those are no keys of the file."""
    return not (isinstance(part, str) and (part.startswith("[") or part in ("int", "str")))


def _keys_at(path: Path_) -> list[str]:
    model: type[BaseModel]
    match path:
        case ():
            model = Pipeline
        case ("ordering",):
            model = Ordering
        case ("recovery",):
            model = Recovery
        case ("ordering", "checkpoint") | ("recovery", "save"):
            model = SaveSpec
        case ("source",):
            model = Source
        case ("source", "columns"):
            model = Columns
        case ("source", "attributes", _):
            model = Attribute
        case ("operators", _, "window"):
            model = WindowSpec
        case ("operators", _, "limits"):
            model = LimitsSpec
        case _:
            kinds = (OperatorSpec, HeavyHittersSpec, BalanceSpec)
            return list(dict.fromkeys(field.alias or name for kind in kinds for name, field in kind.model_fields.items()))
    return [field.alias or name for name, field in model.model_fields.items()]


def _meaning_problems(pipeline: Pipeline) -> list[tuple[Path_, str]]:
    """What only the whole file can tell: names, symbols, types."""
    problems: list[tuple[Path_, str]] = []
    for name in pipeline.source.attributes:
        here = ("source", "attributes", name)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name):
            problems.append((here, f"'{name}' is not a column name; use letters, digits and _, starting with a letter"))
        twins = [other for other in pipeline.source.attributes if other != name and other.lower() == name.lower()]
        if twins:
            problems.append((here, f"'{name}' and '{twins[0]}' differ in case only, which many engines cannot tell apart"))
        if name.lower() in event_log.FIXED_NAMES:
            problems.append((
                here,
                f"'{name}' is a column Reprise fills itself; choose another name with {{column: {name}, type: ..}}",
            ))
    return problems or [*_recovery_problems(pipeline), *_graph_problems(pipeline)] or _all_operator_problems(pipeline)


def _recovery_problems(pipeline: Pipeline) -> list[tuple[Path_, str]]:
    """What cannot be had of recovery where events are, or are not, put in order, and what goes with one strategy only."""
    problems: list[tuple[Path_, str]] = []
    save = pipeline.recovery.save
    if save is not None and save.speculative and pipeline.ordering is None:
        message = "without 'ordering' no event is speculative, so nothing would be saved; write {events: n} or adaptive"
        problems.append((("recovery", "save", "speculative"), message))
    if pipeline.recovery.strategy == "checkpoint" and pipeline.ordering is not None:
        message = "with 'ordering' savepoints hold the states of all shards already; leave 'strategy' out, 'save' works with it"
        problems.append((("recovery", "strategy"), message))
    return problems or _replication_problems(pipeline)


def _replication_problems(pipeline: Pipeline) -> list[tuple[Path_, str]]:
    recovery = pipeline.recovery
    if recovery.strategy != "replication":
        said = [key for key in ("f", "heartbeat") if getattr(recovery, key) is not None]
        return [(("recovery", key), f"'{key}' belongs to 'strategy: replication'") for key in said]
    if recovery.f is None:
        return [(("recovery",), "replication needs 'f', the number of replicas that may fail at the same time, such as f: 2")]
    if recovery.save is not None:
        return [
            (
                ("recovery", "save"),
                "with 'replication' whoever publishes a batch saves it, so that others can join; leave it out",
            )
        ]
    if recovery.period < SHORTEST_HEARTBEAT:
        here = ("recovery", "heartbeat")
        return [(here, f"a heartbeat of less than {SHORTEST_HEARTBEAT:g} s takes every pause of a process for its end")]
    if pipeline.ordering is not None and pipeline.ordering.speculation == "adaptive":
        why = "replicas are not equally fast, so each would speculate on something else; write a number from 0 to 1"
        return [(("ordering", "speculation"), f"'adaptive' does not go together with 'strategy: replication': {why}")]
    return []


def _graph_problems(pipeline: Pipeline) -> list[tuple[Path_, str]]:
    """Inputs that do not exist, are named twice, or lead back to their reader."""
    problems: list[tuple[Path_, str]] = []
    known = [EVENT_LOG, *pipeline.operators]
    if pipeline.ordering is not None and pipeline.stateful:
        here = ("operators", next(iter(pipeline.stateful)), "aggregate")
        problems.append((here, "with 'ordering', operators are patterns: a shared state takes events as they come"))
    for name, spec in pipeline.operators.items():
        here = ("operators", name, "from")
        if name in pipeline.stateful and spec.inputs != [EVENT_LOG]:
            problems.append((here, "an operator with 'aggregate' reads the event log only"))
        problems += [(here, f"no input '{i}'{suggest(i, known)}") for i in spec.inputs if i not in known]
        problems += [(here, f"'{i}' is given twice") for i in sorted({i for i in spec.inputs if spec.inputs.count(i) > 1})]
        if name == EVENT_LOG:
            problems.append((here[:2], f"'{EVENT_LOG}' is the log itself; choose another name"))
        if pipeline.ordering is not None and not spec.keep:
            kept = "with 'ordering', what was published may have to be taken back, so it is kept; leave out 'keep'"
            problems.append(((*here[:2], "keep"), kept))
    if not problems:
        for name in pipeline.operators:
            if name not in pipeline.order:
                problems.append((("operators", name, "from"), f"'{name}' reads its own output, or that of operators that do"))
    return problems


def _all_operator_problems(pipeline: Pipeline) -> list[tuple[Path_, str]]:
    problems: list[tuple[Path_, str]] = []
    measures: dict[str, tuple[str, pa.DataType]] = {}
    built: dict[str, Operator] = {}
    for name in pipeline.order:
        spec = pipeline.operators[name]
        if any(upstream != EVENT_LOG and upstream not in built for upstream in spec.inputs):
            continue  # what it reads has problems of its own; what follows from them helps nobody
        found = _input_problems(pipeline, name, built)
        types = pipeline.input_types(name, built)
        found = found or _operator_problems(pipeline, name, spec, types, measures)
        problems += found
        if not found:
            built[name] = pipeline._build(name, types)
    return problems


def _input_problems(pipeline: Pipeline, name: str, built: Mapping[str, Operator]) -> list[tuple[Path_, str]]:
    """Columns that two inputs have with different types, and measures that would hide what every event has."""
    problems: list[tuple[Path_, str]] = []
    seen: dict[str, tuple[str, pa.DataType]] = {}
    for upstream, types in pipeline.types_by_input(name, built).items():
        for taken in ("sn", "type"):
            if upstream in built and taken in built[upstream].measured.types:
                message = f"is the {'number' if taken == 'sn' else 'name'} of a complex event for '{name}', which reads it"
                problems.append((("operators", upstream, "measures", taken), f"'{taken}' {message}; choose another name"))
        for column, type_ in types.items():
            other, other_type = seen.setdefault(column, (upstream, type_))
            if other_type != type_:
                message = f"'{column}' is {other_type} in '{other}' and {type_} in '{upstream}'; give one of them another name"
                problems.append((("operators", name, "from"), message))
    return problems


def _operator_problems(
    pipeline: Pipeline,
    name: str,
    spec: OperatorSpec | StatefulSpec,
    types: Mapping[str, pa.DataType],
    measures: dict[str, tuple[str, pa.DataType]],
) -> list[tuple[Path_, str]]:
    here = ("operators", name)
    problems: list[tuple[Path_, str]] = []
    if isinstance(spec, StatefulSpec):
        return _stateful_problems(name, spec, types, measures)
    if spec.partition_by is not None and spec.partition_by not in types:
        problems.append((
            (*here, "partition_by"),
            f"unknown column '{spec.partition_by}'{suggest(spec.partition_by, list(types))}",
        ))
    try:
        if spec.window:
            spec.window.window()
    except ValueError as error:
        problems.append(((*here, "window"), str(error)))
    try:
        pattern = parse_pattern(spec.pattern)
    except ExpressionError as error:
        return [*problems, ((*here, "pattern"), _at_column(error))]
    for symbol in pattern.symbols:
        if symbol not in spec.define:
            close = suggest(symbol, list(spec.define))
            problems.append(((*here, "pattern"), f"symbol '{symbol}' is not defined{close}; TRUE would fit every event"))
    for symbol in spec.define:
        if symbol not in pattern.symbols:
            problems.append((
                (*here, "define", symbol),
                f"symbol '{symbol}' is not in the pattern '{spec.pattern}'{suggest(symbol, list(pattern.symbols))}",
            ))
    if problems:
        return problems
    problems = _expression_problems(name, spec, pattern, types, measures)
    if not problems:
        try:
            pipeline._build(name, types).check()
        except ExpressionError as error:
            key = next((key for words, key in _CHECKED.items() if str(error).startswith(words)), "pattern")
            problems.append(((*here, key), _at_column(error) if key == "pattern" else str(error)))
    return problems


def _stateful_problems(
    name: str, spec: StatefulSpec, types: Mapping[str, pa.DataType], measures: dict[str, tuple[str, pa.DataType]]
) -> list[tuple[Path_, str]]:
    here = ("operators", name)
    problems: list[tuple[Path_, str]] = []
    columns = {"partition_by": spec.partition_by} | ({"amount": spec.amount} if isinstance(spec, BalanceSpec) else {})
    for key, column in columns.items():
        if column not in types:
            problems.append(((*here, key), f"unknown column '{column}'{suggest(column, list(types))}"))
    if not problems and not pa.types.is_string(types[spec.partition_by]):
        problems.append(((*here, "partition_by"), f"'{spec.partition_by}' is {types[spec.partition_by]}; a text is needed"))
    if not problems and isinstance(spec, BalanceSpec) and not _exact(types[spec.amount]):
        problems.append((
            (*here, "amount"),
            f"'{spec.amount}' is {types[spec.amount]}, whose sums depend on the order of adding; declare it as int or "
            "decimal(18,2)",
        ))
    try:
        if spec.where is not None:
            parse_predicate(spec.where, types)
    except ExpressionError as error:
        problems.append(((*here, "where"), _at_column(error)))
    for word, text in spec.measures.items():
        try:
            type_ = Measures.parse({word: text}, (EVENT,), {}, types, False).types[word]
        except ExpressionError as error:
            problems.append(((*here, "measures", word), _at_column(error)))
        else:
            problems += _measure_problems(name, word, type_, measures)
    return problems


def _exact(type_: pa.DataType) -> bool:
    """Whole numbers, or decimals that are whole numbers of their smallest unit and fit into 64 bits."""
    return bool(pa.types.is_int64(type_) or (pa.types.is_decimal(type_) and type_.precision <= 18))


# How the messages of Operator.check() begin that are not about the pattern's text, and the key they are about.
_CHECKED = {"SUBSET": "subset", "AFTER MATCH": "after_match", "timed-out": "timed_out"}


def _expression_problems(
    name: str,
    spec: OperatorSpec,
    pattern: Pattern,
    types: Mapping[str, pa.DataType],
    measures: dict[str, tuple[str, pa.DataType]],
) -> list[tuple[Path_, str]]:
    """One text at a time, so that every problem is found and has its line."""
    here = ("operators", name)
    problems: list[tuple[Path_, str]] = []
    subsets = {
        subset: tuple(members)
        for subset, members in spec.subset.items()
        if subset not in pattern.symbols and set(members) <= set(pattern.symbols)
    }
    if len(subsets) < len(spec.subset):
        return []  # Operator.check() names the subset; texts that mention it would only repeat that
    for symbol, text in spec.define.items():
        try:
            Terms.parse({symbol: text}, pattern.symbols, subsets, types, False)
        except ExpressionError as error:
            problems.append(((*here, "define", symbol), _at_column(error)))
    for word, text in spec.measures.items():
        try:
            type_ = Measures.parse({word: text}, pattern.symbols, subsets, types, False).types[word]
        except ExpressionError as error:
            problems.append(((*here, "measures", word), _at_column(error)))
        else:
            problems += _measure_problems(name, word, type_, measures)
    for key in ("open_when", "close_when"):
        predicate = getattr(spec.window, key, None)
        try:
            if predicate is not None:
                parse_predicate(predicate, types)
        except ExpressionError as error:
            problems.append(((*here, "window", key), _at_column(error)))
    return problems


def _measure_problems(
    operator: str, name: str, type_: pa.DataType, measures: dict[str, tuple[str, pa.DataType]]
) -> list[tuple[Path_, str]]:
    here = ("operators", operator, "measures", name)
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name) or name in complex_events.FIXED_NAMES:
        taken = name in complex_events.FIXED_NAMES
        return [(here, f"'{name}' {'is taken by complex_events' if taken else 'is not a column name'}; choose another name")]
    if pa.types.is_null(type_):
        return [(here, f"'{name}' is always NULL, so it has no type")]
    if pa.types.is_duration(type_):
        return [(here, f"'{name}' is a length of time, which a table cannot hold; compare it, or give both time stamps")]
    other, other_type = measures.setdefault(name, (operator, type_))
    if other_type != type_:
        return [(here, f"'{name}' is {type_} here and {other_type} in operator '{other}'; one column has one type")]
    return []


def _at_column(error: ExpressionError) -> str:
    return f"{error} (at character {error.column} of the text)" if error.column else str(error)


def _refuse(file: str, lines: Mapping[Path_, int], problems: list[tuple[Path_, str]]) -> PipelineError:
    rows = []
    for path, message in problems:
        known = path
        while known not in lines and known:
            known = known[:-1]
        line = lines.get(known, 1)
        rows.append((line, f"{file}:{line}: {_one_line('.'.join(path)) or 'pipeline'}: {_one_line(message)}"))
    return PipelineError("\n".join(row for _, row in sorted(rows)))


def _one_line(text: str) -> str:
    """Keys and values may hold anything; a problem takes one line and cannot move the cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
