"""The Delta tables of one lake folder: opening, creating, appending, reading."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_jobs.errors import RepriseError

# A commit that fails where somebody else was first, instead of being put behind it.
IF_UNCHANGED = CommitProperties(max_commit_retries=0)
# Who opens a table, or brings a handle up to date, reads all commits since the last Delta checkpoint. With one after every 100
# commits, as is usual, a commit takes twice as long after 60 of them as it does with these.
CHECKPOINT_EVERY = 10
_LAYOUT = {"delta.checkpointInterval": str(CHECKPOINT_EVERY)}


class Lake:
    """A folder of Delta tables. It is created by the first job that writes into it."""

    def __init__(self, root: str | Path) -> None:
        if re.match(r"[a-z][a-z0-9+.-]*:/", str(root)):
            raise RepriseError(
                f"a lake is a folder, not an address: {root}. Nothing was changed. Use a folder that all machines see under "
                "the same path; what object stores would take is in docs/howto/go-to-a-cluster.md"
            )
        self.root = Path(root).resolve()
        if self.root.exists() and not self.root.is_dir():
            raise RepriseError(f"the lake {self.root} is a file, not a folder. Nothing was changed. Choose another path")
        if "%" in str(self.root):  # deltalake decodes it and looks in another folder (1.6.6)
            raise RepriseError(f"a lake's path may not contain '%': {self.root}; choose another folder")

    def path(self, table: str) -> str:
        return str(self.root / table)

    def scratch(self, name: str) -> Path:
        """A folder for files that no table names. What processes left behind that no longer run is swept out first."""
        home, host = self.root / "_scratch", socket.gethostname()
        for folder in home.glob(f"*@{host}.*"):  # of another host nobody here can tell what runs
            if not Path("/proc", folder.suffix[1:]).exists():
                shutil.rmtree(folder, ignore_errors=True)
        folder = home / f"{name}@{host}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def has(self, table: str) -> bool:
        return DeltaTable.is_deltatable(self.path(table))

    def open(self, table: str, schema: pa.Schema, partition_by: Sequence[str] = (), *, may_grow: bool = False) -> DeltaTable:
        """The table as it is now; created empty where it does not exist yet.

        A table that may grow has the columns of all who ever wrote to it: new ones are added, old ones stay.
        """
        if not self.has(table):
            Path(self.path(table)).mkdir(parents=True, exist_ok=True)
            _create(self.path(table), schema, partition_by)
        found = DeltaTable(self.path(table))
        if found.metadata().partition_columns != list(partition_by):
            raise RepriseError(
                f"table '{table}' was laid out by another version of Reprise. Nothing was changed. Ingest and detect into a "
                "new lake; the landing files are all it takes."
            )
        if may_grow:
            return _with_columns(table, found, schema)
        _check_columns(table, found, schema)
        return found

    def append(self, table: str, rows: pa.Table) -> None:
        """Add rows for which no order and no uniqueness has to be defended."""
        self.open(table, rows.schema)
        write_deltalake(self.path(table), rows, mode="append")

    def read(self, table: str, columns: list[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """The rows of a table as it is now, empty with no columns if it does not exist."""
        if not self.has(table):
            return pa.table({})
        return self.read_version(table, DeltaTable(self.path(table)), columns, where)

    def read_version(
        self,
        table: str,
        handle: DeltaTable,
        columns: list[str] | None = None,
        where: pc.Expression | None = None,
        names: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of the version that the handle shows, or of some of its files.

        Files are opened by Arrow itself: its threads do not survive the end of the process when they read through
        deltalake's file system (deltalake 1.6.6 with pyarrow 26: "terminate called", exit code 134, now and then).
        """
        import pyarrow.dataset as ds  # loads pandas, which tasks that only match have no use for

        schema = pa.schema(handle.schema().to_arrow())
        files = [f"{self.path(table)}/{name}" for name in (file_names(handle) if names is None else names)]
        folders = pa.schema([schema.field(name) for name in handle.metadata().partition_columns])
        partitioning = ds.partitioning(folders, flavor="hive") if len(folders) else None
        dataset = ds.dataset(
            files, format="parquet", schema=schema, partitioning=partitioning, partition_base_dir=self.path(table)
        )
        return dataset.to_table(columns=columns, filter=where)


def _create(path: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Of several who find no table one creates it. With retries, a second one would lay it out anew over the first's rows."""
    with suppress(CommitFailedError):
        DeltaTable.create(
            path,
            schema,
            mode="ignore",
            partition_by=list(partition_by),
            configuration=_LAYOUT,
            commit_properties=IF_UNCHANGED,
        )


def file_names(handle: DeltaTable) -> list[str]:
    """The table's files, relative to its folder. Not `file_uris()`: those are encoded, and a folder may have a space."""
    names: list[str] = pa.table(handle.get_add_actions(flatten=True))["path"].to_pylist()
    return names


def _with_columns(table: str, found: DeltaTable, schema: pa.Schema) -> DeltaTable:
    """The table with all columns of the schema."""
    have = _types(found)
    other = [f"'{f.name}' is {f.type}, was {have[f.name]}" for f in schema if have.get(f.name, f.type) != f.type]
    if other:
        raise RepriseError(
            f"table '{table}' has these columns with another type: {', '.join(other)}. One column has one type for all "
            "versions of an operator. Nothing was changed. Give the measure a new name."
        )
    new = [field for field in schema if field.name not in have]
    while new:
        try:
            found.alter.add_columns([Field.from_arrow(field) for field in new])
        except CommitFailedError:  # somebody else committed meanwhile: look again
            found = DeltaTable(found.table_uri)
            new = [field for field in schema if field.name not in _types(found)]
            continue
        return DeltaTable(found.table_uri)
    return found


def _types(found: DeltaTable) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in pa.schema(found.schema().to_arrow())}


def _check_columns(table: str, found: DeltaTable, schema: pa.Schema) -> None:
    have = _types(found)
    want = {field.name: field.type for field in schema}
    if list(have.items()) == list(want.items()):
        return
    changes = [f"new column '{name}'" for name in want if name not in have]
    changes += [f"no column '{name}' any more" for name in have if name not in want]
    changes += [f"'{n}' is {want[n]}, was {have[n]}" for n in want if n in have and want[n] != have[n]]
    raise RepriseError(
        f"table '{table}' was created by another version of this pipeline: {', '.join(changes) or 'other order of columns'}. "
        "Nothing was changed. Use a new lake folder, or the pipeline file it was made with."
    )
