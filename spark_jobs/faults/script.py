"""Fault plans that people write: a YAML file, or a seed from which one is drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_jobs.errors import RepriseError
from spark_jobs.faults.catalogue import CATALOGUE, Kind, Needs
from spark_jobs.faults.fault import Fault, check, parse_fault
from spark_jobs.faults.phases import COMMITTED, INGEST_PHASES, TASK_PHASES, TRIM_PHASES

# A timed fault has to strike while somebody still runs: the start of Spark takes longer than this.
# What comes after these phases is work for Spark.
_NEEDING_THE_JVM = ("detect.started", "ingest.staged", "ingest.checked")
_LATEST_SECONDS = 2


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FaultEntry(_Strict):
    """One fault in full; the short form is a text."""

    kind: str
    phase: str = ""
    batch: int = Field(1, ge=1)
    operator: str | None = None
    shard: int | None = Field(None, ge=0)
    replica: int | None = Field(None, ge=0)
    after: float | None = Field(None, ge=0)
    times: int = Field(1, ge=1)

    def fault(self) -> Fault:
        return Fault(**self.model_dump())


class RandomEntry(_Strict):
    seed: int
    faults: int = Field(1, ge=1, le=10)


class PlanFile(_Strict):
    """`faults` is a list of texts or entries; `random` draws some more."""

    faults: Annotated[list[str | FaultEntry], Field(default_factory=list)]
    random: RandomEntry | None = None


def load_plan(file: Path, world: World) -> list[Fault]:
    """The faults of a plan file, each checked."""
    try:
        document: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        plan = PlanFile.model_validate(document)
    except FileNotFoundError:
        raise RepriseError(f"fault plan {file} does not exist. Nothing was started.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RepriseError(f"fault plan {file} cannot be read: {error}. Nothing was started.") from None
    except yaml.YAMLError as error:
        raise RepriseError(f"{file} is not YAML: {str(error).splitlines()[0]}. Nothing was started.") from None
    except ValidationError as error:
        first = max(error.errors(), key=lambda one: len(one["loc"]))  # an entry is no text, but that is not what is wrong
        place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("str", "FaultEntry")))
        raise RepriseError(f"{file}, {place or 'top'}: {first['msg']}. Nothing was started.") from None
    faults = [parse_fault(entry) if isinstance(entry, str) else _checked(entry.fault()) for entry in plan.faults]
    if plan.random:
        faults += draw(plan.random.seed, world, plan.random.faults)
    if not faults:
        raise RepriseError(f"{file} names no fault. Nothing was started.")
    return faults


def _checked(fault: Fault) -> Fault:
    check(fault)
    return fault


class World(_Strict):
    """What there is to strike at in a drill."""

    operators: tuple[str, ...]
    batches: int = Field(ge=1)
    downstream: tuple[str, ...] = ()  # operators that read others: how many batches they take is hard to say, but one
    unkeyed: tuple[str, ...] = ()  # operators that may have one shard only
    shards: int = 2
    spark: bool = False
    cluster: bool = False

    def has(self, kind: Kind) -> bool:
        return {
            Needs.NOTHING: True,
            Needs.SPARK: self.spark or self.cluster,
            Needs.CLUSTER: self.cluster,
            Needs.AIRFLOW: False,
        }[kind.needs]


def draw(seed: int, world: World, count: int = 1, kinds: Sequence[str] | None = None) -> list[Fault]:
    """A plan from a seed: the same seed and world give the same plan. No two faults are the same."""
    drawn = random.Random(seed)  # noqa: S311  # to be repeated, not to be secret
    chosen = [CATALOGUE[name] for name in kinds] if kinds else [kind for kind in CATALOGUE.values() if world.has(kind)]
    faults: dict[str, Fault] = {}
    while len(faults) < count:
        fault = _drawn(drawn, drawn.choice(chosen), world)
        check(fault)
        faults[fault.name] = fault
    return list(faults.values())


def _drawn(drawn: random.Random, kind: Kind, world: World) -> Fault:
    if not kind.phases:
        return Fault(kind.name, batch=drawn.randint(1, 3))
    twice = kind.name.startswith("kill_") and drawn.random() < 0.25
    if kind.timed and world.spark and drawn.random() < 0.2:
        return Fault(kind.name, after=drawn.randint(0, 10 * _LATEST_SECONDS) / 10)
    phase = drawn.choice([phase for phase in kind.phases if phase not in TRIM_PHASES])
    times = 2 if twice and _is_reached_again(kind, phase) else 1
    if phase in INGEST_PHASES:
        return Fault(kind.name, phase, 1, times=times)
    operator = drawn.choice(world.operators) if len(world.operators) > 1 else None
    batch = 1 if operator in world.downstream else drawn.randint(1, world.batches)
    one_shard = (operator or world.operators[0]) in world.unkeyed
    shard = (0 if one_shard else drawn.randrange(world.shards)) if phase in TASK_PHASES else None
    return Fault(kind.name, phase, batch, operator, shard, times=times)


def _is_reached_again(kind: Kind, phase: str) -> bool:
    """Does a process that was killed there come by again? Without a JVM the driver goes on until it needs it."""
    return phase in _NEEDING_THE_JVM if kind.name == "kill_jvm" else phase not in COMMITTED
