"""Pipeline files: what is wrong is said with file, line and a suggestion, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from schemas.types import TIMESTAMP
from spark_jobs.cep.operator import AfterMatch
from spark_jobs.cep.windows import Window
from spark_jobs.cep.words import duration
from spark_jobs.errors import PipelineError
from spark_jobs.pipeline import Pipeline
from spark_jobs.pipeline_file import load_pipeline, parse_pipeline
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
        ("A -> B -> C", "A -> B -> (C", 11, "')' is missing"),
        ("A -> B -> C", "A* -> B* -> C*", 11, "also fits no event at all"),
        ("A -> B -> C", "A -> B -> C $", 11, "'$' needs a window"),
        ("type = 'a'", "typ = 'a'", 12, "unknown column 'typ'; did you mean 'type'?"),
        ("amount > 5", "amount > 'x'", 12, "compares double with string"),
        ("loss: C.amount", "loss: D.amount", 14, "unknown symbol 'D'"),
        ("loss: C.amount", "loss: C.ts - A.ts", 14, "is a length of time"),
        ("loss: C.amount", "loss: MATCH_NUMBER()", 14, "needs a complete input"),
        ("amount > 5", "amount > NEXT(amount)", 12, "complete input"),
        ("loss: C.amount", "batch: C.amount", 14, "is taken by complex_events"),
        ("amount: double", "amount: dubble", 5, "unknown type 'dubble'; did you mean 'double'?"),
        ("amount: double", "sn: double", 5, "is a column Reprise fills itself"),
        ("buckets: 7", "buckets: none", 7, "valid integer"),
        ("quarantine_limit: 0.5", "quarantine_limit: 50", 6, "less than or equal to 1"),
        ("name: small", "name: Small!", 2, "is not a name"),
        ("amount: double", "amount: 'decimal(40,2)'", 5, "not a decimal type"),
        ("name: small", "nam: small", 2, "unknown key 'nam'; did you mean 'name'?"),
        ("within: 5 min", "after_match: past last", 13, "did you mean 'past last row'?"),
        ("name: small", "name: small\nrecovery: {strategy: replicated, f: 2}", 3, "'savepoint', 'checkpoint' or 'replication'"),
        ("name: small", "name: small\nrecovery: {strategy: replication}", 3, "replication needs 'f'"),
        ("name: small", "name: small\nrecovery: {f: 2}", 3, "belongs to 'strategy: replication'"),
        ("name: small", "name: small\nrecovery: {strategy: replication, f: 0}", 3, "greater than or equal to 1"),
        ("name: small", "name: small\nrecovery: {strategy: replication, f: 1, heartbeat: 1 ms}", 3, "every pause of a process"),
        ("name: small", "name: small\nrecovery: {strategy: replication, f: 1, beat: 1 s}", 3, "unknown key 'beat'"),
        (
            "name: small",
            "name: small\nordering: {speculation: adaptive}\nrecovery: {strategy: replication, f: 1}",
            3,
            "together with 'strategy: replication'",
        ),
        ("within: 5 min", "window: {count: 5, slide: 1 min}", 13, "slides by a positive number of events"),
        ("within: 5 min", "window: {time: 5 min, slide: 3}", 13, "slides by a duration"),
        ("within: 5 min", "window: {count: 5, time: 1 h}", 13, "either {count"),
        ("within: 5 min", "window: {time: 1 h, per: key}", 13, "belongs to a count window"),
        ("within: 5 min", "window: {count: 5, per: card}", 13, "'key' or 'stream'"),
        ("within: 5 min", "window: {open_when: amount > 5}", 13, "needs either rows: 10 or time: 5 min"),
        ("within: 5 min", "window: {open_when: amont > 5, rows: 3}", 13, "unknown column 'amont'; did you mean 'amount'?"),
        ("within: 5 min", "window: {open_whn: amount > 5, rows: 3}", 13, "did you mean 'open_when'?"),
        ("within: 5 min", "window: {close_when: amount > 5, count: 3}", 13, "belong to open_when"),
        ("within: 5 min", "after_match: to last D", 13, "names 'D'"),
        ("within: 5 min", "after_match: to first", 13, "needs one symbol"),
        ("within: 5 min", "subset: {U: [A, D]}", 13, "names 'D'"),
        ("within: 5 min", "subset: {A: [A, B]}", 13, "has the name of a symbol"),
        ("within: 5 min", "subset: {U: A}", 13, "valid list"),
        ("within: 5 min", "timed_out: true", 13, "need WITHIN"),
        ("within: 5 min", "select: all run", 13, "'preferred' or 'all runs'"),
        ("within: 5 min", "within_steps: 5", 13, "a unit is missing"),
        ("within: 5 min", "limits: {runs: 0}", 13, "greater than or equal to 1"),
        ("within: 5 min", "limits: {run: 7}", 13, "did you mean 'runs'?"),
        ("within: 5 min", "within: 106751991 d", 13, "longer than 1,000 years"),
        ("within: 5 min", "window: {count: 99999999999999999999}", 13, "less than or equal to"),
        ("amount: double", "amount: double, Amount: int", 5, "differ in case only"),
        ("amount: double", "__row: double", 5, "is not a column name"),
        ("amount > 5", "amount BETWEEN SYMMETRIC 9 AND 5", 12, "SYMMETRIC is not allowed"),
        ("within: 5 min", "from: nowhere", 13, "no input 'nowhere'; known here: event_log, probing"),
        ("within: 5 min", "partition_by: type", 13, "given twice"),
        (
            "name: small",
            "name: small\nrecovery: {strategy: checkpoints}",
            3,
            "Input should be 'savepoint', 'checkpoint' or 'replication'",
        ),
        ("name: small", "name: small\nrecovery: {stratgy: checkpoint}", 3, "did you mean 'strategy'?"),
        ("name: small", "name: small\nrecovery: {save: {event: 5}}", 3, "did you mean 'events'?"),
        ("name: small", "name: small\nrecovery: {save: {events: 0}}", 3, "greater than or equal to 1"),
        ("name: small", "name: small\nrecovery: {save: often}", 3, "'often' is no way to save"),
        ("name: small", "name: small\nrecovery: {save: {events: 5, speculative: 5}}", 3, "give one of events and speculative"),
        ("name: small", "name: small\nrecovery: {save: {speculative: 5}}", 3, "without 'ordering' no event is speculative"),
        ("name: small", "name: small\nordering: {}\nrecovery: {strategy: checkpoint}", 4, "leave 'strategy' out"),
        ("name: small", "name: [small", 3, "not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line(old: str, new: str, line: int, message: str) -> None:
    assert old in PIPELINE
    with pytest.raises(PipelineError) as refused:
        parse_pipeline(PIPELINE.replace(old, new, 1), "mine.yaml")
    assert message in str(refused.value)
    assert f"mine.yaml:{line}: " in str(refused.value)


WHOLE_LANGUAGE = PIPELINE.replace(
    "    within: 5 min\n",
    """    within: 5 min
    within_steps: 1 min
    after_match: to last U
    select: all runs
    timed_out: true
    subset: {U: [B, C]}
    window: {open_when: amount > 1, close_when: amount < 0, time: 5 min}
    limits: {runs: 7, length: 9}
