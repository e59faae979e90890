"""The experiment on savepoints, small: its numbers have to fit together before they are worth charting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.engine import PIPELINE, Shape, make_log
from bench.savepoints import (
    INTERVALS,
    SLIDES,
    Log,
    Measured,
    abcde,
    experiment,
    failures,
    flat_cost,
    goes_on,
    recover,
    run,
    sizes,
    stored_savepoints,
)
from bench.savepoints_chart import markdown, write
from bench.savepoints_spark import compared
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline

# Enough for windows to close before the failure at half, and for ten batches after the last one.
STREAMS, EVENTS = 2, 8_000


@pytest.fixture(scope="module")
def measured() -> list[Measured]:
    return experiment(STREAMS, EVENTS)


def test_every_slide_and_interval_is_measured(measured: list[Measured]) -> None:
    assert [(m.slide, m.interval) for m in measured] == [(slide, interval) for slide in SLIDES for interval in INTERVALS]


def test_recovered_operators_go_on_as_the_undisturbed_one(measured: list[Measured]) -> None:
    assert all(m.same for m in measured)


def test_an_operator_that_forgets_its_floors_does_not_go_on_as_the_undisturbed_one() -> None:
    """The negative control: what the experiment calls equal would not be, had a savepoint been wrong."""
    operator, log = abcde(SLIDES[0]), Log(50, EVENTS)  # so many streams that at any moment floors matter to some
    undisturbed, failure = run(operator, log), failures(log)[0]
    upstream = log.between(0, log.end(failure))
    savepoint = stored_savepoints(operator, log, undisturbed, failure, INTERVALS[0])["v_skip"]
    wrong = replace(savepoint, shards=tuple(replace(shard, floors=b"") for shard in savepoint.shards))
    for stored, right in ((savepoint, True), (wrong, False)):
        recovered = recover(operator, log, stored, upstream, "v_skip").savepoint
        assert goes_on(operator, log, undisturbed, failure, recovered, "v_skip") is right


def test_v_skip_replays_and_keeps_fewer_events_than_the_base_method(measured: list[Measured]) -> None:
    for m in measured:
        v_skip, trim_only, base = (m.cycles[mode] for mode in ("v_skip", "trim only", "base"))
        assert v_skip.replayed < trim_only.replayed <= base.replayed
        # Not `v_skip < trim_only`: a micro-batch is kept until it is done, and short save intervals are over sooner.
        assert trim_only.backup <= base.backup
        assert v_skip.replayed <= v_skip.backup


def test_the_base_method_replays_more_the_longer_acks_take(measured: list[Measured]) -> None:
    for slide in SLIDES:
        replayed = [m.cycles["base"].replayed for m in measured if m.slide == slide]
        assert replayed == sorted(replayed)
        assert len({m.cycles["v_skip"].replayed for m in measured if m.slide == slide}) == 1


@pytest.mark.parametrize("slide", SLIDES)
def test_a_savepoint_is_smaller_than_a_checkpoint_of_the_same_moment(slide: int) -> None:
    size = sizes(slide, STREAMS)
    assert size.row < size.checkpoint
    assert min(size.queue, size.layout, size.matchers, size.output) > 0


def test_the_cost_per_event_is_measured_for_every_log() -> None:
    cost = flat_cost((1_000, 3_000), 1_000)
    assert list(cost) == [1_000, 3_000]
    assert min(cost.values()) > 0


def test_a_restart_with_v_skip_reads_less_and_publishes_the_same() -> None:
    """Small, and inline: enough that both find something; the rare keys of so short a log hold little."""
    bars = {bar.bar.partition(": ")[2]: bar for bar in compared("inline", Shape(100_000, 60, 10), 10_000, "within: 60 s", 1)}
    assert bars["both with the same complex events (1: equal)"].value == 1
    assert bars[".. complex events"].value > 0
    assert bars["fewer events replayed"].ok
    assert 0 < bars["share of the log above SN_trim at the failure"].value < 1


def test_events_can_be_added_to_a_log(tmp_path: Path) -> None:
    pipeline, lake = parse_pipeline(PIPELINE.format(limit="within: 1 s"), "engine.yaml"), Lake(tmp_path / "lake")
    for events in (300, 200):
        make_log(pipeline, lake, Shape(events, keys=20, rare=5))
    log = lake.read("event_log").sort_by("sn")
    assert log["sn"].to_pylist() == list(range(1, 501))
    assert log["stream_ts"].to_pylist() == sorted(log["stream_ts"].to_pylist())


def test_the_chart_and_the_table_show_every_slide_and_interval(measured: list[Measured], tmp_path: Path) -> None:
    write(measured, tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")
    assert len(markdown(measured).splitlines()) == 2 + len(SLIDES) * len(INTERVALS)
