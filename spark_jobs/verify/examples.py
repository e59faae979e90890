"""Examples of what is wrong: few rows, fetched from their files and named by both numbers, so that a person finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.verify.records import plain_types

# Enough to see what went wrong; the counts say how much.
MAX_EXAMPLES = 10
Address = tuple[int, int]  # file, row
_NAMED = ["x", "y", "ordinal", "key", "batch", "sns"]


class Hit(NamedTuple):
    """A row that a property does not hold for: where it lies in the output and in the reference."""

    ordinal: int
    found: Address | None
    expected: Address | None

    @classmethod
    def read(cls, hit: Sequence[Any]) -> Hit:
        """From JSON, which knows lists only."""
        ordinal, found, expected = hit
        return cls(ordinal, tuple(found) if found else None, tuple(expected) if expected else None)


def named(
    hits: Mapping[str, Sequence[Hit]], actual: Sequence[str], expected: Sequence[str], said: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Per kind of damage, the examples."""
    ours = _fetched(actual, [hit.found for kind in hits.values() for hit in kind], said)
    theirs = _fetched(expected, [hit.expected for kind in hits.values() for hit in kind], said)
    return {
        kind: [_example(ours.get(hit.found), theirs.get(hit.expected), _attempt(actual, hit.found)) for hit in found]
        for kind, found in hits.items()
    }


def _fetched(
    files: Sequence[str], addresses: Sequence[Address | None], said: Sequence[str]
) -> dict[Address | None, dict[str, Any]]:
    """The rows at some addresses, by address; only the row groups that hold one are read."""
    rows: dict[Address | None, dict[str, Any]] = {}
    wanted = sorted({address for address in addresses if address is not None})
    for index in sorted({file for file, _ in wanted}):
        places = np.array([row for file, row in wanted if file == index])
        with pq.ParquetFile(files[index], memory_map=True) as file:
            columns = [name for name in dict.fromkeys([*_NAMED, *said]) if name in file.schema_arrow.names]
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            ends = np.cumsum(sizes)
            groups = np.searchsorted(ends, places, side="right")
            for group in np.unique(groups):
                mine = places[groups == group]
                table = plain_types(file.read_row_group(int(group), columns=columns)).take(
                    pa.array(mine - (ends[group] - sizes[group]))
                )
                for place, row, text in zip(mine.tolist(), table.to_pylist(), _content(table, said), strict=True):
                    rows[index, place] = {**row, "says": text}
    return rows


def _example(found: dict[str, Any] | None, expected: dict[str, Any] | None, attempt: int | None) -> dict[str, Any]:
    """Names a complex event by both its numbers."""

    def number(row: dict[str, Any] | None) -> str | None:
        return None if row is None else f"{row['x']}:{row['y']} (no. {row['ordinal']})"

    row = found or expected or {}
    example = {
        "found": number(found),
        "expected": number(expected),
        "events": ",".join(map(str, row["sns"])),
        "key": row["key"],
        "batch": found["batch"] if found else None,
    }
    if attempt is not None:
        example["attempt"] = attempt
    if found and expected and found["says"] != expected["says"]:
        example |= {"says": found["says"], "should say": expected["says"]}
    return example


def _attempt(files: Sequence[str], address: Address | None) -> int | None:
    """Which attempt wrote a row, where the name of its file says so (lake/outputs.py, `output_name`)."""
    if address is None:
        return None
    written = re.search(r"/ce-\d+-\d+-\d+-(\d+)-\d+(?:\.[0-9a-f]{8})?\.parquet$", files[address[0]])
    return int(written[1]) if written else None


def _content(table: pa.Table, said: Sequence[str]) -> list[str]:
    """What a match says besides what it is, as text; text is quoted, so 'NULL' is not NULL."""
    texts = []
    for name in said:
        column = table[name].combine_chunks() if name in table.column_names else pa.nulls(table.num_rows, pa.string())
        text = column.cast(pa.string())
        if pa.types.is_string(column.type):
            text = pc.binary_join_element_wise("'", text, "'", "")
        texts.append(pc.binary_join_element_wise(f"{name}=", pc.fill_null(text, "NULL"), ""))
    joined: list[str] = pc.binary_join_element_wise(*texts, " | ").to_pylist()
    return joined
