"""Pipeline files: what is wrong is said with file, line and a suggestion, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.errors import PipelineError
from spark_jobs.pipeline import Pipeline, duration, load_pipeline, parse_pipeline
from tests.conftest import PIPELINE

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("partition_by: key", "partiton_by: key", 10, "unknown key 'partiton_by'; did you mean 'partition_by'?"),
        ("partition_by: key", "partition_by: cards", 10, "unknown column 'cards'; known here: amount"),
        ("within: 5 min", "within: 5 minutes", 13, "unit 'minutes' is not known; did you mean 'min'?"),
        ("within: 5 min", "within: 5", 13, "a unit is missing; write '5 ms'"),
        ("within: 5 min", "within: soon", 13, "is not a duration"),
        ("A -> B -> C", "A -> B -> D", 11, "symbol 'D' is not defined"),
        ("A -> B -> C", "A -> B", 12, "symbol 'C' is not in the pattern"),
        ("A -> B -> C", "A -> B C", 11, "strict contiguity"),
        ("type = 'a'", "typ = 'a'", 12, "unknown column 'typ'; did you mean 'type'?"),
        ("amount > 5", "amount > 'x'", 12, "compares double with string"),
        ("loss: C.amount", "loss: amount", 14, "did you mean 'C.amount'?"),
        ("loss: C.amount", "batch: C.amount", 14, "is taken by complex_events"),
        ("amount: double", "amount: dubble", 5, "unknown type 'dubble'; did you mean 'double'?"),
        ("amount: double", "sn: double", 5, "is a column Reprise fills itself"),
        ("buckets: 7", "buckets: none", 7, "valid integer"),
        ("quarantine_limit: 0.5", "quarantine_limit: 50", 6, "less than or equal to 1"),
        ("name: small", "name: Small!", 2, "is not a name"),
        ("name: small", "nam: small", 2, "unknown key 'nam'; did you mean 'name'?"),
        ("within: 5 min", "after_match: past last", 13, "did you mean 'past last row'?"),
        ("within: 5 min", "window: {count: 5, slide: 1 min}", 13, "slides by a positive number of events"),
        ("within: 5 min", "window: {time: 5 min, slide: 3}", 13, "slides by a duration"),
        ("within: 5 min", "window: {count: 5, time: 1 h}", 13, "either {count"),
        ("within: 5 min", "within: 106751991 d", 13, "longer than 1,000 years"),
        ("within: 5 min", "window: {count: 99999999999999999999}", 13, "less than or equal to"),
        ("amount: double", "amount: double, Amount: int", 5, "differ in case only"),
        ("amount: double", "__row: double", 5, "is not a column name"),
        ("amount > 5", "amount BETWEEN SYMMETRIC 9 AND 5", 12, "SYMMETRIC is not allowed"),
        ("within: 5 min", "from: nowhere", 13, "no such input"),
        ("within: 5 min", "partition_by: type", 13, "given twice"),
        ("name: small", "name: [small", 3, "not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line(old: str, new: str, line: int, message: str) -> None:
    assert old in PIPELINE
    with pytest.raises(PipelineError) as refused:
        parse_pipeline(PIPELINE.replace(old, new, 1), "mine.yaml")
    assert message in str(refused.value)
    assert f"mine.yaml:{line}: " in str(refused.value)


def test_all_mistakes_are_reported_at_once() -> None:
    wrong = PIPELINE.replace("type = 'a'", "typ = 'a'").replace("C.amount", "C.amont")
    with pytest.raises(PipelineError) as refused:
        parse_pipeline(wrong, "mine.yaml")
    assert len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "name", "!!python/object/apply:os.system ['true']", "a: &x [*x]", "a: &x\n  b: *x", "\x00"]
)
def test_what_is_no_pipeline_is_a_sentence(text: str) -> None:
    with pytest.raises(PipelineError):
        parse_pipeline(text, "mine.yaml")


def test_a_missing_file_points_to_the_examples(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such file"):
        load_pipeline(tmp_path / "none.yaml")


def test_every_shipped_pipeline_is_valid_and_survives_the_way_to_a_task() -> None:
    files = [*(ROOT / "examples").glob("*.yaml"), *(ROOT / "bench").glob("*.yaml")]
    assert files
    for file in files:
        pipeline = load_pipeline(file)
        again = Pipeline.model_validate_json(pipeline.model_dump_json(by_alias=True))
        assert again.built == pipeline.built
        assert again.output_schema == pipeline.output_schema


def test_the_fingerprint_changes_with_the_meaning_only() -> None:
    first = parse_pipeline(PIPELINE, "a.yaml").fingerprint("probing")
    assert parse_pipeline("# a comment\n" + PIPELINE, "b.yaml").fingerprint("probing") == first
    assert parse_pipeline(PIPELINE.replace("5 min", "6 min"), "c.yaml").fingerprint("probing") != first


@pytest.mark.parametrize(("text", "micros"), [("1 us", 1), ("3ms", 3000), ("2 s", 2_000_000), ("1 d", 86_400_000_000)])
def test_durations(text: str, micros: int) -> None:
    assert duration(text) == micros


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_no_text_crashes_the_reader(text: str) -> None:
    with pytest.raises(PipelineError):
        parse_pipeline(text, "mine.yaml")
