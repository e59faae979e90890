"""Pipelines as files: strict YAML in, frozen and fully checked configuration out.

Every mistake is reported with file and line, all of them at once, and with a suggestion where one is close.
Only YAML's safe subset is read; predicates are parsed, never evaluated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from schemas import complex_events, event_log
from schemas.types import ATTRIBUTE_TYPES, TIMESTAMP, attribute_type
from spark_jobs.cep.expressions import parse_predicate
from spark_jobs.cep.measures import Measures
from spark_jobs.cep.operator import Limits, Operator
from spark_jobs.cep.pattern import Pattern, parse_pattern
from spark_jobs.cep.terms import Terms
from spark_jobs.cep.windows import Window
from spark_jobs.cep.words import LARGEST_COUNT, duration, skip_policy, window_of
from spark_jobs.errors import ExpressionError, PipelineError, suggest

# Larger files than this are not pipelines; the bound keeps hostile YAML from exhausting memory.
MAX_FILE_BYTES = 1_000_000
Path_ = tuple[str, ...]
# The input of operators that read no other operator.
EVENT_LOG = "event_log"


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", text):
        raise ValueError(f"'{text}' is not a name; use small letters, digits and _, starting with a letter")
    return text


def _duration_text(text: Any) -> Any:
    """A bare number is a common slip; it deserves the message about units, not one about types."""
    if isinstance(text, int):
        text = str(text)
    if isinstance(text, str):
        duration(text)
    return text


def _type_word(text: str) -> str:
    if attribute_type(text) is None:
        if text.startswith("decimal"):
            raise ValueError(f"'{text}' is not a decimal type; write decimal(10,2); 38 digits are possible")
        raise ValueError(f"unknown type '{text}'{suggest(text, [*ATTRIBUTE_TYPES, 'decimal(10,2)'])}")
    return text


def _after_match(text: str) -> str:
    skip_policy(text)
    return text


def _truth(text: Any) -> Any:
    """YAML reads TRUE as a boolean; in a definition it is a predicate."""
    return str(text).upper() if isinstance(text, bool) else text


def _one_or_more(value: Any) -> Any:
    if value is None:
        raise ValueError("is empty; write event_log, the name of an operator, or a list of names")
    return [value] if isinstance(value, str) else value


def _attribute(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


Name = Annotated[str, AfterValidator(_name)]
Duration = Annotated[str, BeforeValidator(_duration_text)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Columns(_Strict):
    """Reprise's word: the log's own column. Where the log has no such column, null."""

    ts: str = "ts"
    type: str | None = "type"
    key: str | None = "key"
    source: str | None = None  # otherwise from the partition folder source=...
    source_seq: str | None = None  # otherwise from file and row
    arrival_ts: str | None = None  # otherwise the latest ts seen so far in the file


class Attribute(_Strict):
    """`amount: double` is short for `amount: {type: double}`."""

    type: Annotated[str, AfterValidator(_type_word)]
    column: str | None = None  # the log's own name, where it is another


class Source(_Strict):
    columns: Columns = Columns()
    attributes: dict[str, Annotated[Attribute, BeforeValidator(_attribute)]] = {}
    ts_unit: Literal["s", "ms", "us"] | None = None  # of integer time stamps
    quarantine_limit: float = Field(0.01, ge=0, le=1)
    buckets: int = Field(8, ge=1, le=4096)
    expectations: str | None = None  # a suite of one's own instead of expectations/incoming.yaml

    @cached_property
    def attribute_types(self) -> dict[str, pa.DataType]:
        return {name: attribute_type(attribute.type) for name, attribute in self.attributes.items()}

    @cached_property
    def schema(self) -> pa.Schema:
        return event_log.schema(self.attribute_types)


class WindowSpec(_Strict):
    """`{count, slide, per}`, `{time, slide}`, or `{open_when, close_when}` with `rows` or `time`."""

    count: int | None = Field(None, ge=1, le=LARGEST_COUNT)
    time: Duration | None = None
    slide: int | str | None = None
    per: Literal["key", "stream"] | None = None
    open_when: str | None = None
    close_when: str | None = None
    rows: int | None = Field(None, ge=1, le=LARGEST_COUNT)

    def window(self) -> Window:
        said = self.model_dump(exclude={"per"})
        if self.per is not None and self.count is None:
            raise ValueError("per: key or stream belongs to a count window")
        return window_of(**said, per_key=self.per == "key")


class LimitsSpec(_Strict):
    """What one key and window may use at the same time, before the job fails and says so."""

    runs: int = Field(default=Limits().runs, ge=1, le=10_000_000)
    length: int = Field(default=Limits().length, ge=1, le=1_000_000_000)


class OperatorSpec(_Strict):
    from_: Annotated[list[str], BeforeValidator(_one_or_more)] = Field([EVENT_LOG], alias="from", min_length=1)
    keep: bool = True  # false: its complex events only feed other operators, and may be trimmed once those have read them
    partition_by: str | None = None
    window: WindowSpec | None = None
    pattern: str
    define: dict[str, Annotated[str, BeforeValidator(_truth)]]
    subset: dict[str, list[str]] = {}
    within: Duration | None = None
    within_steps: Duration | None = None
    after_match: Annotated[str, AfterValidator(_after_match)] = "past last row"
    select: Literal["preferred", "all runs"] = "preferred"
    timed_out: bool = False
    measures: dict[str, str] = {}
    limits: LimitsSpec = LimitsSpec()

    @property
    def inputs(self) -> list[str]:
        """What it reads, in the order that decides ties."""
        return self.from_


class Pipeline(_Strict):
    """A checked pipeline. Use `load_pipeline`; `Pipeline.model_validate_json` is for tasks."""

    name: Name
    source: Source
    operators: dict[Name, OperatorSpec] = Field(min_length=1)
    allow_faults_in_any_lake: bool = False  # otherwise drills break only lakes of their own

    @cached_property
    def order(self) -> list[str]:
        """The operators so that each comes after those it reads; those of a circle, and what reads them, are left out."""
        order: list[str] = []
        while True:
            known = {EVENT_LOG, *order}
            ready = [name for name, spec in self.operators.items() if name not in known and set(spec.inputs) <= known]
            if not ready:
                return order
            order += ready

    @cached_property
    def built(self) -> dict[str, Operator]:
        """The operators, parsed and typed, each after those it reads."""
        built: dict[str, Operator] = {}
        for name in self.order:
            built[name] = self._build(name, self.input_types(name, built))
        return built

    @property
    def downstream(self) -> list[str]:
        """The operators that read others."""
        return [name for name, spec in self.operators.items() if spec.inputs != [EVENT_LOG]]

    def consumers(self, name: str) -> list[str]:
        """The operators that read an operator, or the log."""
        return [other for other, spec in self.operators.items() if name in spec.inputs]

    def input_types(self, name: str, built: Mapping[str, Operator]) -> dict[str, pa.DataType]:
        """What the predicates and measures of an operator may name: the columns of all its inputs, NULL where one has none."""
        types: dict[str, pa.DataType] = {}
        for column_types in self.types_by_input(name, built).values():
            types |= column_types
        return types

    def types_by_input(self, name: str, built: Mapping[str, Operator]) -> dict[str, dict[str, pa.DataType]]:
        return {
            upstream: expression_types(self.source) if upstream == EVENT_LOG else complex_types(built[upstream])
            for upstream in self.operators[name].inputs
        }

    @cached_property
    def measures(self) -> dict[str, pa.DataType]:
        """All measures of all operators: the variable part of `complex_events`."""
        return {name: type_ for operator in self.built.values() for name, type_ in operator.measured.types.items()}

    @cached_property
    def output_schema(self) -> pa.Schema:
        return complex_events.schema(self.measures)

    def fingerprint(self, operator: str) -> str:
        """Changes when the meaning of the operator, or of one it reads, does; a key that a later version adds leaves it."""
        attributes = sorted((name, str(type_)) for name, type_ in self.source.attribute_types.items())
        above = [self.fingerprint(name) for name in self.operators[operator].inputs if name != EVENT_LOG]
        return hashlib.sha256(f"{self.definition(operator)}{attributes}{above}".encode()).hexdigest()[:16]

    def definition(self, operator: str) -> str:
        """What an operator means, as in the file, as JSON."""
        return self.operators[operator].model_dump_json(by_alias=True, exclude_defaults=True, exclude={"limits", "keep"})

    def _build(self, name: str, types: Mapping[str, pa.DataType]) -> Operator:
        spec = self.operators[name]
        return Operator(
            name=name,
            pattern=parse_pattern(spec.pattern),
            define=spec.define,
            types=types,
            partition_by=spec.partition_by,
            window=spec.window.window() if spec.window else Window(),
            within=duration(spec.within) if spec.within else 0,
            within_steps=duration(spec.within_steps) if spec.within_steps else 0,
            after_match=skip_policy(spec.after_match),
            all_runs=spec.select == "all runs",
            timed_out=spec.timed_out,
            subsets={subset: tuple(members) for subset, members in spec.subset.items()},
            measures=spec.measures,
            limits=Limits(spec.limits.runs, spec.limits.length),
        )


def complex_types(operator: Operator) -> dict[str, pa.DataType]:
    """The complex events of an operator as events: their type is its name, their attributes are its measures."""
    numbers = dict.fromkeys(("sn", "x", "y", "ordinal"), pa.int64())
    return {**numbers, "type": pa.string(), "key": pa.string(), "ts": TIMESTAMP, **operator.measured.types}


def expression_types(source: Source) -> dict[str, pa.DataType]:
    """What predicates and measures may name."""
    internal = {"stream_ts", "bucket"}
    fixed = {field.name: field.type for field in event_log.FIXED if field.name not in internal}
    return {**fixed, **source.attribute_types}


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
            message = f"unknown key '{path[-1]}'{suggest(path[-1], _keys_at(path[:-1]))}"
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
    return part != "[key]" and not (isinstance(part, str) and part in ("int", "str"))


def _keys_at(path: Path_) -> list[str]:
    model: type[BaseModel]
    match path:
        case ():
            model = Pipeline
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
            model = OperatorSpec
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
    return problems or _graph_problems(pipeline) or _all_operator_problems(pipeline)


def _graph_problems(pipeline: Pipeline) -> list[tuple[Path_, str]]:
    """Inputs that do not exist, are named twice, or lead back to their reader."""
    problems: list[tuple[Path_, str]] = []
    known = [EVENT_LOG, *pipeline.operators]
    for name, spec in pipeline.operators.items():
        here = ("operators", name, "from")
        problems += [(here, f"no input '{i}'{suggest(i, known)}") for i in spec.inputs if i not in known]
        problems += [(here, f"'{i}' is given twice") for i in sorted({i for i in spec.inputs if spec.inputs.count(i) > 1})]
        if name == EVENT_LOG:
            problems.append((here[:2], f"'{EVENT_LOG}' is the log itself; choose another name"))
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
    spec: OperatorSpec,
    types: Mapping[str, pa.DataType],
    measures: dict[str, tuple[str, pa.DataType]],
) -> list[tuple[Path_, str]]:
    here = ("operators", name)
    problems: list[tuple[Path_, str]] = []
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
