"""What one of the compared did with one workload, and whether it found what we found. One JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.peers.digest import Digest
from spark_jobs.errors import RepriseError

REPRISE, FLINK_CEP, FLINK_SQL, STREAMING = "Reprise", "Flink CEP", "Flink SQL", "Structured Streaming"
RESULTS = Path(__file__).resolve().parents[1] / "results" / "peers.jsonl"


@dataclass(frozen=True)
class Result:
    """`events` of the log were read in `seconds`; `same` says whether our matches, up to there, are its matches too."""

    workload: str
    who: str
    events: int
    seconds: float
    matches: int = 0
    digest: str = ""
    same: bool | None = None  # a scan finds no matches
    note: str = ""

    @property
    def speed(self) -> float:
        return self.events / self.seconds

    def as_line(self) -> dict[str, Any]:
        return {"kind": "workload", **asdict(self), "events_per_second": round(self.speed)}


def compared(theirs: Result, ours: Digest) -> Result:
    """With what we found in the same events."""
    same = (theirs.matches, theirs.digest) == ours
    return Result(**{**asdict(theirs), "same": same})


def times_faster(ours: Result, theirs: Result) -> float:
    """Refused for a peer that was not compared, or found something else: its time says nothing then."""
    if not theirs.same:
        raise RepriseError(
            f"{theirs.workload}: {theirs.who} found {theirs.matches:,} matches with digest {theirs.digest or '-'}, and these "
            "are not ours. Times are compared only where results are equal."
        )
    return ours.speed / theirs.speed


def write_lines(lines: Iterable[dict[str, Any]], path: Path = RESULTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_lines(path: Path = RESULTS) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
