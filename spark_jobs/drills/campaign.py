"""A campaign: many drills with plans drawn from a seed, stopped by the first invalid one, and what they add up to.

A run starts from a lake that was ingested once, unless its faults strike the input or the ingest; only what is broken runs
in processes of its own. The same seed and number give the same plan, so a failure is repeated by one command.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from spark_jobs.drills.cluster import CLUSTER, master_for
from spark_jobs.drills.judge import judge
from spark_jobs.drills.processes import ROOT, Program, Start, Warm
from spark_jobs.drills.trial import Conditions, Ground, Trial, prepare, run_trial
from spark_jobs.errors import RepriseError
from spark_jobs.faults.catalogue import CATALOGUE, Group, Needs
from spark_jobs.faults.fault import Fault
from spark_jobs.faults.phases import COMMITTED
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.script import World, draw
from spark_jobs.generate import Recipe
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import load_pipeline
from spark_jobs.report import gather, reasons, write_report
from spark_jobs.runner import INLINE
from spark_jobs.verify.expectations import Suite
from spark_jobs.verify.job import Verification, open_suites
from spark_jobs.verify.verdict import Verdict, worst

CAMPAIGNS = ROOT / ".local" / "campaigns"
PIPELINES = ("card_probing", "fraud_waves", "kill_chain", "rising_run", "v_shape")
# A drill with Spark takes ten times as long as one without. Eleven and five have no common divisor: all meet all pipelines.
MASTERS = (*5 * (INLINE,), "local[2]", *4 * (INLINE,), CLUSTER)
# Small enough that a run takes seconds, large enough for six batches of every operator and eight partitions.
EVENTS, BATCH_EVENTS = 6_000, 1_000
RECIPE = Recipe(EVENTS, keys=20, rate=0.5)
# The last batch may be missing where the input loses a partition.
BATCHES = EVENTS // BATCH_EVENTS - 1
# Ten times what the slowest takes on a quiet machine: a busy one is no reason to judge nothing.
RUN_SECONDS = 600.0
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Campaign:
    """How many drills, drawn from which seed, on which masters, in turn."""

    runs: int
    seed: int
    first: int = 1  # the number of the first run
    masters: tuple[str, ...] = MASTERS
    pipelines: tuple[Path, ...] = tuple(ROOT / "examples" / f"{name}.yaml" for name in PIPELINES)
    out: Path | None = None
    parallel: int = 1
    keep: bool = False  # also what went well
    resume: bool = False  # go on with the one in `out`
    start: Program = field(default_factory=Program)


@dataclass(frozen=True)
class Run:
    """What one run was to be."""

    number: int
    pipeline: Path
    master: str
    faults: tuple[Fault, ...]


@dataclass
class Result:
    """What one run came to."""

    number: int
    pipeline: str
    master: str
    faults: list[str]
    verdict: str
    why: str = ""
    seconds: float = 0.0
    tries: dict[str, int] = field(default_factory=dict)
    scheduled: dict[str, int] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)
    anomalies: dict[str, int] = field(default_factory=dict)
    replayed: int = 0
    processed: int = 0
    recoveries: list[float] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    evidence: str = ""
    repeat: str = ""


def plan_of(campaign: Campaign, number: int) -> Run:
    """The plan of one run. Every kind of fault comes first in turn; some runs have one or two more."""
    drawn = random.Random(f"{campaign.seed}/{number}")  # noqa: S311  # to be repeated, not to be secret
    pipeline = campaign.pipelines[number % len(campaign.pipelines)]
    master = campaign.masters[number % len(campaign.masters)]
    world = _world(pipeline, master)
    kinds = _turns(campaign, master, world)
    turn = len([n for n in range(1, number) if campaign.masters[n % len(campaign.masters)] == master])
    faults = draw(drawn.randrange(2**31), world, 1, [kinds[turn % len(kinds)]])
    for _ in range(drawn.choice((0, 0, 0, 1, 1, 2))):
        faults += [fault for fault in draw(drawn.randrange(2**31), world) if _fits(fault, faults)]
    return Run(number, pipeline, master, tuple(faults))


@lru_cache(maxsize=64)  # hundreds of runs share a few pipelines
def _world(pipeline: Path, master: str) -> World:
    loaded = load_pipeline(pipeline)
    return World(
        operators=tuple(loaded.operators),
        batches=BATCHES,
        downstream=tuple(loaded.downstream),
        unkeyed=tuple(loaded.unkeyed),
        spark=master != INLINE,
        cluster=master == CLUSTER,
    )


def _turns(campaign: Campaign, master: str, world: World) -> list[str]:
    """The order of kinds for one master: what needs it comes first, the rest in an order drawn from the seed."""
    kinds = [kind for kind in CATALOGUE.values() if world.has(kind)]
    random.Random(f"{campaign.seed}/{master}").shuffle(kinds)  # noqa: S311
    need = {INLINE: Needs.NOTHING, CLUSTER: Needs.CLUSTER}.get(master, Needs.SPARK)
    return [kind.name for kind in sorted(kinds, key=lambda kind: kind.needs is not need)]


def _fits(fault: Fault, others: Sequence[Fault]) -> bool:
    """Two faults of the input spoil the same files, and may leave nothing of each other. What follows a commit is reached once,
    so that one fault there may leave none for another."""
    both_input = fault.known.group is Group.INPUT and any(other.known.group is Group.INPUT for other in others)
    both_after = fault.phase in COMMITTED and any(other.phase in COMMITTED for other in others)
    return not both_input and not both_after and fault.name not in {other.name for other in others}


def run_campaign(
    campaign: Campaign,
    tell: Callable[[Result], None] = lambda result: None,
    simulated: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Run until the first invalid one or to the end; the summary, which is also written beside the evidence.

    `simulated` is what came of simulations before.
    """
    folder = _folder(campaign)
    began = time.monotonic()
    results = _done(campaign, folder)
    with _Field(campaign, folder) as field_:
        for result in field_.results({result.number for result in results}):
            results.append(result)
            tell(result)
            with (folder / "runs.jsonl").open("a") as lines:
                lines.write(json.dumps(asdict(result)) + "\n")
            if result.verdict == Verdict.INVALID:
                break
    found = {**summary(campaign, results, time.monotonic() - began), "folder": str(folder), "simulated": simulated}
    (folder / "campaign.json").write_text(json.dumps(found))
    return found


