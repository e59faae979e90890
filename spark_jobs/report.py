"""The report: one HTML file for a person on call. Verdict first, then what happened, then the evidence."""

from __future__ import annotations

import datetime as dt
import json
import platform
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2

from spark_jobs import __version__
from spark_jobs.errors import RepriseError
from spark_jobs.faults.catalogue import CATALOGUE
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.history import read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.recovery.store import all_rows
from spark_jobs.show import committed_attempts
from spark_jobs.verify.expectations import docs_index

_TEMPLATES = Path(__file__).parent / "templates"
_MEANING = {
    "no false positives": "every published match is in the reference",
    "no false negatives": "every match of the reference was published",
    "no duplicates": "every match was published once",
    "no false order": "every match carries the reference's number",
    "completeness": "the whole log was processed",
}
_STAGES = {
    "scan": "reading events",
    "predicate": "conditions on single events",
    "kernel": "matching",
    "sequence": "ordering and numbering",
    "write": "writing files",
    "keep": "keeping checkpoints",
    "transfer": "scheduling, messages",
    "commit": "savepoint and commit",
}
_INGEST_NOT_CHECKED = (
    "what ingest accepted or rejected: the reference run reads the same event_log as detection, and only the suite of incoming "
    "partitions judges it"
)
_ORDER_NOT_CHECKED = "events are matched in the order of their arrival; late ones are not put back into their place"


def write_report(pipeline: Pipeline, lake: Lake, out: Path) -> dict[str, Any]:
    """Write `out` and, beside it, the facts in it as JSON."""
    facts = gather(pipeline, lake)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report_page(facts), encoding="utf-8")
    out.with_suffix(".json").write_text(json.dumps(facts, default=str), encoding="utf-8")
    return facts


def report_page(facts: dict[str, Any]) -> str:
    """The report as HTML."""
    return page("report.html.j2", facts=facts, timeline=_timeline(facts))


