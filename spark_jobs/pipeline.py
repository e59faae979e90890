"""Pipelines: what a pipeline file says, frozen and with its meaning; pipeline_file.py reads and checks it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from schemas import complex_events, event_log
from schemas.types import ATTRIBUTE_TYPES, TIMESTAMP, attribute_type
from spark_jobs.cep.operator import Limits, Operator
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.windows import Window
from spark_jobs.cep.words import LARGEST_COUNT, duration, skip_policy, window_of
from spark_jobs.errors import suggest
from spark_jobs.ordering.order import Order
from spark_jobs.ordering.slack import Slack
from spark_jobs.ordering.speculation import Speculation
from spark_jobs.places import NAME, NO_SCHEDULE, SCHEDULE
from spark_jobs.transactions.operators import DEPTH, Balance, HeavyHitters, StatefulOperator

# The input of operators that read no other operator.
EVENT_LOG = "event_log"
# A Spark driver may be busy for some hundred milliseconds without being dead.
DEFAULT_HEARTBEAT = "1 s"


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
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


def _save(value: Any) -> Any:
    if isinstance(value, str) and value != "adaptive":
        raise ValueError(
            f"'{value}' is no way to save{suggest(value, ['adaptive'])}; write adaptive, {{events: n}} or {{speculative: n}}"
        )
    return {} if value == "adaptive" else value


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


class _Reads(_Strict):
    """What all operators have in common."""

    from_: Annotated[list[str], BeforeValidator(_one_or_more)] = Field([EVENT_LOG], alias="from", min_length=1)
    keep: bool = True  # false: its complex events only feed other operators, and may be trimmed once those have read them

    @property
    def inputs(self) -> list[str]:
        """What it reads, in the order that decides ties."""
        return self.from_


class OperatorSpec(_Reads):
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


# The one symbol of operators with shared state: an event that the state has decided on.
EVENT = "E"


class StatefulSpec(_Reads, ABC):
    """An operator whose state all events share; what it finds are single events."""

    partition_by: str  # of whom it counts or keeps
    where: Annotated[str, BeforeValidator(_truth)] | None = None  # which events count; otherwise all
    measures: dict[str, str] = {}

    @abstractmethod
    def operator(self) -> StatefulOperator:
        """What it does to its state."""

    @property
    def counts(self) -> str:
        """The predicate of the events that reach the state."""
        return self.where or "TRUE"


class HeavyHittersSpec(StatefulSpec):
    """Who has come `threshold` times, in bounded memory."""

    aggregate: Literal["heavy_hitters"]
    threshold: int = Field(ge=1, le=LARGEST_COUNT)
    cells: int = Field(65_536, ge=DEPTH, le=2**24)  # of the sketch: more of them, fewer mistakes

    def operator(self) -> HeavyHitters:
        return HeavyHitters(self.threshold, self.cells)


class BalanceSpec(StatefulSpec):
    """Which withdrawals are not covered."""

    aggregate: Literal["balance"]
    amount: str  # paid in, or drawn out where it is negative

    def operator(self) -> Balance:
        return Balance()

    @property
    def counts(self) -> str:
        """An event without an amount moves nothing."""
        moved = f"{self.amount} IS NOT NULL"
        return f"({self.where}) AND {moved}" if self.where else moved


def _kind_of(spec: Any) -> str:
    """Tags in brackets: they are no keys of the file, and are left out of the places of mistakes."""
    kind = spec.get("aggregate") if isinstance(spec, dict) else getattr(spec, "aggregate", None)
    return "[pattern]" if kind is None else f"[{kind}]"


AnyOperator = Annotated[
    Annotated[OperatorSpec, Tag("[pattern]")]
    | Annotated[HeavyHittersSpec, Tag("[heavy_hitters]")]
    | Annotated[BalanceSpec, Tag("[balance]")],
    Discriminator(_kind_of),
]
AGGREGATES = ["heavy_hitters", "balance"]


class SaveSpec(_Strict):
    """After how many events something is saved that can be gone back to; otherwise, {} or `adaptive`, when that pays."""

    events: int | None = Field(default=None, ge=1)
    speculative: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.events and self.speculative:
            raise ValueError("give one of events and speculative, or adaptive")
        return self

    def policy(self, event_seconds: float, save_seconds: float) -> dict[str, Any]:
        if self.events:
            return {"kind": "events", "n": self.events}
        if self.speculative:
            return {"kind": "speculative", "n": self.speculative}
        return {"kind": "adaptive", "event_seconds": event_seconds, "save_seconds": save_seconds}


Save = Annotated[SaveSpec, BeforeValidator(_save)]


class Ordering(_Strict):
    """Events are matched in the order in which they happened, not in that in which they came."""

    clock: str | None = None  # the source whose events move the clock; otherwise whoever is ahead
    slack: Duration | None = None  # to wait for late events from the beginning; it grows by itself
    speculation: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = 1.0  # the share of it that is really waited for
    retraction: Literal["on demand", "full"] = "on demand"
    revise: Duration = "1 h"  # how long after they are final results can still be corrected
    checkpoint: Save = SaveSpec()

    @property
    def meaning(self) -> str:
        """What decides which events count; when something is published, and how it is corrected, leaves the output as it is."""
        return self.model_dump_json(include={"clock", "slack", "revise"})

    @property
    def revise_us(self) -> int:
        return duration(self.revise)

    def beginning(self) -> Order:
        """What is known of time before the first event."""
        k = duration(self.slack) if self.slack else 0
        alpha = 1.0 if self.speculation == "adaptive" else self.speculation
        return Order(Slack(k=k, measured=self.clock is None or k > 0), Speculation(alpha))


class Recovery(_Strict):
    """How detection comes back after a failure, and how often it prepares for one. Nothing of it shows in the output."""

    strategy: Literal["savepoint", "checkpoint", "replication"] = "savepoint"
    save: Save | None = None  # when to write a savepoint; otherwise before every commit
    f: int | None = Field(default=None, ge=1, le=9)  # of f + 1 replicas so many may fail at the same time
    heartbeat: Duration | None = None  # of replicas; how soon a lost leader is missed

    @property
    def replicas(self) -> int:
        """1: detection works alone."""
        return self.f + 1 if self.f else 1

    @property
    def period(self) -> float:
        """Seconds between two heartbeats."""
        return duration(self.heartbeat or DEFAULT_HEARTBEAT) / 1e6


def _schedule(text: str) -> str:
    if not SCHEDULE.fullmatch(text):
        raise ValueError(NO_SCHEDULE)
    return text


class Pipeline(_Strict):
    """A checked pipeline. Use `load_pipeline`; `Pipeline.model_validate_json` is for tasks."""

    name: Name
    schedule: Annotated[str, AfterValidator(_schedule)] | None = None  # when Airflow looks for new landing files
    source: Source
    operators: dict[Name, AnyOperator] = Field(min_length=1)
    ordering: Ordering | None = None
    recovery: Recovery = Recovery()
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

    @cached_property
    def stateful(self) -> dict[str, StatefulOperator]:
        """The operators with shared state."""
        return {name: spec.operator() for name, spec in self.operators.items() if isinstance(spec, StatefulSpec)}

    @property
    def downstream(self) -> list[str]:
        """The operators that read others."""
        return [name for name, spec in self.operators.items() if spec.inputs != [EVENT_LOG]]

    @property
    def unkeyed(self) -> list[str]:
        """The operators that look at their stream as a whole."""
        return [name for name, spec in self.operators.items() if spec.partition_by is None or name in self.stateful]

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
        return complex_events.schema(self.measures, revised=self.ordering is not None)

    def fingerprint(self, operator: str) -> str:
        """Changes when the meaning of the operator, or of one it reads, does; a key that a later version adds leaves it."""
        attributes = sorted((name, str(type_)) for name, type_ in self.source.attribute_types.items())
        above = [self.fingerprint(name) for name in self.operators[operator].inputs if name != EVENT_LOG]
        order = self.ordering.meaning if self.ordering else ""
        return hashlib.sha256(f"{self.definition(operator)}{attributes}{above}{order}".encode()).hexdigest()[:16]

    def definition(self, operator: str) -> str:
        """What an operator means, as in the file, as JSON."""
        return self.operators[operator].model_dump_json(by_alias=True, exclude_defaults=True, exclude={"limits", "keep"})

    def _build(self, name: str, types: Mapping[str, pa.DataType]) -> Operator:
        spec = self.operators[name]
        if isinstance(spec, StatefulSpec):
            return Operator(name, parse_pattern(EVENT), {EVENT: spec.counts}, types, spec.partition_by, measures=spec.measures)
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