def _done(campaign: Campaign, folder: Path) -> list[Result]:
    """The runs that an interrupted campaign has behind it; what it had begun is begun again."""
    file = folder / "runs.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    if whole != lines:  # a line without its end was being written
        file.write_text("".join(whole))
    found = [Result(**json.loads(line)) for line in whole]
    numbers = range(campaign.first, campaign.first + campaign.runs)
    outside = [result.number for result in found if result.number not in numbers]
    if outside:
        raise RepriseError(
            f"{folder} has run {outside[0]}, which is none of the runs {numbers.start} to {numbers.stop - 1}: its verdict "
            "would be forgotten. Nothing was started. Give --first and --runs that include it, or another folder."
        )
    other = [result.number for result in found if not _same(result, plan_of(campaign, result.number))]
    if other:
        raise RepriseError(f"run {other[0]} in {folder} had another plan: another seed, other masters or pipelines")
    finished = {f"run-{result.number:05}" for result in found}
    for begun in [*folder.glob("run-*"), folder / "grounds", folder / "cluster"]:
        if begun.name not in finished:
            shutil.rmtree(begun, ignore_errors=True)
    return found


def _same(result: Result, run: Run) -> bool:
    """Is that what the campaign would do in this run?"""
    planned = (run.pipeline.stem, run.master, [str(fault) for fault in run.faults])
    return (result.pipeline, result.master, result.faults) == planned


def _folder(campaign: Campaign) -> Path:
    folder = campaign.out or CAMPAIGNS / time.strftime("%Y%m%d-%H%M%S")
    if not campaign.resume and folder.exists() and any(folder.iterdir()):
        raise RepriseError(f"{folder} is not empty; a campaign needs a folder of its own, or --resume to go on with that one")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


