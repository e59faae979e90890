"""What a verification may go on from: the last valid verdict on the same operator version, and the files that it covers.

A verdict that was unknown or invalid is never gone on from; one that found damage takes away all earlier ones that cover it.
The covered files are not read again, but they have to be there: the same names, as many rows, as many bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.errors import RepriseError
from spark_jobs.lake.scan import number_range
from spark_jobs.lake.tables import Lake
from spark_jobs.verify.chain import Chain
from spark_jobs.verify.comparison import Piece
from spark_jobs.verify.verdict import Verdict
from spark_jobs.versions import Version


@dataclass(frozen=True)
class OutputFile:
    """A file of complex events, as the table's log describes it."""

    name: str  # below the table's folder
    rows: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Base:
    """Where a valid verdict stands, and what it covers."""

    sn: int
    ordinal: int
    batch: int
    files: dict[str, OutputFile]

    def store(self, folder: Path, version: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        said = {"ordinal": self.ordinal, "batch": self.batch, "files": [[*vars(file).values()] for file in self.files.values()]}
        partial = _covered(folder, version, self.sn).with_suffix(".partial")
        partial.write_text(json.dumps(said))
        partial.rename(_covered(folder, version, self.sn))


# Of somebody who compares everything.
NO_BASE = Base(0, 0, 0, {})


@dataclass(frozen=True)
class Since:
    """What has happened to the files since a base."""

    new: list[Piece]
    rewritten: int  # complex events that the base covers, in files that are gone: they have to be in new ones
    replaced: int  # of those, more than a trim explains


def files_of(lake: Lake, table: DeltaTable, operator: str, version: int) -> dict[str, OutputFile]:
    """The files of an operator version, by name, in the order of their ordinals."""
    found = []
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        if row["partition.operator"] == operator and int(row["partition.version"]) == version:
            path = f"{lake.path('complex_events')}/{row['path']}"
            found.append(OutputFile(row["path"], row["num_records"] or 0, row["size_bytes"], *number_range(path, "ordinal")))
    return {file.name: file for file in sorted(found, key=lambda file: (file.first, file.last, file.name))}


def base_of(lake: Lake, chain: Chain, version: Version) -> Base | None:
    """The newest valid verdict that still holds and from which the reference can go on."""
    rows = [row for row in lake.read("verdicts").to_pylist() if _is_about(row, version)]
    undisputed: float = float("inf")
    for row in sorted(rows, key=lambda row: row["at"], reverse=True):
        if row["verdict"] == Verdict.INVALID:
            undisputed = min(undisputed, row["from_ordinal"] - 1)
        elif row["verdict"] == Verdict.VALID and row["to_ordinal"] <= undisputed:
            base = _loaded(chain, version, row)
            if base is not None:
                return base
    return None


def since(base: Base, lake: Lake, files: dict[str, OutputFile], trimmed: int) -> Since:
    """Compare the files that a base covers with those that are there now."""
    for name, file in base.files.items():
        if name in files:
            _check_unchanged(Path(lake.path("complex_events"), name), file, files[name])
    gone = [file for name, file in base.files.items() if name not in files and file.last > trimmed]
    return Since(
        [Piece(f"{lake.path('complex_events')}/{name}", f.rows) for name, f in files.items() if name not in base.files],
        sum(min(file.last, base.ordinal) - max(file.first - 1, trimmed) for file in gone),
        sum(file.rows for file in gone if file.first > trimmed),
    )


def _is_about(row: dict[str, Any], version: Version) -> bool:
    same = (row["operator"], row["version"]) == (version.operator, version.number)
    return same and row.get("fingerprint") == version.fingerprint and row["to_ordinal"] is not None


def _loaded(chain: Chain, version: Version, row: dict[str, Any]) -> Base | None:
    link = chain.ending(version.operator, row["to_sn"])
    if link is None or link.seed.ordinal - 1 != row["to_ordinal"]:
        return None
    try:
        said = json.loads(_covered(chain.folder(version.operator), version.number, row["to_sn"]).read_text())
        files = {name: OutputFile(name, *numbers) for name, *numbers in said["files"]}
        if said["ordinal"] != row["to_ordinal"]:
            return None
        return Base(row["to_sn"], said["ordinal"], said["batch"], files)
    except (OSError, ValueError, KeyError, TypeError):  # without it, everything is compared anew
        return None


def _check_unchanged(path: Path, then: OutputFile, now: OutputFile) -> None:
    there = path.stat().st_size if path.exists() else 0
    if then != now or there != then.size:
        raise RepriseError(
            f"{path.name} had {then.rows:,} rows and {then.size:,} bytes when a verdict covered it, and has {now.rows:,} rows "
            f"and {there:,} bytes now; compare everything anew: reprise verify --full"
        )


def _covered(folder: Path, version: int, sn: int) -> Path:
    return folder / f"covered-v{version}.{sn}.json"
