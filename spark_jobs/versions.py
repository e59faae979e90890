"""Operator versions: a changed pattern, window, key or input is a new version of an operator, beside the old one.

A version is added once, with the point of the log it begins after. It is computed side by side with the current one; the
cut-over makes it current, for all changed operators in one commit. What an old version has published stays.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from schemas import versions
from spark_jobs.errors import RepriseError
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Pipeline

ADDED, CURRENT, RETIRED = "added", "current", "retired"
LOG_VERSION = 0
# Raises where a version cannot begin where it is to begin.
Admit = Callable[["Version"], None]


@dataclass(frozen=True)
class Version:
    """One definition of an operator, and where it begins."""

    operator: str
    number: int
    fingerprint: str
    after_sn: int
    inputs: Mapping[str, int]  # the version of every operator it reads; the log has none
    current: bool
    retired: bool = False

    @property
    def operators(self) -> dict[str, int]:
        return {name: number for name, number in self.inputs.items() if name != EVENT_LOG}


@dataclass(frozen=True)
class Registry:
    """All versions in one version of the table."""

    handle: DeltaTable
    versions: tuple[Version, ...]

    def of(self, operator: str, fingerprint: str) -> Version | None:
        """The newest version with this meaning: an operator changed back and forth has two of them."""
        mine = [v for v in self.versions if (v.operator, v.fingerprint) == (operator, fingerprint) and not v.retired]
        return max(mine, key=lambda v: (v.current, v.number), default=None)

    def current(self, operator: str) -> Version | None:
        return next((v for v in self.versions if v.operator == operator and v.current), None)

    def living(self, operator: str) -> list[Version]:
        """The current version, and those that are being computed to follow it."""
        current = self.current(operator)
        mine = [v for v in self.versions if v.operator == operator and not v.retired]
        return [v for v in mine if current is None or v.number >= current.number]

    def next_number(self, operator: str) -> int:
        return max((v.number for v in self.versions if v.operator == operator), default=0) + 1


def registry(lake: Lake) -> Registry:
    handle = lake.open("versions", versions.SCHEMA)
    rows = lake.read_version("versions", handle).sort_by("step").to_pylist()
    current = {row["operator"]: row["version"] for row in rows if row["kind"] == CURRENT}
    retired = {(row["operator"], row["version"]) for row in rows if row["kind"] == RETIRED}
    return Registry(
        handle,
        tuple(
            Version(
                row["operator"],
                row["version"],
                row["fingerprint"],
                row["after_sn"],
                json.loads(row["inputs"]),
                current.get(row["operator"]) == row["version"],
                (row["operator"], row["version"]) in retired,
            )
            for row in rows
            if row["kind"] == ADDED
        ),
    )


def resolve(lake: Lake, pipeline: Pipeline, admit: Admit) -> dict[str, Version]:
    """The version of every operator that the pipeline file defines. An operator that is new begins with the log."""
    return _with_versions(lake, pipeline, admit, None)


def upgrade(lake: Lake, pipeline: Pipeline, admit: Admit, after_sn: int) -> dict[str, Version]:
    """The same, where a changed operator becomes a new version that begins after an SN of the log."""
    return _with_versions(lake, pipeline, admit, after_sn)


def changed(known: Registry, pipeline: Pipeline) -> list[str]:
    """The operators whose definition, or that of what they read, no version has; those new to the lake are not among them."""
    return [
        name
        for name in pipeline.order
        if known.of(name, pipeline.fingerprint(name)) is None and any(v.operator == name for v in known.versions)
    ]


def cut_over(lake: Lake, pipeline: Pipeline) -> list[Version]:
    """Make the versions of the pipeline file current, all in one commit. Those that had to change, in their order."""
    while True:
        known = registry(lake)
        chosen = [known.of(name, pipeline.fingerprint(name)) for name in pipeline.order]
        ahead = [version for version in chosen if version is not None and not version.current]
        if not ahead or _committed(known, [_row(pipeline.definition(v.operator), v, CURRENT) for v in ahead]):
            return ahead


def retire(lake: Lake, operator: str) -> list[Version]:
    """Let go of an operator that is not wanted any more: trims do not wait for it. Its output stays."""
    while True:
        known = registry(lake)
        living = known.living(operator)
        if not living:
            raise RepriseError(f"no version of operator '{operator}' is alive in this lake; 'reprise show versions' lists them")
        if _committed(known, [_row("", version, RETIRED) for version in living]):
            return living


def _with_versions(lake: Lake, pipeline: Pipeline, admit: Admit, after_sn: int | None) -> dict[str, Version]:
    while True:
        known = registry(lake)
        if after_sn is None and (names := changed(known, pipeline)):
            raise RepriseError(
                f"operator {', '.join(map(repr, names))} was changed since it published: its savepoint does not fit "
                "the new definition. Nothing was changed. 'reprise upgrade PIPELINE --lake LAKE' computes the new version "
                "beside the old one, then 'reprise cut-over PIPELINE --lake LAKE' makes it the current one."
            )
        resolved: dict[str, Version] = {}
        rows: list[dict[str, Any]] = []
        for name in pipeline.order:
            version = known.of(name, pipeline.fingerprint(name))
            if version is None:
                version = _new(known, pipeline, name, resolved, after_sn or 0)
                admit(version)
                kinds = (ADDED, CURRENT) if version.current else (ADDED,)
                rows += [_row(pipeline.definition(name), version, kind) for kind in kinds]
            resolved[name] = version
        if not rows or _committed(known, rows):
            return resolved


def _new(known: Registry, pipeline: Pipeline, name: str, resolved: Mapping[str, Version], after_sn: int) -> Version:
    upstream = [i for i in pipeline.operators[name].inputs if i != EVENT_LOG]
    inputs = {i: resolved[i].number if i != EVENT_LOG else LOG_VERSION for i in pipeline.operators[name].inputs}
    # It cannot know more of the log than what it reads does.
    after = max([after_sn, *(resolved[i].after_sn for i in upstream)])
    first = known.current(name) is None
    return Version(name, known.next_number(name), pipeline.fingerprint(name), after, inputs, current=first)


def _row(definition: str, version: Version, kind: str) -> dict[str, Any]:
    return {
        "at": dt.datetime.now(dt.UTC),
        "operator": version.operator,
        "version": version.number,
        "kind": kind,
        "fingerprint": version.fingerprint,
        "after_sn": version.after_sn,
        "definition": definition,
        "inputs": json.dumps(dict(version.inputs)),
    }


def _committed(known: Registry, rows: Sequence[dict[str, Any]]) -> bool:
    """Append, unless somebody else was faster; then it has to be decided anew."""
    step = known.handle.version() + 1
    table = pa.Table.from_pylist([{**row, "step": step} for row in rows], versions.SCHEMA)
    try:
        write_deltalake(known.handle, table, mode="append", commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError:
        return False
    return True
