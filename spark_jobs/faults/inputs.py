"""Input faults: what a sender can do wrong with a partition, done to the drill's own copy of the landing files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.errors import RepriseError
from spark_jobs.faults import storage
from spark_jobs.faults.fault import Fault
from spark_jobs.lake.tables import Lake

POISONED = 3
_GARBAGE = "### not a row ###"


def copy_files(given: Path, landing: Path) -> None:
    """A drill never touches the files it was given."""
    if not given.is_dir():
        raise RepriseError(f"landing folder {given} does not exist")
    if not landing.exists():  # half a copy is never taken for a whole one
        partial = landing.with_name(f"{landing.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(given, partial)
        partial.rename(landing)


def spoil(fault: Fault, lake: Lake, landing: Path, held: Path, time_column: str, *, numbered: bool) -> str:
    """Do to the landing files what the fault says; what was done. The sender keeps what it has spoiled, and can repair it.

    `numbered`: events carry sequence numbers, so that they are known again in a file with other bytes.
    """
    partitions = sorted({file.parent for file in _files(landing)})
    if not partitions:
        raise RepriseError(f"{landing} holds no landing file; '{fault}' has nothing to spoil")
    partition = partitions[(fault.batch - 1) % len(partitions)]
    name = str(partition.relative_to(landing))
    match fault.kind:
        case "deliver_twice":
            for file in _own_files(partition):
                _deliver_again(file, numbered=numbered)
        case "deliver_late":
            _check_several(fault, partitions)
            _hold(partition, landing, held)
        case "deliver_out_of_order":
            _check_several(fault, partitions)
            early = partitions[: len(partitions) // 2]
            for one in early:
                _hold(one, landing, held)
            name = f"{len(early)} of {len(partitions)} partitions"
        case "drop_partition":
            partition = _inner(fault, partitions)
            name = str(partition.relative_to(landing))
            shutil.rmtree(partition)
        case "change_schema":
            for file in _own_files(partition):
                storage.keep(lake, fault.kind, file)
                _rename_column(file, time_column)
        case "poison_rows":
            for file in _own_files(partition)[:1]:
                storage.keep(lake, fault.kind, file)
                _poison(file, time_column)
    return name


def deliver_late(landing: Path, held: Path) -> int:
    """Deliver what was held back; the number of files."""
    files = _files(held)
    for file in files:
        target = landing / file.relative_to(held)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(file, target)
    return len(files)


def _check_several(fault: Fault, partitions: list[Path]) -> None:
    if len(partitions) < 2:
        raise RepriseError(f"'{fault}' needs two partitions or more, so that one can come after another; there is one.")


def _inner(fault: Fault, partitions: list[Path]) -> Path:
    """A partition between others of its source: that the first or the last one is missing, nobody can tell."""
    by_source: dict[str, list[Path]] = {}
    for partition in partitions:
        by_source.setdefault(partition.name, []).append(partition)
    inner = [partition for same in by_source.values() for partition in same[1:-1]]
    if not inner:
        raise RepriseError(
            f"'{fault}': no source has three hours or more, so that nobody could notice a missing one. Choose another fault, "
            "or more landing files."
        )
    return inner[(fault.batch - 1) % len(inner)]


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file()) if folder.exists() else []


def _own_files(partition: Path) -> list[Path]:
    return sorted(file for file in partition.iterdir() if file.is_file())


def _hold(partition: Path, landing: Path, held: Path) -> None:
    target = held / partition.relative_to(landing)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(partition, target)


def _deliver_again(file: Path, *, numbered: bool) -> None:
    again = file.with_name(f"again-{file.name}")
    if not numbered:
        shutil.copyfile(file, again)
    elif file.suffix == ".parquet":
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64())), again)
    else:
        _rewrite(file, again, lambda rows: rows[::-1])


def _rename_column(file: Path, column: str) -> None:
    if file.suffix == ".parquet":
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.rename_columns([f"{n}_v2" if n == column else n for n in table.column_names]), file)
    else:
        file.write_text(file.read_text(encoding="utf-8").replace(column, f"{column}_v2"), encoding="utf-8")


def _poison(file: Path, column: str) -> None:
    if file.suffix == ".parquet":
        table = pq.read_table(file, partitioning=None)
        spoiled = pa.array([row < POISONED for row in range(table.num_rows)])
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, pc.if_else(spoiled, None, table[column])), file)
    else:
        _rewrite(file, file, lambda rows: [_GARBAGE] * min(POISONED, len(rows)) + rows[POISONED:])


def _rewrite(file: Path, target: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Rows of a text file; the first line of CSV names the columns."""
    lines = file.read_text(encoding="utf-8").splitlines()
    header = 1 if file.suffix == ".csv" else 0
    target.write_text("\n".join([*lines[:header], *change(lines[header:])]) + "\n", encoding="utf-8")
