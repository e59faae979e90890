"""Attempts as a person sees them: who did what, how it ended, and who did not come back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Who has said nothing for so long is taken for dead; a batch that takes longer is rare, and its attempt comes back to life.
SILENT_MICROSECONDS = 600 * 1_000_000
# If another attempt does the same work, so long: a rival works beside it, a retry does not.
REPLACED_MICROSECONDS = 10 * 1_000_000


@dataclass(frozen=True)
class AttemptSeen:
    """One try of one job, times in microseconds."""

    number: int
    job: str
    replica: int | None
    start: int
    end: int
    ended: str  # done, error, fenced, killed, running
    batches: int


def attempts_in(records: pa.Table, now: int) -> list[AttemptSeen]:
    """All attempts, in order. One without an end was killed if a kill was the last that was heard of it, or if it is silent."""
    if not records.num_rows:
        return []
    commits = pc.and_(pc.equal(records["kind"], "commit"), pc.equal(records["name"], "complex_events"))
    numbered = records.append_column("committed", commits.cast(pa.int64()))
    spans = numbered.group_by("attempt").aggregate([("us", "min"), ("us", "max"), ("committed", "sum"), ("job", "min")])
    begun, ends, struck = _details(records, "attempt"), _ends(records), _struck(records)
    found: list[AttemptSeen] = []
    for span in sorted(spans.to_pylist(), key=lambda s: int(s["attempt"]), reverse=True):
        number, job = span["attempt"], span["job_min"]
        replica = begun.get(number, {}).get("replica")
        replaced = any((later.job, later.replica) == (job, replica) for later in found[-_LOOK_BACK:])
        silent = now - span["us_max"] > (REPLACED_MICROSECONDS if replaced else SILENT_MICROSECONDS)
        dead = silent or struck.get(number) == span["us_max"]
        ended = ends.get(number, "killed" if dead else "running")
        found.append(AttemptSeen(number, job, replica, span["us_min"], span["us_max"], ended, span["committed_sum"]))
    return found[::-1]


# Jobs and their replicas that may have begun since.
_LOOK_BACK = 64
# Not those of workers and executors, which Spark replaces.
_DEADLY = ("kill_driver", "kill_jvm", "kill_task", "kill_group")


def _ends(records: pa.Table) -> dict[int, str]:
    """How each attempt ended that said so. A replica that was beaten goes on: the last word counts, unless it was fenced."""
    rows = records.filter(pc.is_in(records["kind"], pa.array(["end", "fence"]))).sort_by("at")
    ends: dict[int, str] = {}
    for kind, name, attempt in zip(*(rows[c].to_pylist() for c in ("kind", "name", "attempt")), strict=True):
        if kind == "fence":
            ends[attempt] = "fenced"
        elif ends.get(attempt) != "fenced" or name == "done":
            ends[attempt] = name
    return ends


def _struck(records: pa.Table) -> dict[int, int]:
    """When a kill struck that ends an attempt."""
    rows = records.filter(pc.and_(pc.equal(records["kind"], "fault"), pc.is_in(records["name"], pa.array(_DEADLY))))
    return dict(zip(rows["attempt"].to_pylist(), rows["us"].to_pylist(), strict=True))


def _details(records: pa.Table, kind: str) -> dict[int, dict[str, Any]]:
    rows = records.filter(pc.equal(records["kind"], kind))
    return {a: detail_of(d) for a, d in zip(rows["attempt"].to_pylist(), rows["detail"].to_pylist(), strict=True)}


def detail_of(text: str | None) -> dict[str, Any]:
    return json.loads(text) if text else {}
