"""The five properties of strong reliability (seed 003, definition 1), each with a checker of its own.

A checker sees only the evidence: the output, the reference, and how far the output reaches. A checker that
crashes says unknown. The row-wise part is one table, a row per complex event with a boolean per property, so
that a lost event is not counted as misordered, nor a duplicate as false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from schemas import complex_events
from spark_jobs.verify.verdict import Finding, Verdict

# Enough to see what went wrong; the counts say how much.
MAX_EXAMPLES = 10
# What a complex event is: the same events may be bound to other symbols, or be the start of a match that timed out.
IDENTITY = ["y", "events", "inputs", "symbols", "timed_out"]
# The fixed columns that say something else about it; the others are numbers and where it came from.
SAID = {"key", "ts", "decided_ts", "decided_sn"}


@dataclass(frozen=True)
class Evidence:
    """The output of one operator, what it should be, and what was done to it."""

    actual: pa.Table
    expected: pa.Table
    detected_sn: int  # the output covers the log up to here
    log_sn: int
    reference_sn: int  # the reference covers the log up to here
    faults_armed: int = 0
    faults_fired: int = 0

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The reconciliation table."""
        return reconcile(self.actual, self.expected, self.detected_sn)


class Checker(Protocol):
    def __call__(self, evidence: Evidence) -> Finding: ...


def reconcile(actual: pa.Table, expected: pa.Table, detected_sn: int) -> pd.DataFrame:
    """One row per complex event of either side; a complex event is known by its window, its events and their symbols."""
    # The table has the measures of all operators; the reference has this one's.
    said = sorted(set(expected.column_names) - (set(complex_events.FIXED_NAMES) - SAID))
    ours, reference = _frame(actual, said), _frame(expected, said)
    reference = reference[reference["decided_sn"] <= detected_sn]
    ours["duplicate"] = ours.duplicated(IDENTITY) | ours.duplicated(["ordinal"])
    first = ours[~ours["duplicate"]].sort_values("ordinal")
    ours["out_of_turn"] = (first["batch"] < first["batch"].cummax()).reindex(ours.index, fill_value=False)
    joined = ours.merge(reference, on=IDENTITY, how="outer", suffixes=("", "_expected"), indicator="side")
    both = joined["side"] == "both"
    joined["false_positive"] = joined["side"] == "left_only"
    joined["false_negative"] = joined["side"] == "right_only"
    joined["duplicate"] = joined["duplicate"].eq(True)
    # The same events with another key, time or measure are not the reference's match.
    joined["false_positive"] |= both & (joined["content"] != joined["content_expected"])
    renumbered = (joined["x"] != joined["x_expected"]) | (joined["ordinal"] != joined["ordinal_expected"])
    joined["false_order"] = both & ~joined["duplicate"] & (renumbered | joined["out_of_turn"].eq(True))
    for name in ("operator", "key", "x", "ordinal", "content"):
        joined[name] = joined[name].where(joined["side"] != "right_only", joined[f"{name}_expected"])
    return joined.drop(columns=["side", "out_of_turn"])


def row_checker(column: str, meaning: str) -> Checker:
    """A property that holds if no row of the reconciliation table has its flag set."""

    def check(evidence: Evidence) -> Finding:
        if evidence.reference_sn < evidence.detected_sn:
            note = f"the reference ends at event {evidence.reference_sn:,}, the output at {evidence.detected_sn:,}"
            return Finding(meaning, Verdict.UNKNOWN, note=note)
        hit = evidence.rows[evidence.rows[column]]
        examples = [_example(row) for row in hit.head(MAX_EXAMPLES).to_dict("records")]
        return Finding(meaning, Verdict.INVALID if len(hit) else Verdict.VALID, len(hit), examples)

    return check


def check_completeness(evidence: Evidence) -> Finding:
    """Everything in the reference is there in the end: the whole log was processed and nothing is missing."""
    name = "completeness"
    if evidence.detected_sn < evidence.log_sn:
        left = evidence.log_sn - evidence.detected_sn
        note = f"{left:,} of {evidence.log_sn:,} events are not processed yet; run detect, then verify again"
        return Finding(name, Verdict.UNKNOWN, left, note=note)
    missing = int(evidence.rows["false_negative"].sum())
    return Finding(name, Verdict.INVALID if missing else Verdict.VALID, missing)


