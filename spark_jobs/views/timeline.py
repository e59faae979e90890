"""The time line: batches and savepoints in buckets of time, with kills, replays, fences and faults where they happened.

A lake of 100,000 batches and one of three are answered alike: as many buckets as were asked for, single batches only where
they are few enough to be seen, and the newest of everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.errors import RepriseError
from spark_jobs.faults.catalogue import CATALOGUE
from spark_jobs.views.attempts import AttemptSeen, attempts_in, detail_of
from spark_jobs.views.values import cut, moment, plain

MOST_BUCKETS = 400
# Single batches are drawn up to here; beyond it a bar is thinner than a pixel.
MOST_BATCHES = 240
MOST_MARKS = 200
MOST_ATTEMPTS = 100

# The kinds of records that are marks; a replay is one where there was something to replay.
_MARKS = ("fault", "fence", "replay", "repair", "heal", "gap", "leader", "suspicion", "damaged")

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Range:
    """From one microsecond to another, both inside."""

    low: int
    high: int

    def holds(self, at: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.and_(pc.greater_equal(at, self.low), pc.less_equal(at, self.high))

    def buckets(self, at: pa.ChunkedArray, count: int) -> Int64s:
        """The bucket of each moment; the range is cut into equal parts."""
        placed = (np.asarray(at, np.int64) - self.low) * count // max(self.high - self.low + 1, 1)
        return np.asarray(placed, np.int64)


def timeline(
    records: pa.Table, now: int, since: int | None = None, until: int | None = None, buckets: int = 120
) -> dict[str, Any]:
    """What happened between two moments (microseconds); without them, from the first record to the last."""
    if not 1 <= buckets <= MOST_BUCKETS:
        raise RepriseError(f"a time line has 1 to {MOST_BUCKETS} buckets, not {buckets}")
    if not records.num_rows:
        return {"whole": None, "range": None, "buckets": [], "batches": None, "marks": [], "marks_left_off": 0,
                "attempts": [], "attempts_left_off": 0}  # fmt: skip
    limits = pc.min_max(records["us"]).as_py()
    whole = Range(limits["min"], limits["max"])
    chosen = Range(whole.low if since is None else since, whole.high if until is None else until)
    if chosen.low > chosen.high:
        raise RepriseError("the time line ends before it begins; 'since' has to be before 'until'")
    attempts = attempts_in(records, now)
    inside = records.filter(chosen.holds(records["us"]))
    marks = _marks(inside, attempts, chosen)
    lived = [a for a in attempts if a.end >= chosen.low and a.start <= chosen.high]
    return {
        "whole": {"from": moment(whole.low), "to": moment(whole.high)},
        "range": {"from": moment(chosen.low), "to": moment(chosen.high)},
        "buckets": _buckets(inside, marks, chosen, buckets),
        "batches": _batches(inside, {a.number: a for a in attempts}),
        "marks": [_without_us(mark) for mark in marks[-MOST_MARKS:]],
        "marks_left_off": max(0, len(marks) - MOST_MARKS),
        "attempts": [attempt_shown(a) for a in lived[-MOST_ATTEMPTS:]],
        "attempts_left_off": max(0, len(lived) - MOST_ATTEMPTS),
    }


def attempt_shown(attempt: AttemptSeen) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "job": attempt.job,
        "replica": attempt.replica,
        "from": moment(attempt.start),
        "to": moment(attempt.end),
        "ended": attempt.ended,
        "batches": attempt.batches,
    }


def _buckets(records: pa.Table, marks: list[dict[str, Any]], chosen: Range, count: int) -> list[dict[str, Any]]:
    """Per stretch of time: batches, savepoints, what they held, and marks by kind. Empty stretches are left out."""
    commits, saves, ingests = _commits(records), _saves(records), _of(records, "commit", "event_log")
    sums = {
        "batches": _counted(commits, chosen, count),
        "savepoints": _counted(saves, chosen, count),
        "matches": _summed(commits, "matches", chosen, count),
        "events": _summed(commits, "events", chosen, count),
        "ingested": _summed(ingests, "events", chosen, count),
    }
    by_kind: dict[int, dict[str, int]] = {}
    places = chosen.buckets(pa.chunked_array([[mark["us"] for mark in marks]], pa.int64()), count)
    for mark, place in zip(marks, places.tolist(), strict=True):
        kinds = by_kind.setdefault(place, {})
        kinds[mark["kind"]] = kinds.get(mark["kind"], 0) + 1
    width = (chosen.high - chosen.low + 1) / count
    full = np.flatnonzero(sums["batches"] + sums["savepoints"] + sums["ingested"]).tolist()
    return [
        {
            "bucket": place,
            "from": moment(int(chosen.low + place * width)),
            "to": moment(int(chosen.low + (place + 1) * width)),
            **{name: int(values[place]) for name, values in sums.items()},
            "marks": by_kind.get(place, {}),
        }
        for place in sorted({*full, *by_kind})
    ]


def _batches(records: pa.Table, attempts: dict[int, AttemptSeen]) -> list[dict[str, Any]] | None:
    """Single batches, if they are few: when each began and was published, or that its attempt was killed on the way."""
    started = _of(records, "phase", "detect.started")
    commits = _commits(records)
    if max(started.num_rows, commits.num_rows) > MOST_BATCHES:
        return None
    done = {_place(row): row for row in commits.to_pylist()}
    saved = {_place(row) for row in _saves(records).to_pylist()}
    found = []
    for row in sorted(started.to_pylist(), key=lambda row: int(row["us"])):
        commit, attempt = done.pop(_place(row), None), attempts[row["attempt"]]
        lost = "running" if attempt.ended == "running" else "lost"
        found.append({
            **{name: row[name] for name in ("operator", "batch", "attempt")},
            "from": moment(row["us"]),
            "to": moment(commit["us"] if commit else attempt.end),
            "came": "published" if commit else lost,
            "saved": _place(row) in saved,
            "replayed": detail_of(row["detail"]).get("carried", 0),
            **{name: detail_of(commit["detail"]).get(name, 0) if commit else 0 for name in ("matches", "events")},
        })
    return found


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["operator"], row["batch"], row["attempt"]


def _marks(records: pa.Table, attempts: list[AttemptSeen], chosen: Range) -> list[dict[str, Any]]:
    """What went wrong and what put it right, in order of time."""
    marks = []
    for row in records.filter(pc.is_in(records["kind"], pa.array(_MARKS))).to_pylist():
        detail = detail_of(row["detail"])
        if row["kind"] != "replay" or detail.get("processed"):
            marks.append(_mark(row["us"], row["kind"], row, cut(_said(row, detail))))
    for attempt in attempts:
        if attempt.ended in ("killed", "error") and chosen.low <= attempt.end <= chosen.high:
            text = "no word of it since: killed" if attempt.ended == "killed" else "ended with an error"
            about = {"attempt": attempt.number, "job": attempt.job, "operator": None, "batch": None}
            marks.append(_mark(attempt.end, "kill" if attempt.ended == "killed" else "error", about, f"{attempt.job}: {text}"))
    return sorted(marks, key=lambda mark: (int(mark["us"]), mark["kind"]))


def _mark(us: int, kind: str, row: dict[str, Any], text: str) -> dict[str, Any]:
    return {
        "us": us,
        "at": moment(us),
        "kind": kind,
        **{n: row[n] for n in ("attempt", "job", "operator", "batch")},
        "text": text,
    }


def _without_us(mark: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in mark.items() if name != "us"}


def _said(row: dict[str, Any], detail: dict[str, Any]) -> str:
    """A mark in words."""
    match row["kind"]:
        case "fault":
            known = CATALOGUE.get(row["name"])
            return f"{known.breaks if known else row['name']} at {detail.get('phase', 'a time')}"
        case "replay":
            return (
                f"resumes after batch {row['batch']}, replays {detail['events']:,} of {detail['processed']:,} processed events"
            )
        case "fence" | "repair":
            return str(detail.get("reason", row["name"]))
        case "leader" | "suspicion":
            return f"{row['name']}: {detail.get('why', '')}"
        case _:
            return str(row["name"])


def _of(records: pa.Table, kind: str, name: str) -> pa.Table:
    return records.filter(pc.and_(pc.equal(records["kind"], kind), pc.equal(records["name"], name)))


def _commits(records: pa.Table) -> pa.Table:
    return _of(records, "commit", "complex_events")


def _saves(records: pa.Table) -> pa.Table:
    """The phase is reached by every batch; a savepoint has bytes."""
    reached = _of(records, "phase", "detect.saved")
    return reached.filter(pc.greater(_number(reached["detail"], "bytes"), 0))


def _number(details: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A whole number out of details, without reading each as JSON; 0 where there is none."""
    found = pc.extract_regex(details, rf'"{name}": (?P<number>\d+)')
    return pc.fill_null(pc.struct_field(found, "number").cast(pa.int64()), 0)


def _counted(rows: pa.Table, chosen: Range, count: int) -> Int64s:
    return np.bincount(chosen.buckets(rows["us"], count), minlength=count).astype(np.int64)


def _summed(rows: pa.Table, name: str, chosen: Range, count: int) -> Int64s:
    weights = np.asarray(_number(rows["detail"], name), np.float64)  # exact up to 2**53
    return np.bincount(chosen.buckets(rows["us"], count), weights, minlength=count).astype(np.int64)
