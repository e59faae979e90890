"""Drills: their verdicts and reports, and how far one is that still runs. All from the folder of each."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.drills.steps import SECOND_ROUND
from spark_jobs.errors import RepriseError
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.tables import Lake
from spark_jobs.views.attempts import AttemptSeen, attempts_in, detail_of
from spark_jobs.views.records import records_of
from spark_jobs.views.timeline import attempt_shown, timeline
from spark_jobs.views.values import moment, plain

# A drill's name is a folder's and part of an address; it begins with a letter or digit, so it is never '..'.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~-]{0,249}")
REPORT = "report.html"
LARGEST_REPORT = 50_000_000
MOST_ATTEMPTS = 30
MOST_MARKS = 40

STEPS = ("generate", "arm", "deliver", "ingest", "detect", *SECOND_ROUND, "verify", "report")


class NoSuchDrill(RepriseError):
    """There is no drill of this name."""


def drill_names(drills: Path) -> list[str]:
    """All drills, the newest first."""
    folders = [f for f in drills.iterdir() if NAME.fullmatch(f.name) and _is_inside(f, drills)] if drills.is_dir() else []
    return [folder.name for folder in sorted(folders, key=lambda f: (f.stat().st_mtime, f.name), reverse=True)]


def drill_folder(drills: Path, name: str) -> Path:
    """The folder of a drill, by a name that may come from anybody."""
    folder = drills / name if NAME.fullmatch(name) else drills / "-"
    if not _is_inside(folder, drills):
        raise NoSuchDrill(f"there is no drill '{name[:64]}'. It may have been removed; the list shows those there are.")
    return folder


def _is_inside(folder: Path, drills: Path) -> bool:
    """A folder of its own right below: no link leads out."""
    return folder.is_dir() and folder.resolve().parent == drills.resolve()


def summary(folder: Path) -> dict[str, Any]:
    """A drill in one line."""
    report = folder / "report.json"
    about = {"drill": folder.name, "changed": moment(int(folder.stat().st_mtime * 1_000_000))}
    if not report.is_file() or report.stat().st_size > LARGEST_REPORT:
        return {**about, "finished": False, "pipeline": None, "verdict": None, "faults": _armed(folder)}
    return {**about, "finished": True, **_reported(report, report.stat().st_mtime_ns)}


def report_file(folder: Path) -> Path:
    """The report, a page of its own."""
    report = folder / REPORT
    if not report.is_file() or report.is_symlink():
        raise NoSuchDrill(f"drill {folder.name} has no report yet. It is written at its end, also when the verdict is bad.")
    if report.stat().st_size > LARGEST_REPORT:
        raise RepriseError(f"the report of drill {folder.name} is too large for a browser; open {REPORT} in its folder.")
    return report


def progress(folder: Path, now: int) -> dict[str, Any]:
    """How far a drill is: steps, batches, what has struck, and the newest of what happened."""
    lake = Lake(folder / "lake")
    records = records_of(lake) if lake.root.is_dir() else None
    attempts = attempts_in(records, now) if records is not None else []
    plan = FaultPlan(lake)
    seen = timeline(records, now) if records is not None else {"marks": []}
    return {
        **summary(folder),
        "steps": _steps(folder, attempts),
        "operators": _operators(records) if records is not None else [],
        "armed": [str(fault) for fault in plan.armed()],
        "struck": [{"fault": str(s.fault), "at": moment(int(s.at * 1_000_000)), "attempt": s.attempt} for s in plan.strikes()],
        "attempts": [attempt_shown(attempt) for attempt in attempts[-MOST_ATTEMPTS:]],
        "now": _newest(records) if records is not None else None,
        "marks": seen["marks"][-MOST_MARKS:],
        "has_report": (folder / REPORT).is_file(),
    }


@lru_cache(maxsize=512)
def _reported(report: Path, changed: int) -> dict[str, Any]:
    """What the report concluded; a file that changed is read anew."""
    try:
        facts = json.loads(report.read_text(encoding="utf-8"))
        operators = facts["operators"]
        return {
            "pipeline": plain(facts["pipeline"]),
            "verdict": plain(facts["verdict"]),
            "faults": [plain(fault["kind"]) for fault in facts["faults"]],
            "missed": [plain(fault) for fault in facts["missed"]],
            "made": plain(facts["made"]),
            "events": max((operator["events"] for operator in operators), default=0),
            "matches": sum(operator["matches"] for operator in operators),
            "replayed": sum(operator["replayed"] for operator in operators),
            "processed": sum(operator["processed_before"] for operator in operators),
            "next": [plain(step) for step in facts["next"]],
        }
    except (ValueError, KeyError, TypeError, OSError):
        why = "Its report.json cannot be read, so there is no verdict. Drill again, or look into its folder."
        return {"pipeline": None, "verdict": "unknown", "faults": [], "missed": [], "next": [why]}


def _armed(folder: Path) -> list[str]:
    return sorted({fault.kind for fault in FaultPlan(Lake(folder / "lake")).armed()})


def _steps(folder: Path, attempts: list[AttemptSeen]) -> list[dict[str, Any]]:
    """What the folder shows of each step. The second round is shown where there was one."""
    tries = {job: [a for a in attempts if a.job == job] for job in ("deliver", "ingest", "detect")}
    reported = (folder / REPORT).is_file()
    states: dict[str, tuple[str, int]] = {
        "generate": ("done" if tries["deliver"] or (folder / "lake").is_dir() else "running", 1),
        "arm": ("done" if (folder / "lake" / "_faults").is_dir() else "waiting", 1),
        **{job: (_state(mine), len(mine)) for job, mine in tries.items()},
        "verify": ("done" if reported else "waiting", 1),
        "report": ("done" if reported else "waiting", 1),
    }
    return [{"step": step, "state": states[step][0], "tries": states[step][1]} for step in STEPS if step in states]


def _state(tries: list[AttemptSeen]) -> str:
    if not tries:
        return "waiting"
    return {"done": "done", "running": "running"}.get(tries[-1].ended, "broken")


def _operators(records: pa.Table) -> list[dict[str, Any]]:
    commits = records.filter(pc.and_(pc.equal(records["kind"], "commit"), pc.equal(records["name"], "complex_events")))
    found: dict[str, dict[str, Any]] = {}
    for row in commits.select(["operator", "batch", "detail"]).to_pylist():
        seen = found.setdefault(row["operator"], {"operator": row["operator"], "batches": 0, "matches": 0, "events": 0})
        detail = detail_of(row["detail"])
        seen["batches"] = max(seen["batches"], row["batch"] or 0)
        for name in ("matches", "events"):
            seen[name] += detail.get(name, 0)
    return [found[name] for name in sorted(found)]


def _newest(records: pa.Table) -> dict[str, Any] | None:
    """What was said last."""
    if not records.num_rows:
        return None
    row = records.sort_by([("at", "descending")]).slice(0, 1).to_pylist()[0]
    return {
        "at": moment(row["at"]),
        **{name: plain(row[name]) for name in ("job", "operator", "batch", "kind", "name", "attempt")},
    }
