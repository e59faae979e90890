"""The verification job: reference run, checkers, expectations, and a row in `verdicts`."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from schemas import verdicts
from spark_jobs.cep.operator import Operator
from spark_jobs.errors import RepriseError
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.commit import claim
from spark_jobs.lake.scan import EventLog, open_log, read_events
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.recovery.store import load
from spark_jobs.verify.checkers import Evidence, run_checkers
from spark_jobs.verify.expectations import SUITES, Suite
from spark_jobs.verify.reference import reference_events
from spark_jobs.verify.verdict import Finding, Verdict, worst


@dataclass(frozen=True)
class Verification:
    """The verdict on one operator."""

    operator: str
    verdict: Verdict
    events: int
    matches: int
    reference_matches: int
    findings: list[Finding]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "findings": [finding.as_dict() for finding in self.findings]}


def verify(pipeline: Pipeline, lake: Lake) -> list[Verification]:
    """Compare every operator's output with its reference run, and keep the verdicts."""
    if not lake.has("event_log"):
        raise RepriseError(f"{lake.root} has no event_log; ingest first. Nothing was verified.")
    log = open_log(lake, pipeline.source.schema)
    done = []
    for operator in pipeline.built.values():
        suite = Suite(SUITES / "complex_events.yaml")
        try:
            done.append(_verify_operator(pipeline, operator, lake, log, suite))
        except (pa.ArrowException, OSError, DeltaError, RepriseError) as error:
            # What cannot be read cannot be judged.
            finding = Finding("readable", Verdict.UNKNOWN, 1, note=f"a table or file could not be read: {_first_line(error)}")
            done.append(Verification(operator.name, Verdict.UNKNOWN, 0, 0, 0, [finding]))
        finally:
            suite.close()
    now = dt.datetime.now(dt.UTC)
    rows = [
        {**v.as_dict(), "at": now, "pipeline": pipeline.name, "findings": json.dumps([f.as_dict() for f in v.findings])}
        for v in done
    ]
    lake.append("verdicts", pa.Table.from_pylist(rows, verdicts.SCHEMA))
    return done


def make_reference(pipeline: Pipeline, operator: Operator, lake: Lake, log: EventLog, end_sn: int) -> pa.Table:
    """The reference output over the log up to `end_sn`; its file name says what it covers, so it is made once."""
    name = f"{operator.name}-{pipeline.fingerprint(operator.name)}-{end_sn}.parquet"
    file = lake.root / "_reference" / name
    if not _readable(file):
        files = log.shard_files(0, 1, None, end_sn)
        events = read_events(files, log.schema, operator.columns, np.empty(0, np.int64), 0, end_sn, in_sn_order=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{file}.partial")
        pq.write_table(reference_events(operator, events), partial)
        partial.rename(file)
    return pq.read_table(file)


def _readable(file: Path) -> bool:
    """A reference that was cut off is made anew."""
    try:
        return file.exists() and pq.read_metadata(file).num_rows >= 0
    except (pa.ArrowException, OSError):
        return False


def _verify_operator(pipeline: Pipeline, operator: Operator, lake: Lake, log: EventLog, suite: Suite) -> Verification:
    table = lake.open("complex_events", pipeline.output_schema)
    savepoint = load(lake, operator, claim(table, operator.name))
    plan = FaultPlan(lake)
    evidence = Evidence(
        # The version the savepoint belongs to: a detection that goes on meanwhile must not look like a false positive.
        actual=lake.read_version("complex_events", table, where=pc.field("operator") == operator.name),
        expected=make_reference(pipeline, operator, lake, log, savepoint.end_sn),
        detected_sn=savepoint.end_sn,
        log_sn=log.last_sn,
        reference_sn=savepoint.end_sn,
        faults_armed=len(plan.armed()),
        faults_fired=len(plan.fired()),
    )
    findings = [*run_checkers(evidence), *_expectations(evidence, suite)]
    return Verification(
        operator=operator.name,
        verdict=worst(finding.verdict for finding in findings),
        events=savepoint.end_sn,
        matches=evidence.actual.num_rows,
        reference_matches=evidence.expected.num_rows,
        findings=findings,
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
