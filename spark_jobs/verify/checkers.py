"""The five properties of strong reliability (seed 003, definition 1), each with a checker of its own.

A checker sees only the evidence: what the comparison of the output with its reference has found, and how far both reach. A
checker that crashes says unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spark_jobs.verify.comparison import Comparison
from spark_jobs.verify.verdict import Finding, Verdict


@dataclass(frozen=True)
class Evidence:
    """The output of one operator against what it should be, and what was done to it."""

    compared: Comparison
    detected_sn: int  # the output covers the log up to here
    log_sn: int
    reference_sn: int  # the reference covers the log up to here
    faults_armed: int = 0
    faults_fired: int = 0
    judged_before: int = 0  # complex events that earlier verdicts cover
    replaced: int = 0  # of those, in files that were written since and could not be compared again
    trimmed: int = 0  # complex events that are gone and that no verdict covers
    unread: int = 0  # of what lies before where the output has come to, what was there and not taken


class Checker(Protocol):
    def __call__(self, evidence: Evidence) -> Finding: ...


def counting(kind: str, meaning: str) -> Checker:
    """A property that holds if the comparison has found nothing of one kind."""

    def check(evidence: Evidence) -> Finding:
        if evidence.reference_sn < evidence.detected_sn:
            note = f"the reference ends at event {evidence.reference_sn:,}, the output at {evidence.detected_sn:,}"
            return Finding(meaning, Verdict.UNKNOWN, note=note)
        count = getattr(evidence.compared, kind)
        examples = evidence.compared.examples.get(kind, [])
        return Finding(meaning, Verdict.INVALID if count else Verdict.VALID, count, examples)

    return check


def check_completeness(evidence: Evidence) -> Finding:
    """Everything in the reference is there in the end: the whole log was processed and nothing is missing."""
    name = "completeness"
    if evidence.detected_sn < evidence.log_sn:
        left = evidence.log_sn - evidence.detected_sn
        note = f"{left:,} of {evidence.log_sn:,} events are not processed yet; run detect, then verify again"
        return Finding(name, Verdict.UNKNOWN, left, note=note)
    if evidence.unread:
        note = f"{evidence.unread:,} events of its inputs are not matched yet; run detect, then verify again"
        return Finding(name, Verdict.UNKNOWN, evidence.unread, note=note)
    missing = evidence.compared.false_negatives + evidence.compared.lost
    return Finding(name, Verdict.INVALID if missing else Verdict.VALID, missing)


def check_faults_fired(evidence: Evidence) -> Finding:
    """A drill whose fault did not strike has shown nothing."""
    unfired = evidence.faults_armed - evidence.faults_fired
    note = f"{evidence.faults_fired} of {evidence.faults_armed} armed faults fired"
    return Finding("faults fired", Verdict.UNKNOWN if unfired else Verdict.VALID, unfired, note=note)


def check_judged_before(evidence: Evidence) -> Finding:
    """What earlier verdicts cover is still there, in the same files."""
    name, lost, replaced = "earlier verdicts", evidence.compared.lost, evidence.replaced
    if lost:
        note = f"of {evidence.judged_before:,} complex events that earlier verdicts cover, {lost:,} are gone"
        return Finding(name, Verdict.INVALID, lost, note=note)
    if evidence.trimmed:
        note = f"{evidence.trimmed:,} complex events were trimmed before a valid verdict covered them; nobody can judge them"
        return Finding(name, Verdict.UNKNOWN, evidence.trimmed, note=note)
    if replaced:
        note = f"{replaced:,} complex events that earlier verdicts cover lie in files written since; these were not compared"
        return Finding(name, Verdict.UNKNOWN, replaced, note=note)
    return Finding(name, Verdict.VALID, note=f"{evidence.judged_before:,} complex events, not compared again")


CHECKERS: dict[str, Checker] = {
    "no false positives": counting("false_positives", "no false positives"),
    "no false negatives": counting("false_negatives", "no false negatives"),
    "no duplicates": counting("duplicates", "no duplicates"),
    "no false order": counting("false_order", "no false order"),
    "completeness": check_completeness,
}


def run_checkers(evidence: Evidence, checkers: dict[str, Callable[[Evidence], Finding]] | None = None) -> list[Finding]:
    """All findings; a checker that crashes is unknown, never a pass."""
    chosen = dict(CHECKERS if checkers is None else checkers)
    if evidence.faults_armed:
        chosen["faults fired"] = check_faults_fired
    if evidence.judged_before or evidence.trimmed:
        chosen["earlier verdicts"] = check_judged_before
    findings = []
    for name, check in chosen.items():
        try:
            findings.append(check(evidence))
        except Exception as error:  # whatever broke the checker, it has proven nothing
            note = f"the checker failed: {type(error).__name__}: {error}"
            findings.append(Finding(name, Verdict.UNKNOWN, note=note))
    return findings
