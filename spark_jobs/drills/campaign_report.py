"""What a campaign says: a few tables on the screen, and one HTML page that opens offline."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from spark_jobs.faults.catalogue import CATALOGUE
from spark_jobs.report import page, versions

Table = tuple[str, list[str], list[list[object]]]
# Bars of the histogram of recovery times.
_BINS = 12


def write_campaign_report(found: dict[str, Any], out: Path) -> None:
    facts = {
        **found,
        "verdict": verdict_of(found),
        "groups": _groups(found),
        "bins": _bins(found["recoveries"]),
        "unfired": {kind: s - f for kind, (s, f) in found["faults"].items() if f < s},
        "made": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "versions": versions(),
    }
    out.write_text(page("campaign.html.j2", facts=facts), encoding="utf-8")


def verdict_of(found: dict[str, Any]) -> str:
    verdicts = found["verdicts"]
    simulated = (found.get("simulated") or {}).get("anomalies")
    return "invalid" if verdicts["invalid"] or simulated else "unknown" if verdicts["unknown"] else "valid"


def summary_tables(found: dict[str, Any]) -> list[Table]:
    """What is printed when a campaign ends."""
    share = f"{1 - found['replayed'] / found['processed']:.1%} skipped" if found["processed"] else "no recovery"
    bound = found["anomaly_bound"]
    facts: list[list[object]] = [
        ["runs", f"{found['runs']} of {found['wanted']}"],
        ["valid, invalid, unknown", ", ".join(str(count) for count in found["verdicts"].values())],
        ["faults scheduled, fired", f"{found['scheduled']}, {found['fired']}"],
        ["anomalies", ", ".join(f"{name}: {count}" for name, count in found["anomalies"].items()) or "none"],
        ["events replayed", f"{found['replayed']:,} of {found['processed']:,} processed ({share})"],
        ["recovery time p50, p95", f"{_seconds(found['recovery_p50'])}, {_seconds(found['recovery_p95'])}"],
        ["rate of anomalies, upper 95% bound", f"{bound:.2%} of runs" if bound is not None else "nothing was judged"],
        ["processes left behind", str(found["leftovers"])],
        ["time", f"{found['seconds'] / 60:.1f} min"],
    ]
    if found.get("simulated"):
        said = found["simulated"]
        facts.append(["simulated schedules", f"{said['schedules']:,}, {said['anomalies']} with anomalies"])
    kinds: list[list[object]] = [[kind, CATALOGUE[kind].group.value, s, f] for kind, (s, f) in found["faults"].items()]
    return [
        (f"campaign with seed {found['seed']}", ["what", "value"], facts),
        ("faults", ["kind", "group", "scheduled", "fired"], kinds),
    ]


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f} s"


def _groups(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Kinds of faults by group, with how often they were to strike and did."""
    most = max((s for s, _ in found["faults"].values()), default=1)
    groups: dict[str, list[dict[str, Any]]] = {}
    for kind, (scheduled, fired) in found["faults"].items():
        entry = CATALOGUE[kind]
        bar = {"scheduled": scheduled, "fired": fired, "width": 100 * scheduled / most, "share": 100 * fired / scheduled}
        groups.setdefault(entry.group.value, []).append({"kind": kind, "breaks": entry.breaks, **bar})
    return groups


def _bins(recoveries: list[float]) -> list[dict[str, Any]]:
    """A histogram of recovery times."""
    if not recoveries:
        return []
    width = max(recoveries[-1] / _BINS, 0.1)
    counts = [0] * _BINS
    for seconds in recoveries:
        counts[min(int(seconds / width), _BINS - 1)] += 1
    return [
        {"from": k * width, "to": (k + 1) * width, "count": c, "height": 100 * c / max(counts)} for k, c in enumerate(counts)
    ]