def page(template: str, **facts: Any) -> str:
    """A template filled in; what it does not know is an error, and every text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["clock"] = lambda at: dt.datetime.fromtimestamp(at, dt.UTC).strftime("%H:%M:%S.%f")[:-3]
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment.get_template(template).render(**facts)


def summary_rows(facts: dict[str, Any]) -> list[tuple[str, list[str], list[list[object]]]]:
    """The small table at the end of a drill."""
    columns = ["operator", "events", "matches", "events replayed", "of those processed", "skipped", "verdict"]
    rows: list[list[object]] = []
    for operator in facts["operators"]:
        replayed, processed = operator["replayed"], operator["processed_before"]
        share = f"{1 - replayed / processed:.1%}" if processed else "no recovery"
        rows.append([
            operator["operator"],
            operator["events"],
            operator["matches"],
            replayed,
            processed,
            share,
            operator["verdict"],
        ])
    return [(f"{facts['pipeline']}: {facts['verdict']}", columns, rows)]


def gather(pipeline: Pipeline, lake: Lake) -> dict[str, Any]:
    """Everything the report says, as plain data."""
    verdicts = _latest_verdicts(pipeline, lake)
    history = read_history(lake)
    attempts = _attempts(history)
    operators = [_operator(row, attempts) for row in verdicts]
    faults = [_fault(row) for row in history if row["kind"] == "fault"]
    savepoints = [row for row in all_rows(lake) if row["place"] == 0]
    published = committed_attempts(lake)
    replicas = {attempt["number"] for attempt in attempts if attempt["replica"] is not None}
    return {
        "pipeline": pipeline.name,
        "verdict": _overall(operators),
        "operators": operators,
        "attempts": attempts,
        "faults": [_with_recovery(fault, attempts) for fault in faults],
        "missed": _missed(lake),
        "healed": _said(history, "heal"),
        "repaired": [row["detail"].get("reason", "") for row in history if row["kind"] == "repair"],
        "fenced": sum(row["kind"] == "fence" and row["attempt"] not in replicas for row in history),
        "replicas": _replicas(history, len(replicas)),
        "gaps": _said(history, "gap"),
        "cost": _cost(attempts),
        "profile": [_profile(row["operator"], attempts) for row in verdicts],
        "next": _next_steps(operators),
        "docs": docs_index(lake).as_uri() if docs_index(lake).exists() else None,
        "batches": _batches(attempts, savepoints, published),
        "dead_letters": sum(1 for s in savepoints if published.get(_place(s)) != s["attempt"]),
        "quarantine": _quarantine(lake),
        "ingests": [
            r["detail"] | {"ingest": r["batch"]} for r in history if r["kind"] == "commit" and r["name"] == "event_log"
        ],
        "earlier": _earlier(lake),
        "meaning": _MEANING,
        "made": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "lake": str(lake.root),
        "versions": versions(),
        "not_checked": [_INGEST_NOT_CHECKED, *([_ORDER_NOT_CHECKED] if pipeline.ordering is None else [])],
    }


def _replicas(history: list[dict[str, Any]], attempts: int) -> dict[str, Any]:
    """Who led, who was missed, and what the others held and could forget; a peer that was faster is no fault of anybody."""
    told = [row for row in history if row["kind"] in ("leader", "suspicion")]
    return {
        "attempts": attempts,
        "told": [{"at": row["at"].timestamp(), "what": row["name"], "why": row["detail"].get("why", "")} for row in told],
        "pruned": sum(row["detail"].get("batches", 0) for row in history if row["kind"] == "prune"),
    }


def _fault(row: dict[str, Any]) -> dict[str, Any]:
    kind = CATALOGUE.get(row["name"])
    return {
        "at": row["at"].timestamp(),
        "attempt": row["attempt"],
        "kind": row["name"],
        "breaks": kind.breaks if kind else row["name"],
        "heals": kind.heals if kind else "",
        "phase": row["detail"]["phase"],
        "batch": row["batch"],
        "operator": row["operator"],
        "what": row["detail"].get("partition", ""),
    }


def _missed(lake: Lake) -> list[str]:
    """Faults that were armed and did not strike, or not as often as they should."""
    plan = FaultPlan(lake)
    missed = Counter(map(str, plan.armed())) - Counter(map(str, plan.fired()))
    return sorted(missed)


def reasons(facts: dict[str, Any]) -> list[str]:
    """Why a verdict is not valid: every finding that is not, and which fault did not strike."""
    bad = [f for o in facts["operators"] for f in o["findings"] if f["verdict"] != "valid"]
    found = dict.fromkeys(f"{f['property']}: {f['note'] or f['count']}" for f in bad)
    return [*found, *(f"did not strike: {fault}" for fault in facts["missed"])]


def _said(history: list[dict[str, Any]], kind: str) -> list[str]:
    return list(dict.fromkeys(row["name"] for row in history if row["kind"] == kind))


def _cost(attempts: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds that attempts took which were broken, of all seconds."""
    lost = sum(a["end"] - a["start"] for a in attempts if a["ended"] not in ("done",))
    return {"attempts": len(attempts), "lost_seconds": lost, "seconds": sum(a["end"] - a["start"] for a in attempts)}


