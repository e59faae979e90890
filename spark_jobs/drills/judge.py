"""The verdict of a drill: the five properties, and whether what was broken was noticed by whoever had to.

On a lake without faults this is plain verification. Damage that nobody has met before the verification has to show in it;
then it is healed, as a person on call would from a backup, and the verdict is given anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_jobs.faults import storage
from spark_jobs.faults.fault import Fault
from spark_jobs.faults.inputs import POISONED
from spark_jobs.faults.phases import COMMITTED
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.history import Attempt, read_history
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.runner import Runner
from spark_jobs.verify.expectations import Suite
from spark_jobs.verify.job import Verification, verify
from spark_jobs.verify.verdict import Finding, Verdict, worst

History = Sequence[dict[str, Any]]

NOTICED = "faults noticed"


def judge(
    pipeline: Pipeline,
    lake: Lake,
    runner: Runner | None = None,
    *,
    full: bool = False,
    announce: Callable[[str], None] = lambda line: None,
    suite: Suite | None = None,
) -> list[Verification]:
    """Verify; where a drill has struck, also judge whether the damage was noticed."""
    if not FaultPlan(lake).fired():
        return verify(pipeline, lake, runner, full=full, suite=suite)
    unseen = []
    if wounds := storage.unmet(lake):
        attempt = Attempt(lake, "verify", announce)
        attempt.heal()
        for wound in wounds:  # each alone, so that none hides behind another
            with wound.open():
                first = verify(pipeline, lake, runner, full=True, suite=suite, record=False)
            if worst(verification.verdict for verification in first) is Verdict.VALID:
                unseen.append(wound.path.name)
        attempt.record("end", "done")
    # Of a commit, some bytes say nothing to us.
    unseen = [name for name in unseen if not name.endswith(".json")]
    return verify(pipeline, lake, runner, full=full, also=[_noticed(lake, unseen)], suite=suite)


def _noticed(lake: Lake, unseen: list[str]) -> Finding:
    """Some faults must leave a trace: of those that struck, which did not?"""
    history, plan = read_history(lake), FaultPlan(lake)
    # Replicas that live hold what comes next: nobody has to read the savepoint of one that was killed, or to stop it.
    alone = len(plan.armed()) == 1 and not _has("leader")(history, lake)
    traces = _TRACES | (_TRACES_ALONE if alone else {})
    silent = [str(fault) for fault in plan.fired() if _leaves_a_trace(fault, traces) and not traces[fault.kind](history, lake)]
    examples = [{"fault": text} for text in silent] + [{"damaged file": name} for name in unseen]
    if not examples:
        return Finding(NOTICED, Verdict.VALID, note="everything that had to leave a trace did")
    return Finding(NOTICED, Verdict.INVALID, len(examples), examples[:10])


def _leaves_a_trace(fault: Fault, traces: Mapping[str, Any]) -> bool:
    """Who hangs after a commit has done it, and nobody has to stop him."""
    return fault.kind in traces and not (fault.kind == "zombie" and fault.phase in COMMITTED)


def _has(kind: str) -> Callable[[History, Lake], bool]:
    return lambda history, lake: any(row["kind"] == kind for row in history)


def _dropped(history: History, lake: Lake) -> bool:
    """Events or whole files that were known."""
    ingests = [row["detail"] for row in history if row["kind"] == "commit" and row["name"] == "event_log"]
    return any(ingest["duplicates"] or ingest.get("known_files") for ingest in ingests)


def _quarantined(kind: str, at_least: int) -> Callable[[History, Lake], bool]:
    """Of every partition that was spoiled so, some rows; the log may have had others that are unusable."""

    def there(history: History, lake: Lake) -> bool:
        files = lake.read("quarantine", ["file"])["file"].to_pylist() if lake.has("quarantine") else []
        spoiled = [row["detail"]["partition"] for row in history if (row["kind"], row["name"]) == ("fault", kind)]
        return all(sum(f"{partition}/" in file for file in files) >= at_least for partition in spoiled)

    return there


_TRACES: dict[str, Callable[[History, Lake], bool]] = {
    "drop_partition": _has("gap"),
    "deliver_twice": _dropped,
    "change_schema": _quarantined("change_schema", 1),
    "poison_rows": _quarantined("poison_rows", POISONED),
}
# These may be cut short by another fault that strikes in between.
_TRACES_ALONE: dict[str, Callable[[History, Lake], bool]] = {
    "zombie": _has("fence"),
    "truncate_savepoint": _has("repair"),
    "delete_savepoint": _has("repair"),
}
