"""Drills with faults drawn from a seed: real processes, real signals, no anomaly. With those through Spark more than forty;
`make campaign` runs 400."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.drills.campaign import Campaign, Result, plan_of, run_campaign, summary, upper_bound
from spark_jobs.drills.campaign_report import summary_tables, write_campaign_report
from spark_jobs.drills.processes import Program
from spark_jobs.errors import RepriseError
from spark_jobs.faults.catalogue import CATALOGUE, Group, Needs
from spark_jobs.faults.phases import COMMITTED, DETECT_PHASES
from spark_jobs.pipeline_file import load_pipeline
from tests.drills.browser import checked_offline

SEED = 20


@pytest.mark.timeout(900)  # minutes on a busy machine
def test_thirty_six_drills_without_spark_are_valid(tmp_path: Path) -> None:
    found = run_campaign(Campaign(36, SEED, masters=("inline",), out=tmp_path / "campaign", parallel=2))
    assert found["verdicts"] == {"valid": 36, "invalid": 0, "unknown": 0}, found["failures"]
    assert (found["leftovers"], found["anomalies"]) == (0, {})
    assert found["fired"] == found["scheduled"]
    kinds = {kind.name for kind in CATALOGUE.values() if kind.needs is Needs.NOTHING}
    assert set(found["faults"]) == kinds, "every kind comes in turn"
    assert 0 < found["replayed"] < found["processed"] / 4
    assert found["anomaly_bound"] == pytest.approx(1 - 0.05 ** (1 / 36))
    write_campaign_report(found, tmp_path / "campaign.html")
    page = checked_offline(tmp_path / "campaign.html")
    assert "36 drills" in page
    assert "Nothing: every fault struck" in page
    (_, _, rows), _ = summary_tables(found)
    assert rows[0] == ["runs", "36 of 36"]


def test_with_fencing_off_the_zombie_drill_turns_invalid_and_can_be_repeated(tmp_path: Path) -> None:
    """The control: the same drill, whose driver publishes without looking whether it still may."""
    seed, number = next((s, n) for s in range(20) for n in range(1, 40) if a_lone_zombie(s, n))
    blind = Program((sys.executable, "-m", "tests.controls", "publish without fencing", "--"))
    found = run_campaign(Campaign(5, seed, number, ("inline",), out=tmp_path / "blind", start=blind))
    assert found["verdicts"]["invalid"] == 1, found["results"]
    assert found["runs"] == 1, "a campaign stops at the first invalid run"
    (failure,) = found["failures"]
    assert set(failure["anomalies"]) & {"no duplicates", "no false positives", "no false order"}
    assert (Path(failure["evidence"]) / "report.html").exists()
    assert f"--seed {seed} --first {number} --runs 1" in failure["repeat"]
    write_campaign_report(found, tmp_path / "campaign.html")
    assert "broke what must hold" in checked_offline(tmp_path / "campaign.html")


def a_lone_zombie(seed: int, number: int) -> bool:
    """One that hangs with a batch in its hands."""
    faults = plan_of(Campaign(1, seed, number, masters=("inline",)), number).faults
    return [fault.kind for fault in faults] == ["zombie"] and faults[0].phase in DETECT_PHASES[:5]


def test_the_same_seed_draws_the_same_plans_and_another_one_others() -> None:
    def plans(seed: int) -> list[str]:
        campaign = Campaign(40, seed)
        return [str(plan_of(campaign, number)) for number in range(1, 41)]

    assert plans(1) == plans(1)
    assert plans(1) != plans(2)


def test_a_campaign_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    whole = Campaign(4, SEED, masters=("inline",), out=tmp_path / "campaign")
    run_campaign(replace(whole, runs=2))
    (tmp_path / "campaign" / "run-00003").mkdir()  # begun, not finished
    with (tmp_path / "campaign" / "runs.jsonl").open("a") as lines:
        lines.write('{"number": 3, "pipel')
    with pytest.raises(RepriseError, match="is not empty"):
        run_campaign(whole)
    told: list[int] = []
    found = run_campaign(replace(whole, resume=True), lambda result: told.append(result.number))
    assert (found["runs"], told) == (4, [3, 4])
    assert found["verdicts"]["valid"] == 4, found["failures"]
    with pytest.raises(RepriseError, match="another plan"):
        run_campaign(replace(whole, seed=SEED + 1, resume=True))
    with pytest.raises(RepriseError, match="another plan"):
        run_campaign(replace(whole, pipelines=whole.pipelines[::-1], resume=True))
    with pytest.raises(RepriseError, match="run 1, which is none of the runs 2 to 4: its verdict would be forgotten"):
        run_campaign(replace(whole, first=2, runs=3, resume=True))


def test_every_fault_that_is_drawn_can_strike() -> None:
    """What follows a commit is reached once; a driver without its JVM goes on; an operator without a key has one shard."""
    campaign = Campaign(400, 1)
    for number in range(1, 401):
        run = plan_of(campaign, number)
        unkeyed = load_pipeline(run.pipeline).unkeyed
        assert sum(fault.phase in COMMITTED for fault in run.faults) <= 1, run
        for fault in run.faults:
            if fault.times > 1:
                assert fault.phase not in COMMITTED, run
                assert fault.kind != "kill_jvm" or fault.phase in ("detect.started", "ingest.staged", "ingest.checked"), run
            if fault.operator in unkeyed:
                assert not fault.shard, run


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    assert upper_bound(0, 400) == pytest.approx(0.007461, abs=1e-5)
    assert upper_bound(1, 100) == pytest.approx(0.046556, abs=1e-5)  # from tables
    assert upper_bound(0, 0) is None
    assert upper_bound(3, 3) == 1.0


def test_unknown_runs_are_neither_valid_nor_anomalies() -> None:
    runs = [Result(1, "p", "inline", [], "valid"), Result(2, "p", "inline", [], "unknown", why="a fault did not strike")]
    found = summary(Campaign(2, 1), runs, 1.0)
    assert found["anomaly_bound"] == upper_bound(0, 1)
    assert [failure["number"] for failure in found["failures"]] == [2]
    assert json.loads(json.dumps(found)) == found


def test_every_group_of_faults_is_drawn() -> None:
    kinds = {fault.known.group for number in range(1, 60) for fault in plan_of(Campaign(1, 3), number).faults}
    assert kinds == set(Group)
