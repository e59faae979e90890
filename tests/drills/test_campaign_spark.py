"""Drills through Spark, as local[2] and on a real standalone cluster; seven more are in tests/faults/test_catalogue.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.drills.campaign import Campaign, run_campaign


@pytest.mark.timeout(900)  # minutes on a busy machine
def test_drills_through_spark_are_valid(tmp_path: Path) -> None:
    examples = Path(__file__).resolve().parents[2] / "examples"
    pipelines = (examples / "card_probing.yaml", examples / "rising_run.yaml")
    found = run_campaign(Campaign(2, 7, 1, ("local[2]", "cluster"), pipelines, tmp_path / "campaign", parallel=2))
    assert found["verdicts"] == {"valid": 2, "invalid": 0, "unknown": 0}, found["failures"]
    assert found["fired"] == found["scheduled"]
    assert found["leftovers"] == 0
