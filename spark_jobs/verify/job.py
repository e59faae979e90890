"""The verification job: reference run, comparison, checkers, expectations, and a row in `verdicts`.

What earlier valid verdicts cover is not compared again: the comparison begins after the last of them, and the reference run
goes on from what it kept itself. `full` compares everything anew.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from schemas import verdicts
from spark_jobs.errors import RepriseError
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.lake.outputs import Output, open_outputs, output_of
from spark_jobs.lake.scan import EventLog, open_log
from spark_jobs.lake.seal import broken
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.runner import InlineRunner, Runner, Task, open_runner
from spark_jobs.verify import in_order
from spark_jobs.verify.base import NO_BASE, Base, Since, base_of, files_of, since
from spark_jobs.verify.chain import Chain, Link
from spark_jobs.verify.checkers import CHECKERS, Evidence, run_checkers
from spark_jobs.verify.comparison import Comparison, Scope, compare
from spark_jobs.verify.expectations import SUITES, Suite, judge_verdicts, what_failed
from spark_jobs.verify.verdict import Finding, Verdict, worst
from spark_jobs.versions import Registry, Version, registry

FULL, INCREMENTAL = "full", "incremental"
# Tasks with fewer rows than this in all are done in the driver, in less time than Spark takes to start.
SMALL_ROWS = 400_000


@dataclass(frozen=True)
class Verification:
    """The verdict on one operator, and what it covers."""

    operator: str
    version: int
    verdict: Verdict
    events: int
    matches: int
    reference_matches: int
    findings: list[Finding]
    after_sn: int = 0  # the version begins after this event of the log
    fingerprint: str = ""
    mode: str = FULL
    from_ordinal: int = 1  # the complex events that were compared; the others, an earlier verdict covers
    to_ordinal: int = 0
    from_sn: int = 1  # the events of the log that the reference run read
    to_sn: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "findings": [finding.as_dict() for finding in self.findings]}

    def as_row(self) -> dict[str, Any]:
        """Of the table `verdicts`."""
        said = self.as_dict()
        del said["after_sn"]
        return {**said, "findings": json.dumps(said["findings"])}


def verify(
    pipeline: Pipeline,
    lake: Lake,
    runner: Runner | None = None,
    *,
    full: bool = False,
    also: Sequence[Finding] = (),
    suite: Suite | None = None,
    record: bool = True,
) -> list[Verification]:
    """Compare every operator's output with its reference run, and keep the verdicts, unless this is only to see.

    `also` is what somebody else found; `suite` is one that `open_suites` has started, for many verifications in a row.
    """
    if not lake.has("event_log"):
        raise RepriseError(f"{lake.root} has no event_log; ingest first. Nothing was verified.")
    log, known = open_log(lake, pipeline.source.schema), registry(lake)
    starts = {name: version.after_sn for name, version in known.matching(pipeline).items()}
    chain = Chain(pipeline, lake, log, runner or InlineRunner(), starts)
    with nullcontext(suite) if suite else open_suites() as suites:
        job = _Job(chain, known, suites, full)
        done = [_with(job.judged(name), *also) for name in pipeline.order]
        done = job.agreed(done)
    if not record:
        return done
    now = dt.datetime.now(dt.UTC)
    lake.open("verdicts", verdicts.SCHEMA, may_grow=True)
    rows = [{**v.as_row(), "at": now, "pipeline": pipeline.name} for v in done]
    lake.append("verdicts", pa.Table.from_pylist(rows, verdicts.SCHEMA))
    if all(v.verdict is Verdict.VALID for v in done):
        chain.forget(min(v.to_sn for v in done))
    return done


def open_suites() -> Suite:
    """The suites of a verification, in one process."""
    return Suite(SUITES / "complex_events.yaml", SUITES / "verdicts.yaml")


def make_reference(
    pipeline: Pipeline,
    name: str,
    lake: Lake,
    log: EventLog,
    end_sn: int,
    starts: Mapping[str, int] | None = None,
    runner: Runner | None = None,
) -> Link:
    """The reference output of an operator, over the log up to `end_sn` and what the operators that it reads make of it."""
    return Chain(pipeline, lake, log, runner or InlineRunner(), starts or {}).whole(name, end_sn)


def facts_of(version: Version, compared: Comparison, unprocessed: int) -> pa.Table:
    """What a suite is asked to judge: one row, whatever was compared."""
    counts = {
        name: getattr(compared, name)
        for name in (
            "false_positives",
            "false_negatives",
            "duplicates",
            "false_order",
            "first_ordinal",
            "last_ordinal",
            "missing_ordinals",
            "null_keys",
        )
    }
    row = {"operator": version.operator, "version": version.number, "matches": compared.rows}
    facts = {**row, "reference_matches": compared.reference_rows, **counts, "unprocessed_events": unprocessed}
    types = {name: pa.string() if name == "operator" else pa.int64() for name in facts}
    return pa.table({name: pa.array([value], types[name]) for name, value in facts.items()})


@dataclass
class SparkWhenLarge(Runner):
    """Runs small work in the driver, and starts Spark for the first that is not."""

    master: str
    lake: Lake
    _stack: ExitStack = field(default_factory=ExitStack)
    _spark: Runner | None = None

    def ready(self) -> None:
        """What comes first is mostly small."""

    def run(self, task: Task, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        if sum(payload["rows"] for payload in payloads) < SMALL_ROWS:
            return InlineRunner().run(task, payloads)
        if self._spark is None:
            self._spark = self._stack.enter_context(open_runner(self.master, self.lake, "verify"))
        return self._spark.run(task, payloads)

    def __enter__(self) -> SparkWhenLarge:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclass(frozen=True)
class _Job:
    """One verification of a pipeline."""

    chain: Chain
    known: Registry
    suite: Suite
    full: bool

    @property
    def lake(self) -> Lake:
        return self.chain.lake

    def judged(self, name: str) -> Verification:
        """What cannot be read cannot be judged, and what broke the verification has proven nothing."""
        started = time.perf_counter()
        version = self.known.matching(self.chain.pipeline).get(name)
        try:
            done = self._verified(version or _not_yet(self.known, self.chain.pipeline, name))
        except Exception as error:
            readable = not isinstance(error, (pa.ArrowException, OSError, DeltaError, RepriseError))
            why = f"the comparison failed: {type(error).__name__}" if readable else "a table or file could not be read"
            said = _first_line(error) if isinstance(error, RepriseError) else f"{why}: {_first_line(error)}"
            finding = Finding("readable", Verdict.UNKNOWN, 1, note=said)
            done = Verification(name, version.number if version else 0, Verdict.UNKNOWN, 0, 0, 0, [finding])
        return replace(done, seconds=round(time.perf_counter() - started, 3))

    def agreed(self, done: list[Verification]) -> list[Verification]:
        """A verdict that contradicts its own evidence is none."""
        plan = FaultPlan(self.lake)
        facts = [_verdict_facts(v, len(plan.armed()), len(plan.fired())) for v in done]
        try:
            failed = what_failed(judge_verdicts(self.suite, self.lake, self.chain.pipeline.name, pa.Table.from_pylist(facts)))
        except Exception as error:  # a suite that could not run has proven nothing
            failed = f"the suite did not run: {error}"
        if not failed:
            return done
        finding = Finding("verdict agrees with its evidence", Verdict.UNKNOWN, 1, note=failed)
        return [_with(v, finding) for v in done]

    def _verified(self, version: Version) -> Verification:
        name = version.operator
        _check_there(self.chain.log)
        if self.full:  # also where the reference run was made before: what it read then may have been changed since
            _check_seals(self.chain.log)
        table = open_outputs(self.lake, self.chain.pipeline.output_schema)
        # One version of the table for both: a detection that goes on meanwhile must not look like a false positive.
        output = output_of(self.lake, table, name, version.number)
        if self.chain.pipeline.ordering is not None:
            inputs = in_order.inputs_of(self.chain.pipeline, self.lake, self.chain.log, table, version)
            return self._verified_in_order(version, output, inputs)
        files = files_of(self.lake, table, name, version.number)
        end_sn = output.committed.at.sn if output.committed.batch else version.after_sn
        base = None if self.full else base_of(self.lake, self.chain, version)
        changed = since(base or NO_BASE, self.lake, files, output.trimmed_sn)
        if changed.replaced and self.chain.log.trimmed_sn <= version.after_sn:  # what was covered can be compared anew
            base, changed = None, since(NO_BASE, self.lake, files, output.trimmed_sn)
        link = self.chain.going_on(name, base.sn, end_sn) if base else self.chain.whole(name, end_sn)
        scope = Scope(
            floor=output.trimmed_sn,
            after=max(base.ordinal if base else 0, output.trimmed_sn),
            batch=base.batch if base else 0,
            rewritten=changed.rewritten,
            detected_sn=end_sn,
        )
        scratch, measures = self.lake.scratch("verify") / name, self.chain.pipeline.built[name].measured.types
        found = compare(self.chain.runner, scratch, changed.new, link.parts_after(scope.after), measures, scope)
        findings = self._findings(version, found, end_sn, base, changed, trimmed_sn=output.trimmed_sn)
        before = base.ordinal if base else 0
        done = Verification(
            operator=name,
            version=version.number,
            verdict=worst(finding.verdict for finding in findings),
            events=end_sn,
            matches=before + found.rows,
            reference_matches=before + found.reference_rows,
            findings=findings,
            after_sn=version.after_sn,
            fingerprint=version.fingerprint,
            mode=INCREMENTAL if base else FULL,
            from_ordinal=scope.after + 1,
            to_ordinal=link.seed.ordinal - 1,
            from_sn=(base.sn if base else version.after_sn) + 1,
            to_sn=end_sn,
        )
        if done.verdict is Verdict.VALID:
            covers = Base(end_sn, done.to_ordinal, found.last_batch, files)
            covers.store(self.chain.folder(name), version.number)
        return done

    def _verified_in_order(self, version: Version, output: Output, inputs: in_order.Inputs) -> Verification:
        """Always of everything: a late event may have changed any of it."""
        pipeline, name = self.chain.pipeline, version.operator
        operator, at = pipeline.built[name], output.committed.at
        scratch = self.lake.scratch("verify") / name
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            reference = in_order.expected(pipeline, operator, inputs, scratch) if output.committed.batch else []
            stands, revisions = in_order.standing(output, pipeline.output_schema, scratch)
            scope = Scope(detected_sn=at.sn)
            found = compare(self.chain.runner, scratch / "compared", stands, reference, operator.measured.types, scope)
            unread = in_order.unread(pipeline, inputs) if output.committed.batch else 0
            findings = [*self._findings(version, found, at.sn, None, Since([], 0, 0), unread=unread), *revisions]
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return Verification(
            operator=name,
            version=version.number,
            verdict=worst(finding.verdict for finding in findings),
            events=at.sn,
            matches=found.rows,
            reference_matches=found.reference_rows,
            findings=findings,
            after_sn=version.after_sn,
            fingerprint=version.fingerprint,
            to_ordinal=output.last,
            to_sn=at.sn,
        )

    def _findings(
        self,
        version: Version,
        found: Comparison,
        end_sn: int,
        base: Base | None,
        changed: Since,
        *,
        trimmed_sn: int = 0,
        unread: int = 0,
    ) -> list[Finding]:
        plan, log_sn = FaultPlan(self.lake), self.chain.log.last_sn
        evidence = Evidence(
            compared=found,
            detected_sn=end_sn,
            log_sn=log_sn,
            reference_sn=end_sn,
            faults_armed=len(plan.armed()),
            faults_fired=len(plan.fired()),
            judged_before=base.ordinal if base else 0,
            replaced=changed.replaced,
            trimmed=max(0, trimmed_sn - (base.ordinal if base else 0)),
            unread=unread,
        )
        return [*run_checkers(evidence), self._expectations(version, facts_of(version, found, log_sn - end_sn + unread))]

    def _expectations(self, version: Version, facts: pa.Table) -> Finding:
        try:
            checks = self.suite.check(facts, of="complex_events", lake=self.lake, subject=version.operator)
        except Exception as error:  # a suite that could not run has proven nothing
            return Finding("expectations", Verdict.UNKNOWN, note=f"the suite did not run: {error}")
        failed = [check for check in checks if not check.met]
        note = f"{len(checks) - len(failed)} of {len(checks)} met"
        examples = [{"expectation": check.expectation, "detail": check.detail} for check in failed[:10]]
        return Finding("expectations", Verdict.INVALID if failed else Verdict.VALID, len(failed), examples, note)


def _check_there(log: EventLog) -> None:
    """Also what the reference run has no need to read any more: a lake without its log can be recovered from nothing."""
    gone = [file.path for file in log.files if not Path(file.path).exists()]
    if gone:
        raise RepriseError(f"{len(gone)} of {len(log.files)} files of the event log are gone: {gone[0]}")


def _check_seals(log: EventLog) -> None:
    for file in log.files:
        if problem := broken(file.path):
            raise RepriseError(f"{file.path}: {problem}")


def _not_yet(known: Registry, pipeline: Pipeline, name: str) -> Version:
    """The version that an operator which nobody has run yet will have."""
    if known.of(name):
        raise RepriseError(
            f"operator '{name}' as the pipeline file defines it is not in the lake; 'reprise upgrade' computes it"
        )
    return Version(name, known.next_number(name), pipeline.fingerprint(name), 0, {}, current=False)


def _verdict_facts(done: Verification, armed: int, fired: int) -> dict[str, Any]:
    """One row of what expectations/verdicts.yaml judges."""
    by_verdict = [finding.verdict for finding in done.findings]
    return {
        **{name: getattr(done, name) for name in ("operator", "version", "events", "matches", "reference_matches")},
        "verdict": done.verdict.value,
        "properties_checked": sum(f.property in CHECKERS and f.verdict is not Verdict.UNKNOWN for f in done.findings),
        "properties_unknown": by_verdict.count(Verdict.UNKNOWN),
        "properties_invalid": by_verdict.count(Verdict.INVALID),
        "faults_armed": armed,
        "faults_fired": fired,
    }


def _with(done: Verification, *more: Finding) -> Verification:
    findings = [*done.findings, *more]
    return replace(done, findings=findings, verdict=worst(f.verdict for f in findings))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
