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
from spark_jobs.errors import RepriseError, suggest
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
    superseded: bool = False  # it was current once
    retired: bool = False

    @property
    def operators(self) -> dict[str, int]:
        return {name: number for name, number in self.inputs.items() if name != EVENT_LOG}


@dataclass(frozen=True)
class Registry:
    """All versions in one version of the table."""

    handle: DeltaTable
    versions: tuple[Version, ...]

    def matching(self, pipeline: Pipeline) -> dict[str, Version]:
        """The version of every operator that the pipeline file defines; one that is not there has none yet."""
        found: dict[str, Version] = {}
        for name in pipeline.order:
            version = self.match(pipeline, name, found)
            if version is not None:
                found[name] = version
        return found

    def match(self, pipeline: Pipeline, name: str, upstream: Mapping[str, Version]) -> Version | None:
        """The newest version of an operator with the meaning it has in the file, and that reads those versions."""
        fingerprint = pipeline.fingerprint(name)
        inputs = {i: LOG_VERSION if i == EVENT_LOG else _number(upstream.get(i)) for i in pipeline.operators[name].inputs}
        mine = [v for v in self.of(name) if not v.retired and v.fingerprint == fingerprint and v.inputs == inputs]
        return max(mine, key=lambda v: v.number, default=None)

    def of(self, operator: str) -> list[Version]:
        return [v for v in self.versions if v.operator == operator]

    def current(self, operator: str) -> Version | None:
        return next((v for v in self.versions if v.operator == operator and v.current), None)

    def living(self, operator: str) -> list[Version]:
        """The current version, and those that are being computed to follow it; not one that another has followed."""
        return [v for v in self.of(operator) if not v.retired and (v.current or not v.superseded)]

    def next_number(self, operator: str) -> int:
        return max((v.number for v in self.of(operator)), default=0) + 1


def _number(version: Version | None) -> int:
    return version.number if version else -1


def registry(lake: Lake) -> Registry:
    handle = lake.open("versions", versions.SCHEMA)
    rows = lake.read_version("versions", handle).sort_by("step").to_pylist()
    current = {row["operator"]: row["version"] for row in rows if row["kind"] == CURRENT}
    once, retired = ({(r["operator"], r["version"]) for r in rows if r["kind"] == kind} for kind in (CURRENT, RETIRED))
    return Registry(
        handle,
        tuple(
            Version(
                row["operator"],
                row["version"],
                row["fingerprint"],
                row["after_sn"],
                json.loads(row["inputs"]),
                current.get(row["operator"]) == row["version"] and (row["operator"], row["version"]) not in retired,
                current.get(row["operator"]) != row["version"] and (row["operator"], row["version"]) in once,
                (row["operator"], row["version"]) in retired,
            )
            for row in rows
            if row["kind"] == ADDED
        ),
    )


def resolve(lake: Lake, pipeline: Pipeline, admit: Admit) -> dict[str, Version]:
    """The version of every operator that the pipeline file defines. An operator that is new begins with the log."""
    while True:
        known = registry(lake)
        _refuse_changed(known, pipeline)
        resolved, rows = _resolved(known, pipeline, admit, 0, ())
        if not rows or _committed(known, rows):
            return resolved


def upgrade(
    lake: Lake, pipeline: Pipeline, admit: Admit, after_sn: int | None, again: Sequence[str] = ()
) -> dict[str, Version]:
    """The same, where a changed operator becomes a new version that begins after an SN of the log.

    So does one of `again`, which may be as it was. What reads a new version becomes one itself.
    """
    for name in again:
        if name not in pipeline.operators:
            raise RepriseError(f"the pipeline file has no operator '{name}'{suggest(name, list(pipeline.operators))}")
    while True:
        known = registry(lake)
        resolved, rows = _resolved(known, pipeline, admit, after_sn or 0, again)
        if after_sn is not None and not rows:
            raise RepriseError(
                f"no operator was changed, or its new version has begun already, so that none begins after event {after_sn:,}. "
                "Nothing was changed. '--again NAME' begins another version of an operator."
            )
        if not rows or _committed(known, rows):
            return resolved


def cut_over(lake: Lake, pipeline: Pipeline) -> list[Version]:
    """Make the versions of the pipeline file current, all in one commit. Those that had to change, in their order."""
    while True:
        known = registry(lake)
        ahead = [version for version in known.matching(pipeline).values() if not version.current]
        if not ahead or _committed(known, [_row(pipeline.definition(v.operator), v, CURRENT) for v in ahead]):
            return ahead


def retirable(known: Registry, pipeline: Pipeline, target: str) -> list[Version]:
    """The versions that NAME or NAME:VERSION means, if nobody needs them."""
    name, colon, number = target.partition(":")
    mine = [v for v in known.of(name) if not v.retired and (not colon or str(v.number) == number)]
    if not mine:
        raise RepriseError(f"no version of operator '{target}' is alive in this lake; 'reprise show versions' lists them")
    wanted = [v for v in mine if name in pipeline.operators and (not colon or v.current)]
    if wanted:
        raise RepriseError(
            f"the pipeline file defines operator '{name}', so it is not retired. Nothing was changed. Take it out of the file "
            f"first; of versions that are not current, name one: --retire {name}:VERSION"
        )
    readers = [v for v in known.versions if v.inputs.get(name) in [m.number for m in mine] and v in known.living(v.operator)]
    if readers:
        named = ", ".join(f"{v.operator} (version {v.number})" for v in readers)
        raise RepriseError(f"'{target}' is read by {named}, so it is not retired. Nothing was changed. Retire those first.")
    return mine


def retire(lake: Lake, pipeline: Pipeline, target: str) -> list[Version]:
    """Let go of an operator, or of one version, that is not wanted any more: trims do not wait for it. Its output stays."""
    while True:
        known = registry(lake)
        mine = retirable(known, pipeline, target)
        if _committed(known, [_row("", version, RETIRED) for version in mine]):
            return mine


def _refuse_changed(known: Registry, pipeline: Pipeline) -> None:
    matched = known.matching(pipeline)
    names = [name for name in pipeline.order if name not in matched and known.of(name)]
    gone = [name for name in names if all(v.retired for v in known.of(name))]
    if gone:
        raise RepriseError(
            f"{_operators(gone)} retired: the output stays, and ends there. Nothing was changed. Take it out of the pipeline "
            "file, or begin a new version: reprise upgrade PIPELINE --lake LAKE --from SN"
        )
    if names:
        raise RepriseError(
            f"{_operators(names)} changed since publishing: a savepoint does not fit a new definition. Nothing was changed. "
            "'reprise upgrade PIPELINE --lake LAKE' computes new versions beside the old ones, then "
            "'reprise cut-over PIPELINE --lake LAKE' makes them the current ones."
        )


def _operators(names: Sequence[str]) -> str:
    return f"operator {names[0]!r} was" if len(names) == 1 else f"operators {', '.join(map(repr, names))} were"


def _resolved(
    known: Registry, pipeline: Pipeline, admit: Admit, after_sn: int, again: Sequence[str]
) -> tuple[dict[str, Version], list[dict[str, Any]]]:
    """The versions, and the rows that those need which are new."""
    resolved: dict[str, Version] = {}
    rows: list[dict[str, Any]] = []
    for name in pipeline.order:
        version = None if name in again else known.match(pipeline, name, resolved)
        if version is None:
            version = _new(known, pipeline, name, resolved, after_sn)
            admit(version)
            kinds = (ADDED, CURRENT) if version.current else (ADDED,)
            rows += [_row(pipeline.definition(name), version, kind) for kind in kinds]
        resolved[name] = version
    return resolved, rows


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
