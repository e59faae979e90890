"""The bars of drills and verdicts, from the last campaign and a verification of 10 million complex events.

`make campaign` first; without a campaign there is nothing to print.
"""

from __future__ import annotations

import json
from typing import Any

from bench.bars import Bar
from bench.verification import verification
from spark_jobs.drills.campaign import CAMPAIGNS
from spark_jobs.errors import RepriseError
from spark_jobs.faults.catalogue import CATALOGUE, Group

RUNS = 400
SEEDS = 5_000


def drills(master: str) -> list[Bar]:
    found = _last_campaign()
    process = [counts for kind, counts in found["faults"].items() if CATALOGUE[kind].group is Group.PROCESS]
    simulated = found.get("simulated") or {"schedules": 0, "anomalies": 0}
    return [
        Bar("drills with real processes", found["runs"], RUNS),
        Bar("of them invalid", found["verdicts"]["invalid"], 0, at_least=False),
        Bar("of them unknown", found["verdicts"]["unknown"], 0, at_least=False),
        Bar("anomalies", sum(found["anomalies"].values()), 0, at_least=False),
        Bar("process faults that struck", sum(f for _, f in process) / max(1, sum(s for s, _ in process)), 1.0, unit="%"),
        Bar("all faults that struck", found["fired"] / max(1, found["scheduled"]), 1.0, unit="%"),
        Bar("processes left behind", found["leftovers"], 0, at_least=False),
        Bar("upper 95% bound on the rate of anomalies", found["anomaly_bound"] or 1.0, unit="%"),
        Bar("recovery time, median", found["recovery_p50"] or 0.0, unit="s"),
        Bar("recovery time, 95%", found["recovery_p95"] or 0.0, unit="s"),
        Bar("simulated schedules", simulated["schedules"], SEEDS),
        Bar("of them with anomalies", simulated["anomalies"], 0, at_least=False),
        *verification(master),
    ]


def _last_campaign() -> dict[str, Any]:
    done = sorted(CAMPAIGNS.glob("*/campaign.json"), key=lambda file: file.stat().st_mtime)
    if not done:
        raise RepriseError(f"there is no campaign below {CAMPAIGNS}; run 'make campaign' first, or 'reprise campaign'")
    found: dict[str, Any] = json.loads(done[-1].read_text())
    return found
