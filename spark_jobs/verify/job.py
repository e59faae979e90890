"""The verification job: reference run, checkers, expectations, and a row in `verdicts`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from schemas import verdicts
from spark_jobs.cep.arrays import NOT_HELD
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.matcher import Known
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant, Instants, merge
from spark_jobs.cep.sequencer import LOG_SN
from spark_jobs.errors import RepriseError
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.outputs import open_outputs, output_of
from spark_jobs.lake.scan import EventLog, open_log, read_events
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.streams import Part, as_events, merged, stored_columns_of
from spark_jobs.verify.checkers import Evidence, run_checkers
from spark_jobs.verify.expectations import SUITES, Suite
from spark_jobs.verify.reference import reference_events
from spark_jobs.verify.verdict import Finding, Verdict, worst
from spark_jobs.versions import Registry, Version, registry


@dataclass(frozen=True)
class Verification:
    """The verdict on one operator."""

    operator: str
    version: int
    verdict: Verdict
    events: int
    matches: int
    reference_matches: int
    findings: list[Finding]
    after_sn: int = 0  # the version begins after this event of the log

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "findings": [finding.as_dict() for finding in self.findings]}

    def as_row(self) -> dict[str, Any]:
        """Of the table `verdicts`."""
        said = self.as_dict()
        del said["after_sn"]
        return {**said, "findings": json.dumps(said["findings"])}


def verify(pipeline: Pipeline, lake: Lake) -> list[Verification]:
    """Compare every operator's output with its reference run, and keep the verdicts."""
    if not lake.has("event_log"):
        raise RepriseError(f"{lake.root} has no event_log; ingest first. Nothing was verified.")
    log = open_log(lake, pipeline.source.schema)
    known = registry(lake)
    starts = {name: version.after_sn for name, version in known.matching(pipeline).items()}
    with Suite(SUITES / "complex_events.yaml") as suite:
        done = [_judged(pipeline, name, known, starts, lake, log, suite) for name in pipeline.order]
    now = dt.datetime.now(dt.UTC)
    rows = [{**v.as_row(), "at": now, "pipeline": pipeline.name} for v in done]
    lake.append("verdicts", pa.Table.from_pylist(rows, verdicts.SCHEMA))
    return done


def _judged(
    pipeline: Pipeline, name: str, known: Registry, starts: Mapping[str, int], lake: Lake, log: EventLog, suite: Suite
) -> Verification:
    """What cannot be read cannot be judged."""
    version = known.matching(pipeline).get(name)
    try:
        return _verify_operator(pipeline, version or _not_yet(known, name), starts, lake, log, suite)
    except (pa.ArrowException, OSError, DeltaError, RepriseError) as error:
        finding = Finding("readable", Verdict.UNKNOWN, 1, note=f"a table or file could not be read: {_first_line(error)}")
        return Verification(name, version.number if version else 0, Verdict.UNKNOWN, 0, 0, 0, [finding])


def _not_yet(known: Registry, name: str) -> Version:
    """The version that an operator which nobody has run yet will have."""
    if known.of(name):
        raise RepriseError(
            f"operator '{name}' as the pipeline file defines it is not in the lake; 'reprise upgrade' computes it"
        )
    return Version(name, known.next_number(name), "", 0, {}, current=False)


def make_reference(
    pipeline: Pipeline, name: str, lake: Lake, log: EventLog, end_sn: int, starts: Mapping[str, int] | None = None
) -> pa.Table:
    """The reference output of an operator, over the log up to `end_sn` and what the operators that it reads make of it.

    `starts` says after which SN operators begin that do not begin with the log. The file name says what it covers, so it is
    made once.
    """
    after_sn = (starts or {}).get(name, 0)
    file = lake.root / "_reference" / f"{name}-{pipeline.fingerprint(name)}-{after_sn}-{end_sn}.parquet"
    if not _readable(file):
        if log.trimmed_sn > after_sn:
            raise RepriseError(
                f"the log was trimmed up to event {log.trimmed_sn:,}: there is no reference run from event {after_sn + 1:,} on"
            )
        made = _made(pipeline, name, lake, log, end_sn, starts or {})
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{file}.partial")
        pq.write_table(made, partial)
        partial.rename(file)
    return pq.read_table(file)