def check_faults_fired(evidence: Evidence) -> Finding:
    """A drill whose fault did not strike has shown nothing."""
    unfired = evidence.faults_armed - evidence.faults_fired
    note = f"{evidence.faults_fired} of {evidence.faults_armed} armed faults fired"
    return Finding("faults fired", Verdict.UNKNOWN if unfired else Verdict.VALID, unfired, note=note)


CHECKERS: dict[str, Checker] = {
    "no false positives": row_checker("false_positive", "no false positives"),
    "no false negatives": row_checker("false_negative", "no false negatives"),
    "no duplicates": row_checker("duplicate", "no duplicates"),
    "no false order": row_checker("false_order", "no false order"),
    "completeness": check_completeness,
}


def run_checkers(evidence: Evidence, checkers: dict[str, Callable[[Evidence], Finding]] | None = None) -> list[Finding]:
    """All findings; a checker that crashes is unknown, never a pass."""
    chosen = dict(CHECKERS if checkers is None else checkers)
    if evidence.faults_armed:
        chosen["faults fired"] = check_faults_fired
    findings = []
    for name, check in chosen.items():
        try:
            findings.append(check(evidence))
        except Exception as error:  # whatever broke the checker, it has proven nothing
            note = f"the checker failed: {type(error).__name__}: {error}"
            findings.append(Finding(name, Verdict.UNKNOWN, note=note))
    return findings


def _frame(table: pa.Table, said: list[str]) -> pd.DataFrame:
    frame: pd.DataFrame = table.select(["operator", "x", "y", "ordinal", "key", "batch", "decided_sn"]).to_pandas()
    frame["events"] = _joined(table["sns"].combine_chunks())
    frame["symbols"] = _texts(table["symbols"])
    frame["inputs"] = _texts(table["inputs"]) if "inputs" in table.column_names else ""
    frame["timed_out"] = pc.fill_null(table["timed_out"], False).to_pandas().astype(bool)
    frame["content"] = _content(table, said)
    return frame


def _content(table: pa.Table, said: list[str]) -> Any:
    """What a match says besides what it is, as one comparable text per row; text is quoted, so 'NULL' is not NULL."""
    texts = []
    for name in said:
        column = table[name].combine_chunks()
        text = column.cast(pa.string())
        if pa.types.is_string(column.type):
            text = pc.binary_join_element_wise("'", text, "'", "")
        texts.append(pc.binary_join_element_wise(f"{name}=", pc.fill_null(text, "NULL"), ""))
    return pc.binary_join_element_wise(*texts, " | ").to_pandas().astype(str)


def _texts(lists: pa.ChunkedArray) -> Any:
    joined = pc.binary_join(lists.combine_chunks().cast(pa.list_(pa.string())), " ")
    return pc.fill_null(joined, "").to_pandas().astype(str)


def _joined(lists: pa.Array) -> Any:
    """`12,15,31`: a list as one comparable value."""
    texts = (
        pa.ListArray.from_arrays(lists.offsets, lists.values.cast(pa.string()))
        if len(lists)
        else pa.array([], pa.list_(pa.string()))
    )
    return pc.binary_join(texts, ",").to_pandas().astype(str)


def _example(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Names a complex event by both its numbers."""

    def number(x: Any, ordinal: Any) -> str | None:
        return None if pd.isna(ordinal) else f"{int(x)}:{int(row['y'])} (no. {int(ordinal)})"

    example = {
        "found": None if row["false_negative"] else number(row["x"], row["ordinal"]),
        "expected": number(row["x_expected"], row["ordinal_expected"]),
        "events": row["events"],
        "key": row["key"],
        "batch": None if pd.isna(row["batch"]) else int(row["batch"]),
    }
    if not pd.isna(row["content_expected"]) and row["content"] != row["content_expected"]:
        example |= {"says": row["content"], "should say": row["content_expected"]}
    return example
