"""The comparison of an output with its reference, as tasks of bounded size, whatever the number of complex events.

    1  records_task   reads a stretch of either side and leaves its records in a scratch file, in parts by hash of the identity
    2  compare_task   takes one part of both sides, sorts it, and pairs what is the same complex event
    3  order_task     only where the output does not lie in order: one range of ordinals, sorted

Numbers and examples are all that comes back; the driver then fetches the few rows that examples name. A complex event that
occurs several times is paired occurrence by occurrence, the k-th published with the k-th of the reference; what is published
more often than that is a duplicate, not false. A lost one is not misordered.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.cep.arrays import FOREVER, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.errors import RepriseError
from spark_jobs.lake.seal import CHECKED, broken
from spark_jobs.runner import Runner
from spark_jobs.verify.examples import MAX_EXAMPLES, Hit, named
from spark_jobs.verify.records import IDENTITY, NUMBERS, RECORD, Records, plain_types, records_of, said_columns

# Rows that one task reads, and rows of either side in one part: some 100 MB of memory each, and seconds of work.
TASK_ROWS = 1_000_000
PART_ROWS = 500_000
# Rows that are decoded at a time.
BATCH_ROWS = 1 << 17
# Read as codes, so that each key is hashed once. Not text in lists: Arrow cannot read that across row groups (pyarrow 26).
CODED = ["key"]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Piece:
    """A Parquet file of one side. The output's are in the order of their first ordinals, the reference's in order."""

    path: str
    rows: int


@dataclass(frozen=True)
class Scope:
    """Which part of an operator's complex events is compared."""

    floor: int = 0  # the output was trimmed up to this ordinal: what is left below it cannot be judged
    after: int = 0  # up to here it was judged before, and the reference begins after it
    batch: int = 0  # the last batch that was judged before
    rewritten: int = 0  # complex events judged before that lie in files written since
    detected_sn: int = FOREVER  # the output covers the log up to here


EVERYTHING = Scope()


