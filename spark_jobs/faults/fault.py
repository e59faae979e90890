"""One fault as a value: its kind, where it strikes, how often; and how people write it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from spark_jobs.errors import RepriseError, suggest
from spark_jobs.faults.catalogue import CATALOGUE, Group, Kind, Needs
from spark_jobs.faults.phases import COMMITTED, DETECT_PHASES, PHASES, TASK_PHASES

# Long enough that whoever waits for the process notices, short enough for a drill.
STOPPED_SECONDS = 2.0
MAX_TIMES = 20
MAX_SECONDS = 60.0

_TEXT = re.compile(
    r"(?P<kind>\w+)"
    r"(?::(?:(?P<seconds>\d+(?:\.\d+)?)s|(?P<partition>\d+)|(?P<phase>[a-z.]+)@(?P<batch>\w*)(?::(?P<operator>[^/*#]*))?))?"
    r"(?:/(?P<shard>\w+))?(?:#(?P<replica>\w+))?(?:\*(?P<times>\w+))?"
)
FORM = "KIND:PHASE@BATCH[:OPERATOR][/SHARD][#REPLICA][*TIMES]"


@dataclass(frozen=True)
class Fault:
    """Strike when `phase` of `batch` is reached, by `operator` or any, in `shard` or any; or `after` seconds; or the input.

    Where detection is replicated, one replica or whichever comes first.

    For ingest, batch is the ingest's number; for the input, it is the partition's.
    """

    kind: str
    phase: str = ""
    batch: int = 1
    operator: str | None = None
    shard: int | None = None
    replica: int | None = None
    after: float | None = None
    times: int = 1

    def __str__(self) -> str:
        if self.after is not None:
            where = f":{self.after:g}s"
        elif self.phase:
            where = f":{self.phase}@{self.batch}" + (f":{self.operator}" if self.operator else "")
        else:
            where = "" if self.kind in CATALOGUE and self.known.phases else f":{self.batch}"
        shard = f"/{self.shard}" if self.shard is not None else ""
        replica = f"#{self.replica}" if self.replica is not None else ""
        return f"{self.kind}{where}{shard}{replica}" + (f"*{self.times}" if self.times > 1 else "")

    @property
    def known(self) -> Kind:
        return CATALOGUE[self.kind]

    @property
    def name(self) -> str:
        """Fit for a file name."""
        return str(self).replace("/", "~").replace("*", "%")

    def meets(self, phase: str, batch: int, operator: str | None, shard: int | None) -> bool:
        here = (self.phase, self.batch) == (phase, batch) and self.operator in (None, operator)
        return here and self.shard in (None, shard)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def parse_fault(text: str) -> Fault:
    """Read `kill_driver:detect.saved@3`, `kill_worker:match.read@2:probing/1*2`, `kill_jvm:2.5s`, `deliver_twice:1`."""
    found = _TEXT.fullmatch(text.strip())
    if not found:
        raise RepriseError(f"'{text}' is not a fault; write {FORM}, such as kill_driver:detect.saved@3, or KIND:SECONDSs")
    part = found.groupdict()
    fault = Fault(
        kind=part["kind"],
        phase=part["phase"] or "",
        batch=_number(text, "batch", part["partition"] or part["batch"] if part["partition"] or part["phase"] else "1"),
        operator=part["operator"],
        shard=None if part["shard"] is None else _number(text, "shard", part["shard"], least=0),
        replica=None if part["replica"] is None else _number(text, "replica", part["replica"], least=0),
        after=float(part["seconds"]) if part["seconds"] else None,
        times=_number(text, "number of times", part["times"] or "1"),
    )
    check(fault)
    return fault


def _number(text: str, what: str, word: str | None, least: int = 1) -> int:
    if not (word or "").isdigit() or int(word or 0) < least:
        raise RepriseError(f"'{text}' names no {what}; write {FORM} with a {what} from {least} on")
    return int(word or 0)


def check(fault: Fault) -> None:
    """Refuse what makes no sense wherever it is drilled."""
    kind = CATALOGUE.get(fault.kind)
    if kind is None:
        raise RepriseError(f"unknown fault '{fault.kind}'{suggest(fault.kind, list(CATALOGUE))}")
    if fault.phase and fault.phase not in PHASES:
        raise RepriseError(f"unknown phase '{fault.phase}' in '{fault}'{suggest(fault.phase, list(PHASES))}")
    if fault.operator is not None and not re.fullmatch(r"[a-z][a-z0-9_]*", fault.operator):
        raise RepriseError(f"'{fault}' names no operator; write {FORM}, or leave it out for any operator")
    if fault.after is not None:
        _check_timed(fault, kind)
    elif kind.phases and not fault.phase:
        raise RepriseError(f"'{fault}' does not say where; write {FORM}, such as {fault.kind}:{kind.phases[0]}@3")
    elif kind.phases and fault.phase not in kind.phases:
        raise RepriseError(f"'{fault}': {fault.kind} cannot strike there; it can at {', '.join(kind.phases)}")
    elif not kind.phases and fault.phase:
        raise RepriseError(f"'{fault}': {fault.kind} spoils the input before it is ingested; write {fault.kind}:PARTITION")
    if fault.operator and fault.phase not in (*DETECT_PHASES, *TASK_PHASES):
        raise RepriseError(f"'{fault}': only phases of detection belong to an operator")
    if fault.shard is not None and fault.phase not in TASK_PHASES:
        raise RepriseError(f"'{fault}': only the tasks of shards have a shard: {', '.join(TASK_PHASES)}")
    if fault.times > 1 and fault.phase in COMMITTED:
        raise RepriseError(f"'{fault}': {fault.phase} of a batch is reached once, so a fault can strike there once")
    if not 1 <= fault.times <= MAX_TIMES or fault.batch < 1:
        raise RepriseError(f"'{fault}': batches count from 1, and a fault strikes 1 to {MAX_TIMES} times")


def _check_timed(fault: Fault, kind: Kind) -> None:
    if not kind.timed:
        raise RepriseError(f"'{fault}': {fault.kind} strikes at a phase, not at a time; write {FORM}")
    if not 0 <= (fault.after or 0) <= MAX_SECONDS:
        raise RepriseError(f"'{fault}': a fault strikes at most {MAX_SECONDS:g} s after the start")


def check_against(fault: Fault, operators: list[str], master: str, *, tasks_are_processes: bool) -> None:
    """Refuse what could never strike in this drill."""
    needs = fault.known.needs
    cluster = master == "cluster" or master.startswith("spark://")
    if fault.operator is not None and fault.operator not in operators:
        raise RepriseError(f"'{fault}': the pipeline has no operator '{fault.operator}'{suggest(fault.operator, operators)}")
    if needs is Needs.SPARK and master == "inline":
        raise RepriseError(f"'{fault}' needs Spark; this drill runs inline. Leave --master out, or choose another fault.")
    if needs is Needs.CLUSTER and not cluster:
        raise RepriseError(f"'{fault}' needs a Spark cluster with executors of its own; drill with --master cluster.")
    if needs is Needs.AIRFLOW and not tasks_are_processes:
        raise RepriseError(
            f"'{fault}' needs an Airflow that runs tasks as processes: start one with 'make up' and trigger the DAG "
            "recovery_drill. 'reprise drill' and 'airflow dags test' run tasks in their own process."
        )
    if fault.phase in TASK_PHASES and master == "inline" and fault.known.group is Group.PROCESS:
        raise RepriseError(f"'{fault}' needs Spark: inline there is no worker.")