def _profile(operator: str, attempts: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the time of the published batches went, stage by stage; batches of earlier releases do not say."""
    mine = [p for a in attempts for p in a["phases"] if (p["name"], p["operator"]) == ("detect.finished", operator)]
    timed = {(p["operator"], p["batch"]): p["seconds"] for p in mine if "seconds" in p}
    total = sum(sum(seconds.values()) for seconds in timed.values())
    read = {(c["operator"], c["batch"]): c["events"] for a in attempts for c in a["commits"] if c["operator"]}
    events = sum(read[place] for place in timed)
    spent = {stage: sum(seconds.get(stage, 0.0) for seconds in timed.values()) for stage in _STAGES}
    return {
        "operator": operator,
        "batches": len(timed),
        "seconds": total,
        "rate": events / total if total else 0.0,
        "stages": [
            {"stage": stage, "what": _STAGES[stage], "seconds": seconds, "share": seconds / total}
            for stage, seconds in spent.items()
            if seconds
        ],
    }


def _next_steps(operators: list[dict[str, Any]]) -> list[str]:
    """What to do now, by the worst finding of each operator."""
    steps = []
    for operator in operators:
        bad = [finding for finding in operator["findings"] if finding["verdict"] != "valid"]
        name = operator["operator"]
        if not any(finding["verdict"] == "invalid" for finding in operator["tiles"]) and operator["verdict"] == "invalid":
            steps.append("The output is right, but something that was broken went unnoticed: see the evidence, find out why.")
        elif any(finding["verdict"] == "invalid" for finding in bad):
            steps.append(
                f"Do not use the output of {name} from the first offender below on. Detect into a new lake and compare; keep "
                "this folder, it is the evidence."
            )
        elif any(finding["property"] == "faults fired" for finding in bad):
            steps.append("Choose a place that is reached: fewer events per batch, or an earlier batch. Then drill again.")
        elif any(finding["property"] == "completeness" for finding in bad):
            steps.append(f"Run detection of {name} to the end of the log, then verify again.")
        elif bad:
            steps.append(f"Repair what could not be read (see the evidence of {name}), then verify again.")
    return list(dict.fromkeys(steps)) or ["Nothing: the output can be used."]


def _latest_verdicts(pipeline: Pipeline, lake: Lake) -> list[dict[str, Any]]:
    rows = [row for row in lake.read("verdicts").to_pylist() if row["pipeline"] == pipeline.name]
    if not rows:
        raise RepriseError(f"{lake.root} holds no verdict on pipeline '{pipeline.name}'; run 'reprise verify' first")
    latest = {row["operator"]: row for row in sorted(rows, key=lambda row: row["at"])}
    return [{**row, "findings": json.loads(row["findings"])} for row in latest.values()]


def _operator(row: dict[str, Any], attempts: list[dict[str, Any]]) -> dict[str, Any]:
    replays = [r for a in attempts for r in a["replays"] if r["operator"] == row["operator"] and r["processed"]]
    order = {"invalid": 0, "unknown": 1, "valid": 2}
    return {
        **{k: row[k] for k in ("operator", "verdict", "events", "matches", "reference_matches")},
        "findings": sorted(row["findings"], key=lambda finding: order[finding["verdict"]]),
        "tiles": [finding for finding in row["findings"] if finding["property"] in _MEANING],
        "replays": replays,
        "replayed": sum(r["events"] for r in replays),
        "processed_before": sum(r["processed"] for r in replays),
    }


def _overall(operators: list[dict[str, Any]]) -> str:
    found = {operator["verdict"] for operator in operators}
    return "invalid" if "invalid" in found else "unknown" if "unknown" in found else "valid"


def _attempts(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Attempts in order, each with what it did; one without an end did not come back from it."""
    attempts: dict[int, dict[str, Any]] = {}
    for row in history:
        at = row["at"].timestamp()
        attempt = attempts.setdefault(
            row["attempt"],
            {
                "number": row["attempt"],
                "job": row["job"],
                "replica": row["detail"].get("replica"),  # of its first record
                "start": at,
                "end": at,
                "ended": "killed",
                "phases": [],
                "commits": [],
                "replays": [],
                "fault": None,
            },
        )
        attempt["end"] = at
        place = {"at": at, "operator": row["operator"], "batch": row["batch"], "name": row["name"], **row["detail"]}
        match row["kind"]:
            case "phase":
                attempt["phases"].append(place)
            case "commit":
                attempt["commits"].append(place)
            case "replay":
                attempt["replays"].append(place)
            case "fault":
                attempt["fault"] = place
            case "fence":
                attempt["ended"] = "fenced"
            case "end" if attempt["ended"] != "fenced" or row["name"] == "done":  # a replica that was beaten goes on
                attempt["ended"] = row["name"]
    return list(attempts.values())


def _with_recovery(fault: dict[str, Any], attempts: list[dict[str, Any]]) -> dict[str, Any]:
    """How long it took from the kill until the batch it interrupted was published."""
    since = [
        (commit["at"] - fault["at"], attempt["number"])
        for attempt in attempts
        for commit in attempt["commits"]
        if commit["at"] > fault["at"] and (commit["batch"] or 0) >= (fault["batch"] or 0)
    ]
    seconds, number = min(since, default=(None, None))
    return {**fault, "recovered_after": seconds, "by_attempt": number}


def _batches(
    attempts: list[dict[str, Any]], savepoints: list[dict[str, Any]], published: dict[tuple[str, int, int], int]
) -> list[dict[str, Any]]:
    """Published batches of the newest version of every operator, with what their savepoints keep."""
    newest = {row["operator"]: row["version"] for row in savepoints}
    kept: dict[tuple[str, int, int], dict[str, int]] = {}
    for row in savepoints:
        place = _place(row)
        if published.get(place) == row["attempt"] and row["version"] == newest[row["operator"]]:
            entry = kept.setdefault(place, {"bytes": 0, "start_sn": row["start_sn"], "end_sn": row["end_sn"]})
            entry["bytes"] += row["bytes"]
    started = {
        (p["operator"], p["batch"], a["number"]): p for a in attempts for p in a["phases"] if p["name"] == "detect.started"
    }
    matches = {(c["operator"], c["batch"]): c for a in attempts for c in a["commits"] if c["name"] == "complex_events"}
    return [
        {
            "operator": operator,
            "batch": batch,
            "attempt": published[operator, version, batch],
            "carried": started.get((operator, batch, published[operator, version, batch]), {}).get("carried", 0),
            "matches": matches.get((operator, batch), {}).get("matches"),
            **entry,
        }
        for (operator, version, batch), entry in sorted(kept.items())
    ]


def _place(savepoint: dict[str, Any]) -> tuple[str, int, int]:
    return savepoint["operator"], savepoint["version"], savepoint["batch"]


def _quarantine(lake: Lake) -> dict[str, Any]:
    rows = lake.read("quarantine").to_pylist()
    return {"rows": len(rows), "examples": [{k: r[k] for k in ("file", "row", "reason")} for r in rows[:10]]}


def _earlier(lake: Lake) -> list[dict[str, Any]]:
    rows = sorted(lake.read("verdicts").to_pylist(), key=lambda row: row["at"], reverse=True)
    return [
        {"at": f"{r['at']:%Y-%m-%d %H:%M:%S}", **{k: r[k] for k in ("operator", "verdict", "events", "matches")}}
        for r in rows[:20]
    ]


def versions() -> dict[str, str]:
    packages = ("pyspark", "apache-airflow", "deltalake", "great-expectations", "pyarrow", "numba")
    return {"reprise": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def _timeline(facts: dict[str, Any]) -> dict[str, Any]:
    """Two scales: the lives of all processes, and the batches of each detection with its start-up left out."""
    attempts = facts["attempts"]
    if not attempts:
        return {"lives": [], "work": [], "life_ticks": [], "work_ticks": []}
    begin = min(a["start"] for a in attempts)
    span = max(max(a["end"] for a in attempts) - begin, 0.001)
    lives = [
        {
            **{name: attempt[name] for name in ("number", "job", "ended")},
            "bars": [_bar(attempt["start"], attempt["end"], begin, span)],
            "kill": _percent(attempt["fault"]["at"], begin, span) if attempt["fault"] else None,
        }
        for attempt in attempts
    ]
    busy = [(attempt, batches) for attempt in attempts if (batches := _batch_spans(attempt))]
    longest = max((batches[-1]["end"] - batches[0]["start"] for _, batches in busy), default=0.001)
    work = [
        {
            **{name: attempt[name] for name in ("number", "job", "ended")},
            "bars": [
                _bar(b["start"], b["end"], batches[0]["start"], longest) | {"batch": b["batch"], "came": b["came"]}
                for b in batches
            ],
            "kill": _percent(attempt["fault"]["at"], batches[0]["start"], longest) if attempt["fault"] else None,
            "replayed": sum(r["events"] for r in attempt["replays"] if r["processed"]),
        }
        for attempt, batches in busy
    ]
    return {"lives": lives, "work": work, "life_ticks": _ticks(span), "work_ticks": _ticks(longest)}


def _batch_spans(attempt: dict[str, Any]) -> list[dict[str, Any]]:
    """When each batch of a detection began and ended, and what came of it: published, held for a peer that did so, or lost."""
    open_: dict[tuple[Any, Any], dict[str, Any]] = {}
    spans = []
    for phase in attempt["phases"]:
        place = (phase["operator"], phase["batch"])
        if phase["name"] == "detect.started":
            open_[place] = {"start": phase["at"], "end": attempt["end"], "batch": phase["batch"], "came": "lost"}
        elif phase["name"] == "detect.written" and place in open_ and attempt["replica"] is not None:
            open_[place] |= {"end": phase["at"], "came": "held"}
        elif phase["name"] == "detect.finished" and place in open_:
            spans.append({**open_.pop(place), "end": phase["at"], "came": "published"})
    return sorted([*spans, *open_.values()], key=lambda span: float(span["start"]))


def _bar(start: float, end: float, begin: float, span: float) -> dict[str, Any]:
    left = _percent(start, begin, span)
    return {"left": left, "width": max(0.5, _percent(end, begin, span) - left)}


def _percent(at: float, begin: float, span: float) -> float:
    return round(100 * (at - begin) / span, 3)


def _ticks(span: float) -> list[dict[str, Any]]:
    return [{"left": 25 * i, "label": f"{span * i / 4:.1f} s" if span >= 4 else f"{span * i / 4:.2f} s"} for i in range(5)]