@dataclass(frozen=True)
class Comparison:
    """What the comparison has found."""

    rows: int = 0
    reference_rows: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    duplicates: int = 0
    false_order: int = 0
    first_ordinal: int | None = None
    last_ordinal: int | None = None
    missing_ordinals: int = 0
    null_keys: int = 0  # more rows without a key than the reference has
    lost: int = 0  # complex events that were judged before and are gone
    last_batch: int = 0
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def compare(
    runner: Runner,
    scratch: Path,
    actual: Sequence[Piece],
    expected: Sequence[Piece],
    measures: Iterable[str],
    scope: Scope = EVERYTHING,
) -> Comparison:
    """Compare the complex events in the files of both sides. `scratch` is a folder for this comparison alone."""
    scratch.mkdir(parents=True)
    try:
        return _Compared(runner, scratch, actual, expected, said_columns(measures), scope).result()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Compared:
    """One comparison, stage by stage."""

    def __init__(
        self,
        runner: Runner,
        scratch: Path,
        actual: Sequence[Piece],
        expected: Sequence[Piece],
        said: list[str],
        scope: Scope,
    ) -> None:
        self.runner, self.scratch, self.said, self.scope = runner, scratch, said, scope
        self.actual, self.expected = actual, expected
        largest = max(sum(piece.rows for piece in side) for side in (actual, expected))
        self.parts = max(1, -(-largest // PART_ROWS))

    def result(self) -> Comparison:
        ours, reference = self._records()
        span = _Span.of(ours, self.scope)
        cuts = None if span.in_order else _cuts(ours, self.parts)
        paired = self._paired(ours, reference, cuts)
        hits = {kind: _first([part["hits"][kind] for part in paired]) for kind in ("false_positives", "false_negatives")}
        if cuts is None:
            judged, distinct = paired, span.rows
        else:
            judged = self._ordered(paired, len(cuts) + 1)
            distinct = sum(part["distinct"] for part in judged)
        hits |= {kind: _first([part["hits"][kind] for part in judged]) for kind in ("duplicates", "false_order")}
        old = sum(task["old"] for task in ours)
        surplus = max(0, old - self.scope.rewritten)  # numbers that were given before, given again
        if surplus:
            hits["duplicates"] = _first([hits["duplicates"], [hit for task in ours for hit in task["old_hits"]]])
        nulls = [sum(task["null_keys"] for task in side) for side in (ours, reference)]
        return Comparison(
            rows=span.rows + surplus,
            reference_rows=sum(task["rows"] for task in reference),
            false_positives=_total(paired, "false_positives"),
            false_negatives=_total(paired, "false_negatives"),
            duplicates=_total(judged, "duplicates") + surplus,
            false_order=_total(judged, "false_order"),
            first_ordinal=span.first,
            last_ordinal=span.last,
            missing_ordinals=max(0, span.last - self.scope.after - distinct) if span.last is not None else 0,
            null_keys=max(0, nulls[0] - nulls[1]),
            lost=max(0, self.scope.rewritten - old),
            last_batch=max([self.scope.batch, *(task["batches"][1] for task in ours if task["batches"])]),
            examples=named(hits, [p.path for p in self.actual], [p.path for p in self.expected], self.said),
        )

    def _records(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        scope = {"floor": self.scope.floor, "after": self.scope.after, "upto_sn": self.scope.detected_sn}
        payloads = [
            {
                "stretches": [stretch._asdict() for stretch in load],
                "rows": sum(stretch.rows for stretch in load),
                "said": self.said,
                "reference": side == "reference",
                "parts": self.parts,
                "out": f"{self.scratch}/{side}-{index}",
                **scope,
            }
            for side, pieces in (("output", self.actual), ("reference", self.expected))
            for index, load in enumerate(_loads(pieces))
        ]
        done = self.runner.run(records_task, payloads)
        sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        for payload, result in zip(payloads, done, strict=True):
            sides[bool(payload["reference"])].append(result)
        return sides

    def _paired(
        self, ours: list[dict[str, Any]], reference: list[dict[str, Any]], cuts: list[int] | None
    ) -> list[dict[str, Any]]:
        rows = sum(task["rows"] for task in [*ours, *reference]) // self.parts
        payloads = [
            {
                "output": _slices(ours, part),
                "reference": _slices(reference, part),
                "rows": rows,
                "cuts": cuts,
                "out": f"{self.scratch}/paired-{part}",
            }
            for part in range(self.parts)
        ]
        return self.runner.run(compare_task, payloads)

    def _ordered(self, paired: list[dict[str, Any]], ranges: int) -> list[dict[str, Any]]:
        """Twice: what comes before a range decides which of its batches is out of turn."""
        common = [{"slices": _slices(paired, k), "rows": sum(p["counts"][k] for p in paired)} for k in range(ranges)]
        highest = self.runner.run(order_task, [{**payload, "before": None} for payload in common])
        before = accumulate((found["highest"] for found in highest), max, initial=self.scope.batch)
        return self.runner.run(order_task, [{**payload, "before": b} for payload, b in zip(common, before, strict=False)])


# Stage 1: records


class Stretch(NamedTuple):
    """Consecutive row groups of a file; None is all of them."""

    file: int
    path: str
    groups: list[int] | None
    first_row: int
    rows: int


def _loads(pieces: Sequence[Piece]) -> list[list[Stretch]]:
    """What each task reads: stretches in order, together about TASK_ROWS."""
    loads: list[list[Stretch]] = []
    size = 0
    for stretch in _stretches(pieces):
        if not loads or size + stretch.rows > TASK_ROWS:
            loads.append([])
            size = 0
        loads[-1].append(stretch)
        size += stretch.rows
    return loads


def _stretches(pieces: Sequence[Piece]) -> Iterator[Stretch]:
    for index, piece in enumerate(pieces):
        if piece.rows <= TASK_ROWS:
            yield Stretch(index, piece.path, None, 0, piece.rows)
            continue
        metadata = pq.read_metadata(piece.path)
        first = 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            yield Stretch(index, piece.path, [group], first, rows)
            first += rows


def records_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Leave the records of some stretches in a scratch file, part by part; say how many, and whether they lie in order."""
    found = [np.empty(0, RECORD)]
    old, nulls, old_hits = 0, 0, []
    for stretch in payload["stretches"]:
        for rows, places in _batches(stretch, payload["said"]):
            ordinal = int64s(rows["ordinal"])
            wanted = ordinal > payload["after"]
            if payload["reference"]:
                wanted &= int64s(rows["decided_sn"]) <= payload["upto_sn"]
            else:
                before = np.flatnonzero(~wanted & (ordinal > payload["floor"]))
                old += before.size
                old_hits += [Hit(int(ordinal[i]), (stretch["file"], int(places[i])), None) for i in before[:MAX_EXAMPLES]]
            if not wanted.all():
                rows, places = rows.filter(pa.array(wanted)), places[wanted]
            nulls += rows["key"].null_count
            found.append(records_of(rows, payload["said"], stretch["file"], places))
    records = np.concatenate(found)
    return {
        **_written(payload["out"], records, (records["high"] % np.uint64(payload["parts"])).astype(np.int64), payload["parts"]),
        **_order_of(records["ordinal"], records["batch"]),
        "rows": records.size,
        "null_keys": nulls,
        "old": old,
        "old_hits": old_hits[:MAX_EXAMPLES],
    }


def _batches(stretch: dict[str, Any], said: Sequence[str]) -> Iterator[tuple[pa.Table, Int64s]]:
    if stretch["first_row"] == 0 and (wrong := broken(stretch["path"])):
        raise RepriseError(f"{stretch['path']}: {wrong}")
    with pq.ParquetFile(stretch["path"], read_dictionary=CODED, memory_map=True, **CHECKED) as file:
        columns = [name for name in dict.fromkeys([*NUMBERS, *IDENTITY, *said]) if name in file.schema_arrow.names]
        groups = stretch["groups"] if stretch["groups"] is not None else list(range(file.num_row_groups))
        row = stretch["first_row"]
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False):
            yield plain_types(pa.Table.from_batches([batch])), np.arange(row, row + batch.num_rows)
            row += batch.num_rows


def _written(path: str, rows: npt.NDArray[Any], part: Int64s, parts: int) -> dict[str, Any]:
    """Rows in a file by part, in their order; where the parts lie."""
    # numpy sorts 16-bit numbers by counting, which is ten times faster.
    order = np.argsort(part.astype(np.uint16) if parts <= 1 << 16 else part, kind="stable")
    rows[order].tofile(path)
    return {"path": path, "counts": np.bincount(part, minlength=parts).tolist()}


def _slices(written: Sequence[dict[str, Any]], part: int) -> list[tuple[str, int, int]]:
    """Where the rows of one part lie: file, first row, number."""
    return [(w["path"], sum(w["counts"][:part]), w["counts"][part]) for w in written if w["counts"][part]]


def _read(slices: Sequence[tuple[str, int, int]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    size = np.dtype(dtype).itemsize
    parts = [np.fromfile(path, dtype, count, offset=first * size) for path, first, count in slices]
    return np.concatenate([np.empty(0, dtype), *parts])


def _order_of(ordinal: Int64s, batch: Int64s) -> dict[str, Any]:
    if not ordinal.size:
        return {"ordinals": None, "batches": None, "in_order": True, "marks": []}
    return {
        "ordinals": [int(ordinal.min()), int(ordinal.max())],
        "batches": [int(batch.min()), int(batch.max())],
        "in_order": bool((np.diff(ordinal) > 0).all() and (np.diff(batch) >= 0).all()),
        "marks": np.quantile(ordinal, np.linspace(0, 1, 17), method="lower").tolist(),
    }


class _Span(NamedTuple):
    """The ordinals of an output, from what its stretches say."""

    rows: int
    first: int | None
    last: int | None
    in_order: bool  # ordinals rise and batches never fall, within every stretch and from each to the next

    @classmethod
    def of(cls, tasks: Sequence[dict[str, Any]], scope: Scope) -> _Span:
        filled = [task for task in tasks if task["rows"]]
        if not filled:
            return cls(0, None, None, True)
        ordinals, batches = [t["ordinals"] for t in filled], [[scope.batch, scope.batch], *(t["batches"] for t in filled)]
        in_order = (
            all(task["in_order"] for task in filled)
            and all(below[1] < above[0] for below, above in pairwise(ordinals))
            and all(below[1] <= above[0] for below, above in pairwise(batches))
        )
        first, last = min(low for low, _ in ordinals), max(high for _, high in ordinals)
        return cls(sum(task["rows"] for task in filled), first, last, in_order)


def _cuts(tasks: Sequence[dict[str, Any]], ranges: int) -> list[int]:
    """Ordinals that cut the output into ranges of about equal size."""
    marks = np.sort(np.concatenate([np.empty(0, np.int64), *(np.array(task["marks"], np.int64) for task in tasks)]))
    return np.unique(marks[np.arange(1, ranges) * marks.size // ranges]).tolist() if marks.size else []


# Stage 2: pairs

PAIRED = np.dtype([
    ("ordinal", np.int64),
    ("batch", np.int64),
    ("file", np.uint32),
    ("row", np.uint32),
    ("partner_file", np.uint32),
    ("partner_row", np.uint32),
    ("has_partner", np.bool_),
    ("repeated", np.bool_),
    ("renumbered", np.bool_),
])


def compare_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Judge one part of all identities."""
    ours, reference = _read(payload["output"], RECORD), _read(payload["reference"], RECORD)
    partner, repeated, found = _pairs(ours, reference)
    both = partner >= 0
    pair = reference[np.maximum(partner, 0)] if reference.size else np.zeros(ours.size, RECORD)
    # The same events with another key, time or measure are not the reference's match.
    false = ~both | (ours["content"] != pair["content"])
    renumbered = both & ((ours["x"] != pair["x"]) | (ours["ordinal"] != pair["ordinal"]))
    misplaced = renumbered & ~repeated
    result = {
        "false_positives": int(false.sum()),
        "false_negatives": int((~found).sum()),
        "duplicates": int(repeated.sum()),
        "false_order": int(misplaced.sum()),
        "hits": {
            "false_positives": _hits(ours, pair, both, false),
            "false_negatives": [hit._replace(found=None, expected=hit.found) for hit in _hits(reference, None, None, ~found)],
            "duplicates": _hits(ours, pair, both, repeated),
            "false_order": _hits(ours, pair, both, misplaced),
        },
    }
    if payload["cuts"] is None:
        return result
    rows = np.zeros(ours.size, PAIRED)
    for name in ("ordinal", "batch", "file", "row"):
        rows[name] = ours[name]
    rows["partner_file"], rows["partner_row"], rows["has_partner"] = pair["file"], pair["row"], both
    rows["repeated"], rows["renumbered"] = repeated, renumbered
    ranges = np.searchsorted(np.array(payload["cuts"], np.int64), ours["ordinal"], side="right")
    return {**result, **_written(payload["out"], rows, ranges, len(payload["cuts"]) + 1)}


def _pairs(ours: Records, reference: Records) -> tuple[Int64s, Bools, Bools]:
    """Per row of the output: its partner in the reference (-1: none), and whether it is one too many; per row of the
    reference: whether it was found."""
    high = np.concatenate([reference["high"], ours["high"]])
    low = np.concatenate([reference["low"], ours["low"]])
    partner, repeated, found = np.full(ours.size, -1), np.zeros(ours.size, np.bool_), np.zeros(reference.size, np.bool_)
    if not high.size:
        return partner, repeated, found
    order = np.argsort(high, kind="stable")
    begins = _begins(high[order], low[order])
    if begins.size != np.unique(high).size:  # two identities share the first half of their hash
        order = np.lexsort((low, high))
        begins = _begins(high[order], low[order])
    # The reference's rows of a group come first, because they came first and the sort is stable.
    sizes = np.diff(begins, append=high.size)
    group, is_ours = np.repeat(np.arange(begins.size), sizes), order >= reference.size
    wanted = sizes - np.add.reduceat(is_ours.astype(np.int64), begins)
    place = np.arange(high.size) - begins[group]
    found[order[~is_ours]] = (place < (sizes - wanted)[group])[~is_ours]
    mine = np.flatnonzero(is_ours)
    row, group = order[mine] - reference.size, group[mine]
    nth, count = place[mine] - wanted[group], wanted[group]
    partner[row] = np.where(count > 0, order[begins[group] + np.minimum(nth, np.maximum(count, 1) - 1)], -1)
    repeated[row] = nth >= np.maximum(count, 1)
    return partner, repeated, found


def _begins(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> Int64s:
    new = np.ones(high.size, np.bool_)
    new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return np.flatnonzero(new)


def _hits(rows: Any, pair: Any, both: Bools | None, flagged: Bools) -> list[Hit]:
    """The first of the flagged rows, by ordinal."""
    place = np.flatnonzero(flagged)
    place = place[np.argsort(rows["ordinal"][place], kind="stable")[:MAX_EXAMPLES]]
    return [
        Hit(
            int(rows["ordinal"][i]),
            (int(rows["file"][i]), int(rows["row"][i])),
            (int(pair["file"][i]), int(pair["row"][i])) if both is not None and both[i] else None,
        )
        for i in place
    ]


# Stage 3: order


def order_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Judge one range of ordinals: numbers given twice, and batches out of turn."""
    rows = _read(payload["slices"], PAIRED)
    rows = rows[np.lexsort((rows["row"], rows["file"], rows["ordinal"]))]
    again = np.zeros(rows.size, np.bool_)
    again[1:] = rows["ordinal"][1:] == rows["ordinal"][:-1]
    duplicate = rows["repeated"] | again
    firsts = np.flatnonzero(~duplicate)
    batch = rows["batch"][firsts]
    if payload["before"] is None:
        return {"highest": int(batch.max(initial=0))}
    out_of_turn = np.zeros(rows.size, np.bool_)
    out_of_turn[firsts] = batch < np.maximum.accumulate(np.maximum(batch, payload["before"]))
    misplaced = rows["has_partner"] & ~duplicate & (rows["renumbered"] | out_of_turn)
    pair = {"file": rows["partner_file"], "row": rows["partner_row"]}
    return {
        "duplicates": int(duplicate.sum()),
        "false_order": int(misplaced.sum()),
        "distinct": int(rows.size - again.sum()),
        "hits": {
            "duplicates": _hits(rows, pair, rows["has_partner"], duplicate),
            "false_order": _hits(rows, pair, rows["has_partner"], misplaced),
        },
    }


def _total(parts: Sequence[dict[str, Any]], kind: str) -> int:
    return sum(part[kind] for part in parts)


def _first(hits: Sequence[Sequence[Any]]) -> list[Hit]:
    return sorted((Hit.read(hit) for part in hits for hit in part), key=lambda hit: hit.ordinal)[:MAX_EXAMPLES]