def _made(pipeline: Pipeline, name: str, lake: Lake, log: EventLog, end_sn: int, starts: Mapping[str, int]) -> pa.Table:
    operator, inputs, after_sn = pipeline.built[name], pipeline.operators[name].inputs, starts.get(name, 0)
    since = log.stream_ts_at(after_sn) if after_sn else NOT_HELD
    watermark = log.stream_ts_at(end_sn) if end_sn else NOT_HELD
    if inputs == [EVENT_LOG]:
        before, events = after_sn, _log_events(log, operator.columns, after_sn, end_sn)
    else:
        tables = [
            _log_events(log, stored_columns_of(i, log.schema, operator), 0, end_sn)
            if i == EVENT_LOG
            else make_reference(pipeline, i, lake, log, end_sn, starts)
            for i in inputs
        ]
        before, events = _merged(operator, inputs, tables, Instant(since, after_sn))
    first = operator.window.first_open(before, since) if before else operator.window.first_window()
    known = Known(before, before + events.num_rows, since, watermark, first)
    return reference_events(operator, events, known, inputs)


def _log_events(log: EventLog, columns: Sequence[str], after_sn: int, end_sn: int) -> pa.Table:
    nothing = np.empty(0, np.int64)
    files = log.shard_files(0, 1, None, end_sn)
    return read_events(files, log.schema, columns, nothing, after_sn, end_sn, in_sn_order=True)


def _merged(operator: Operator, inputs: list[str], tables: list[pa.Table], after: Instant) -> tuple[int, pa.Table]:
    """The merged stream of some inputs after an instant, and how many of their events lie before it."""
    parts = [as_events(name, table, operator) for name, table in zip(inputs, tables, strict=True)]
    instants = [Instants(int64s(part["stream_ts"]), int64s(part[LOG_SN])) for part in parts]
    before = [part.upto(after) for part in instants]
    numbers, _ = merge([Instants(i.ts[n:], i.sn[n:]) for i, n in zip(instants, before, strict=True)], sum(before) + 1)
    return sum(before), merged([
        Part(name, part.slice(n), places) for name, part, n, places in zip(inputs, parts, before, numbers, strict=True)
    ])


def _readable(file: Path) -> bool:
    """A reference that was cut off is made anew."""
    try:
        return file.exists() and pq.read_metadata(file).num_rows >= 0
    except (pa.ArrowException, OSError):
        return False


def _verify_operator(
    pipeline: Pipeline, version: Version, starts: Mapping[str, int], lake: Lake, log: EventLog, suite: Suite
) -> Verification:
    table = open_outputs(lake, pipeline.output_schema)
    # One version of the table for both: a detection that goes on meanwhile must not look like a false positive.
    output = output_of(lake, table, version.operator, version.number)
    end_sn = output.committed.at.sn if output.committed.batch else version.after_sn
    mine = (pc.field("operator") == version.operator) & (pc.field("version") == version.number)
    left = pc.field("ordinal") > output.trimmed_sn  # what was trimmed cannot be judged any more
    plan = FaultPlan(lake)
    evidence = Evidence(
        actual=lake.read_version("complex_events", table, where=mine & left),
        expected=make_reference(pipeline, version.operator, lake, log, end_sn, starts).filter(left),
        detected_sn=end_sn,
        log_sn=log.last_sn,
        reference_sn=end_sn,
        faults_armed=len(plan.armed()),
        faults_fired=len(plan.fired()),
    )
    findings = [*run_checkers(evidence), *_expectations(evidence, suite)]
    return Verification(
        operator=version.operator,
        version=version.number,
        verdict=worst(finding.verdict for finding in findings),
        events=end_sn,
        matches=evidence.actual.num_rows,
        reference_matches=evidence.expected.num_rows,
        findings=findings,
        after_sn=version.after_sn,
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _expectations(evidence: Evidence, suite: Suite) -> list[Finding]:
    """The suite over the output. Without a single complex event there is nothing a suite could say."""
    try:
        rows = evidence.rows
        if rows.empty:
            return []
        checks = suite.check(pa.Table.from_pandas(rows, preserve_index=False))
    except Exception as error:  # a suite that could not run has proven nothing
        return [Finding("expectations", Verdict.UNKNOWN, note=f"the suite did not run: {error}")]
    failed = [check for check in checks if not check.met]
    note = f"{len(checks) - len(failed)} of {len(checks)} met"
    examples = [{"expectation": check.expectation, "detail": check.detail} for check in failed[:10]]
    return [Finding("expectations", Verdict.INVALID if failed else Verdict.VALID, len(failed), examples, note)]