""",
).replace("A -> B -> C", "A+ -> B ->> C{2,3}")


def test_a_pipeline_says_the_whole_language() -> None:
    pipeline = parse_pipeline(WHOLE_LANGUAGE, "mine.yaml")
    operator = pipeline.built["probing"]
    assert (operator.within, operator.within_steps) == (300_000_000, 60_000_000)
    assert operator.after_match == AfterMatch("to last", "U")
    assert operator.all_runs
    assert operator.timed_out
    assert operator.subsets == {"U": ("B", "C")}
    assert operator.window == Window("opened", 300_000_000, 300_000_000, "amount > 1", "amount < 0")
    assert (operator.limits.runs, operator.limits.length) == (7, 9)
    assert Pipeline.model_validate_json(pipeline.model_dump_json(by_alias=True)).built == pipeline.built


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("{count: 9}", Window("count", 9, 9)),
        ("{count: 9, slide: 2, per: stream}", Window("count", 9, 2)),
        ("{count: 9, slide: 2, per: key}", Window("keyed", 9, 2)),
        ("{time: 1 s, slide: 1 ms}", Window("time", 1_000_000, 1_000)),
        ("{open_when: amount > 5, rows: 3}", Window("opened", 3, 3, "amount > 5", by_rows=True)),
    ],
)
def test_windows(text: str, window: Window) -> None:
    assert parse_pipeline(PIPELINE.replace("within: 5 min", f"window: {text}"), "mine.yaml").built["probing"].window == window


def test_attributes_of_every_type_can_be_compared_and_measured() -> None:
    text = PIPELINE.replace("amount: double", "amount: 'decimal(10,2)', due: date, paid: timestamp, ok: boolean, n: int")
    text = text.replace("loss: C.amount", "loss: SUM(amount), due: C.due, paid: C.paid, ok: C.ok, n: MAX(n)")
    text = text.replace("type = 'a'", "due < DATE '2026-02-01' AND paid > TIMESTAMP '2026-01-01 00:00:00' AND ok")
    measures = parse_pipeline(text, "mine.yaml").measures
    assert pa.types.is_decimal(measures.pop("loss"))
    assert measures == {
        "due": pa.date32(), "paid": TIMESTAMP, "ok": pa.bool_(), "n": pa.int64(), "opened": TIMESTAMP
    }  # fmt: skip


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
    limited = PIPELINE.replace("within: 5 min", "within: 5 min\n    limits: {runs: 7}")
    assert parse_pipeline(limited, "d.yaml").fingerprint("probing") == first


@pytest.mark.parametrize(("text", "micros"), [("1 us", 1), ("3ms", 3000), ("2 s", 2_000_000), ("1 d", 86_400_000_000)])
def test_durations(text: str, micros: int) -> None:
    assert duration(text) == micros


def test_a_comma_in_an_unquoted_predicate_is_explained() -> None:
    text = """
