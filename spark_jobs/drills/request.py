"""A drill that somebody asks for from outside: every word is checked before it becomes a run of the DAG recovery_drill."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jobs.drills.drill import check_faults, check_landing
from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import parse_fault
from spark_jobs.places import Place

# What a drill on a small machine does within its time limit.
MOST_EVENTS = 5_000_000
MOST_BATCHES = 1_000
MOST_FAULTS = 10
LONGEST_TEXT = 1_000
LARGEST_SEED = 2**31

INLINE = "inline"


@dataclass(frozen=True)
class DrillRequest:
    """What to break, on what. Nothing in it is a path."""

    pipeline: str
    faults: str = ""
    seed: int | None = None
    own_data: bool = False  # on a copy of the pipeline's landing files, instead of a generated log
    events: int = 100_000
    batch_events: int = 20_000
    master: str = INLINE


def masters() -> list[str]:
    """Where drills may run: on the Spark of this installation, or without Spark."""
    return [os.environ.get("REPRISE_MASTER", "local[2]"), INLINE]


def conf_of(request: DrillRequest, place: Place, folder: Path) -> dict[str, Any]:
    """The parameters of the DAG run; an error says what is wrong, and nothing was started."""
    if not 1 <= request.events <= MOST_EVENTS:
        raise RepriseError(f"a drill has 1 to {MOST_EVENTS:,} events, not {request.events:,}. Nothing was started.")
    if request.batch_events < 1 or request.events / request.batch_events > MOST_BATCHES:
        raise RepriseError(f"a drill has at most {MOST_BATCHES:,} batches: take larger ones. Nothing was started.")
    if request.master not in masters():
        raise RepriseError(f"a drill runs on {' or '.join(masters())} here. Nothing was started.")
    if request.seed is not None and not 0 <= request.seed < LARGEST_SEED:
        raise RepriseError(f"a seed is a whole number from 0 to {LARGEST_SEED - 1:,}. Nothing was started.")
    faults = _faults(request)
    check_faults(faults, place.file, request.master, tasks_are_processes=True)
    if request.own_data:
        check_landing(place.landing)
    return {
        "pipeline": str(place.file),
        "folder": str(folder),
        "landing": str(place.landing) if request.own_data else "",
        "faults": ", ".join(map(str, faults)),
        "seed": request.seed,
        "events": request.events,
        "batch_events": request.batch_events,
        "master": request.master,
    }


def _faults(request: DrillRequest) -> list[Any]:
    if len(request.faults) > LONGEST_TEXT:
        raise RepriseError(f"the faults are longer than {LONGEST_TEXT:,} characters. Nothing was started.")
    faults = [parse_fault(text) for text in request.faults.split(",") if text.strip()]
    if len(faults) > MOST_FAULTS:
        raise RepriseError(f"a drill has at most {MOST_FAULTS} faults, not {len(faults)}. Nothing was started.")
    if not faults and request.seed is None:
        raise RepriseError("a drill needs at least one fault, or a seed to draw one from. Nothing was started.")
    return faults
