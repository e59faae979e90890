"""The comparison as simply as it can be said, row by row in memory: the oracle of spark_jobs/verify/comparison.py."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

IDENTITY = ["y", "sns", "inputs", "symbols", "timed_out"]
KINDS = ["false_positives", "false_negatives", "duplicates", "false_order"]
Row = dict[str, Any]


def reconciled(ours: list[Row], reference: list[Row], said: list[str], detected_sn: int) -> dict[str, int]:
    """How many rows break each property."""
    wanted: dict[str, list[Row]] = defaultdict(list)
    for row in reference:
        if row["decided_sn"] <= detected_sn:
            wanted[_identity(row)].append(row)
    published: dict[str, int] = defaultdict(int)
    ordinals: set[int] = set()
    judged = []
    for row in ours:
        identity = _identity(row)
        nth, partners = published[identity], wanted[identity]
        published[identity] += 1
        duplicate = nth >= max(1, len(partners)) or row["ordinal"] in ordinals
        ordinals.add(row["ordinal"])
        judged.append((row, partners[min(nth, len(partners) - 1)] if partners else None, duplicate))

    highest, out_of_turn = 0, set()
    for row, _, duplicate in sorted(judged, key=lambda j: j[0]["ordinal"]):
        if not duplicate:
            highest = max(highest, row["batch"])
            if row["batch"] < highest:
                out_of_turn.add(id(row))

    counts = dict.fromkeys(KINDS, 0)
    counts["false_negatives"] = sum(max(0, len(rows) - published[identity]) for identity, rows in wanted.items())
    for row, partner, duplicate in judged:
        counts["duplicates"] += duplicate
        counts["false_positives"] += partner is None or _text(row, said) != _text(partner, said)
        if partner is not None and not duplicate:
            renumbered = (row["x"], row["ordinal"]) != (partner["x"], partner["ordinal"])
            counts["false_order"] += renumbered or id(row) in out_of_turn
    return counts


def _identity(row: Row) -> str:
    return _text({**row, "inputs": row.get("inputs") or None}, IDENTITY)


def _text(row: Row, names: list[str]) -> str:
    return repr([row.get(name) for name in names])