name: small
source: {attributes: {amount: double}}
operators:
  rising:
    pattern: A -> B
    define: {A: amount > 1, B: amount > LAST(A.amount, 1)}
"""
    with pytest.raises(PipelineError, match=r"x.yaml:7: .*put texts with commas into quotes"):
        parse_pipeline(text, "x.yaml")


def test_true_without_quotes_is_a_predicate() -> None:
    text = """
name: small
source: {}
operators:
  all_rows:
    pattern: A
    define: {A: TRUE}
"""
    assert parse_pipeline(text, "x.yaml").built["all_rows"].define == {"A": "TRUE"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nsource: {}\noperators: {}", "x.yaml:3: operators: is empty"),
        (
            "name: a\nsource: 5\noperators: {a: {pattern: A, define: {A: 'TRUE'}}}",
            "x.yaml:2: source: should be a mapping, not 5",
        ),
        ("name: a\nsource: {attributes: {d: decimal(12,2)}}\noperators: {a: {pattern: A, define: {A: 'TRUE'}}}", "into quotes"),
        ("name: a\nsource: {}\noperators: {a: {pattern: A, define: {A: type IN ('b','c')}}}", "into quotes"),
    ],
)
def test_mistakes_of_yaml_are_said_in_words(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        parse_pipeline(text, "x.yaml")


def test_how_to_recover_is_no_part_of_what_an_operator_means() -> None:
    plain = parse_pipeline(PIPELINE, "mine.yaml")
    kept = parse_pipeline(PIPELINE + "recovery: {strategy: checkpoint, save: adaptive}\n", "mine.yaml")
    assert kept.fingerprint("probing") == plain.fingerprint("probing")
    assert Pipeline.model_validate_json(kept.model_dump_json(by_alias=True)).recovery == kept.recovery


def test_how_detection_recovers_is_no_part_of_what_an_operator_means() -> None:
    alone = parse_pipeline(PIPELINE, "small.yaml")
    replicated = parse_pipeline(f"{PIPELINE}recovery: {{strategy: replication, f: 2, heartbeat: 250 ms}}\n", "small.yaml")
    assert replicated.fingerprint("probing") == alone.fingerprint("probing")
    assert (alone.recovery.replicas, replicated.recovery.replicas, replicated.recovery.period) == (1, 3, 0.25)
