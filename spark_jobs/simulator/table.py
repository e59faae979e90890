"""Tables in memory that commit as Delta does through `deltalake` (FACTS.md; `tests/faults/test_simulator_exhaustive.py`
compares them)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, PostCommitHookProperties

Committed = Callable[["Handle", Mapping[str, int], tuple[AddAction, ...], Mapping[str, str]], None]


@dataclass
class Table:
    """One table: a version, the numbers of its applications, and its files."""

    schema: pa.Schema
    watch: Committed = lambda before, numbers, files, metadata: None
    version: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)  # the version in which an application last committed
    files: tuple[AddAction, ...] = ()

    def open(self) -> Handle:
        return Handle(self, self.version, dict(self.numbers), self.files)

    def commit(self, handle: Handle, files: Sequence[AddAction], properties: CommitProperties) -> None:
        """Compare and swap. A fresh handle may commit any number of any application, also the same one again."""
        numbers = {transaction.app_id: transaction.version for transaction in properties.app_transactions or ()}
        if handle.at != self.version:
            rivals = [app for app in numbers if self.changed.get(app, 0) > handle.at]
            if properties.max_commit_retries == 0 or rivals:
                raise CommitFailedError(f"version {handle.at + 1} is there already")
        before = self.open()
        self.version += 1
        self.numbers.update(numbers)
        self.changed.update(dict.fromkeys(numbers, self.version))
        self.files += tuple(files)
        self.watch(before, numbers, tuple(files), properties.custom_metadata or {})


@dataclass(frozen=True)
class Handle:
    """One version of a table, seen as a `DeltaTable`. It stays at that version, also after a commit of its own."""

    table: Table
    at: int
    numbers: Mapping[str, int]
    files: tuple[AddAction, ...]

    def version(self) -> int:
        return self.at

    def transaction_version(self, app: str) -> int | None:
        return self.numbers.get(app)

    def create_write_transaction(
        self,
        actions: Sequence[AddAction],
        mode: str,
        schema: pa.Schema,
        partition_by: Sequence[str],
        *,
        commit_properties: CommitProperties,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        self.table.commit(self, actions, commit_properties)

    def get_add_actions(self, flatten: bool) -> pa.Table:
        rows = [{"path": f.path, **{f"partition.{k}": v for k, v in f.partition_values.items()}} for f in self.files]
        return pa.Table.from_pylist(rows)

    def schema(self) -> Any:
        return _Schema(self.table.schema)


@dataclass(frozen=True)
class _Schema:
    arrow: pa.Schema

    def to_arrow(self) -> pa.Schema:
        return self.arrow