class _Field:
    """What all runs share: prepared lakes, a cluster, a process of suites, warm processes."""

    def __init__(self, campaign: Campaign, folder: Path) -> None:
        self.campaign, self.folder = campaign, folder
        self._stack = ExitStack()
        self._grounds: dict[Path, Ground] = {}
        self._urls: dict[str, str] = {}
        self._warm = Warm()
        self._judging = Lock()  # suites answer one question at a time

    def __enter__(self) -> _Field:
        self._suite: Suite = self._stack.enter_context(open_suites())
        for pipeline in self.campaign.pipelines:
            self._grounds[pipeline] = prepare(pipeline, self.folder / "grounds" / pipeline.stem, RECIPE)
        for master in set(self.campaign.masters):
            self._urls[master] = self._stack.enter_context(master_for(master, self.folder / "cluster"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def results(self, done: set[int]) -> Iterator[Result]:
        """In order, some at the same time; after the last one wanted, no other is begun."""
        numbers = [n for n in range(self.campaign.first, self.campaign.first + self.campaign.runs) if n not in done]
        with ThreadPoolExecutor(self.campaign.parallel) as pool:
            waiting = [pool.submit(self._run, plan_of(self.campaign, number)) for number in numbers]
            try:
                for future in waiting:
                    yield future.result()
            finally:
                for future in waiting:
                    future.cancel()

    def _run(self, run: Run) -> Result:
        folder, began = self.folder / f"run-{run.number:05}", time.monotonic()
        start: Start = self._warm if run.master == INLINE and self.campaign.start == Program() else self.campaign.start
        conditions = Conditions(start, self._urls[run.master], BATCH_EVENTS, RUN_SECONDS)
        trial = run_trial(self._grounds[run.pipeline], folder, run.faults, conditions, self._judge)
        result = self._result(run, trial)
        result.seconds = time.monotonic() - began
        if result.verdict == Verdict.VALID and not self.campaign.keep:
            shutil.rmtree(folder)
        else:
            result.evidence = str(folder)
        return result

    def _judge(self, pipeline: Pipeline, lake: Lake) -> list[Verification]:
        with self._judging:
            return judge(pipeline, lake, suite=self._suite)

    def _result(self, run: Run, trial: Trial) -> Result:
        plan, pipeline, why = FaultPlan(trial.lake), load_pipeline(run.pipeline), trial.why
        verdict = worst(v.verdict for v in trial.verifications) if not why else Verdict.UNKNOWN
        facts = gather(pipeline, trial.lake) if not why else None
        if trial.left:
            verdict = Verdict.INVALID
            why = why or f"{len(trial.left)} processes were left behind"
        if facts and verdict is not Verdict.VALID:
            write_report(pipeline, trial.lake, trial.lake.root.parent / "report.html")
        return Result(
            number=run.number,
            pipeline=run.pipeline.stem,
            master=run.master,
            faults=[str(fault) for fault in run.faults],
            verdict=verdict.value,
            why=why or ("; ".join(reasons(facts)) if facts else ""),
            scheduled=dict(Counter(fault.kind for fault in plan.armed())),
            fired=dict(Counter(fault.kind for fault in plan.fired())),
            anomalies=_anomalies(facts),
            replayed=sum(o["replayed"] for o in facts["operators"]) if facts else 0,
            processed=sum(o["processed_before"] for o in facts["operators"]) if facts else 0,
            recoveries=[f["recovered_after"] for f in facts["faults"] if f["recovered_after"] is not None] if facts else [],
            tries=trial.tries,
            leftovers=trial.left,
            repeat=_command(self.campaign, run.number),
        )


def _command(campaign: Campaign, number: int) -> str:
    masters = "".join(f" --master '{master}'" for master in campaign.masters)
    own = campaign.pipelines != Campaign(1, 1).pipelines
    pipelines = "".join(f" --pipeline '{pipeline}'" for pipeline in campaign.pipelines) if own else ""
    return f"reprise campaign --seed {campaign.seed} --first {number} --runs 1{masters}{pipelines}"


def _anomalies(facts: dict[str, Any] | None) -> dict[str, int]:
    found: Counter[str] = Counter()
    for operator in facts["operators"] if facts else []:
        for finding in operator["findings"]:
            found[finding["property"]] += finding["count"] if finding["verdict"] == Verdict.INVALID else 0
    return {name: count for name, count in found.items() if count}


def summary(campaign: Campaign, results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """What a campaign adds up to, as plain data."""
    verdicts = Counter(result.verdict for result in results)
    scheduled: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    anomalies: Counter[str] = Counter()
    for result in results:
        scheduled.update(result.scheduled)
        fired.update(result.fired)
        anomalies.update(result.anomalies)
    recoveries = sorted(seconds for result in results for seconds in result.recoveries)
    judged = verdicts[Verdict.VALID] + verdicts[Verdict.INVALID]
    return {
        "seed": campaign.seed,
        "first": campaign.first,
        "wanted": campaign.runs,
        "runs": len(results),
        "verdicts": {verdict.value: verdicts[verdict] for verdict in Verdict},
        "faults": {kind: [scheduled[kind], fired[kind]] for kind in CATALOGUE if scheduled[kind]},
        "scheduled": scheduled.total(),
        "fired": fired.total(),
        "anomalies": dict(anomalies),
        "replayed": sum(result.replayed for result in results),
        "processed": sum(result.processed for result in results),
        "recovery_p50": _percentile(recoveries, 0.50),
        "recovery_p95": _percentile(recoveries, 0.95),
        "recoveries": recoveries,
        "anomaly_bound": upper_bound(verdicts[Verdict.INVALID], judged),
        "leftovers": sum(len(result.leftovers) for result in results),
        "seconds": seconds,
        "failures": [asdict(result) for result in results if result.verdict != Verdict.VALID],
        "results": [asdict(result) for result in results],
    }


def _percentile(values: Sequence[float], share: float) -> float | None:
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else None


def upper_bound(bad: int, runs: int, confidence: float = CONFIDENCE) -> float | None:
    """The largest rate of bad runs that would still show so few of them in one of twenty campaigns (Clopper and Pearson)."""
    if not runs:
        return None
    if bad >= runs:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        rate = (low + high) / 2
        chance = sum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(bad + 1))
        low, high = (rate, high) if chance > 1 - confidence else (low, rate)
    return high
