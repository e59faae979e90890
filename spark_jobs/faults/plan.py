"""Fault plans: SIGKILL the driver at a named phase of a batch, once.

A plan lies in the lake it is meant for, and only a drill's own lake accepts one. What fired is written down
before it happens, so that the retry does not meet the same fault, and so that a fault that never fired makes
the drill unknown instead of passed.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from spark_jobs.errors import RepriseError, suggest
from spark_jobs.faults.phases import DETECT_PHASES, PHASES
from spark_jobs.lake.tables import Lake


@dataclass(frozen=True)
class Fault:
    """Kill the driver when `phase` of `batch` is reached, by `operator` or by any; for ingest, batch is the ingest's number."""

    phase: str
    batch: int
    operator: str | None = None

    def __str__(self) -> str:
        return f"{self.phase}@{self.batch}" + (f":{self.operator}" if self.operator else "")


def parse_fault(text: str) -> Fault:
    """Read `detect.saved@3`, or `detect.saved@3:probing`."""
    phase, at, rest = text.partition("@")
    batch, colon, operator = rest.partition(":")
    if not at and ":" in phase:
        raise RepriseError(f"'{text}' names no batch; write PHASE@BATCH:OPERATOR, such as {phase.partition(':')[0]}@3:NAME")
    if phase not in PHASES:
        raise RepriseError(f"unknown phase '{phase}' in '{text}'{suggest(phase, list(PHASES))}")
    if not at or not batch.isdigit() or int(batch) < 1:
        raise RepriseError(f"'{text}' names no batch; write PHASE@BATCH with a batch from 1 on, such as {phase}@3")
    if colon and not re.fullmatch(r"[a-z][a-z0-9_]*", operator):
        raise RepriseError(f"'{text}' names no operator; write PHASE@BATCH:OPERATOR, or leave it out for any operator")
    return Fault(phase, int(batch), operator or None)


def check_fault(fault: Fault, operators: list[str]) -> None:
    """Refuse a fault that could never strike."""
    if fault.operator is None:
        return
    if fault.phase not in DETECT_PHASES:
        raise RepriseError(f"'{fault}': only phases of detection belong to an operator; write {fault.phase}@{fault.batch}")
    if fault.operator not in operators:
        raise RepriseError(f"'{fault}': the pipeline has no operator '{fault.operator}'{suggest(fault.operator, operators)}")


class FaultPlan:
    """The faults armed in one lake."""

    def __init__(self, lake: Lake) -> None:
        self._folder = lake.root / "_faults"
        self._drill = lake.root / "_drill"

    def allow(self) -> None:
        """Declare this lake a drill's own; done by the drill that creates it."""
        self._drill.parent.mkdir(parents=True, exist_ok=True)
        self._drill.touch()

    def arm(self, fault: Fault) -> None:
        if not self._drill.exists():
            raise RepriseError(
                f"faults are refused in {self._drill.parent}: it is not a drill's own lake. "
                "Use 'reprise drill', which makes a lake of its own; nothing was armed."
            )
        self._folder.mkdir(exist_ok=True)
        _write(self._armed(fault), fault)

    def fire(self, phase: str, batch: int, operator: str | None, record: Callable[[Fault], None]) -> None:
        """End this process if a fault is armed for this moment and has not fired before."""
        for fault in {Fault(phase, batch), Fault(phase, batch, operator)}:
            if self._armed(fault).exists() and not self._fired(fault).exists():
                _write(self._fired(fault), fault)
                record(fault)
                os.kill(os.getpid(), signal.SIGKILL)

    def armed(self) -> list[Fault]:
        return self._faults("armed-*.json")

    def fired(self) -> list[Fault]:
        return self._faults("fired-*.json")

    def _faults(self, names: str) -> list[Fault]:
        return [Fault(**json.loads(file.read_text())) for file in sorted(self._folder.glob(names))]

    def _armed(self, fault: Fault) -> Path:
        return self._folder / f"armed-{fault}.json"

    def _fired(self, fault: Fault) -> Path:
        return self._folder / f"fired-{fault}.json"


def _write(file: Path, fault: Fault) -> None:
    with file.open("w") as out:
        json.dump(asdict(fault), out)
        out.flush()
        os.fsync(out.fileno())
