"""`reprise explain`: what is said before anything runs follows from the pattern, and warns of what would not end."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from spark_jobs.cep.automaton import compile_pattern
from spark_jobs.cep.operator import AfterMatch, Operator
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.windows import Window
from spark_jobs.cli import app
from spark_jobs.errors import ExpressionError, RepriseError
from spark_jobs.explain import Explanation, duration_text, explain, operator_of_sql
from spark_jobs.picture import MAX_STATES, draw
from spark_jobs.pipeline_file import load_pipeline
from tests.conftest import PIPELINE

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
TYPES = {"type": pa.string(), "key": pa.string(), "v": pa.float64(), "ts": pa.timestamp("us", "UTC")}
HOUR = 3_600_000_000
SVG = "{http://www.w3.org/2000/svg}"


def letters(pattern: str) -> dict[str, str]:
    """Every symbol is the type of its own name in small letters."""
    return {symbol: f"type = '{symbol.lower()}'" for symbol in parse_pattern(pattern).symbols}


def operator(pattern: str, define: dict[str, str] | None = None, **given: Any) -> Operator:
    given.setdefault("partition_by", "key")
    built = Operator(
        name="x",
        pattern=parse_pattern(pattern),
        define=letters(pattern) if define is None else define,
        types=TYPES,
        **given,
    )
    built.check()
    return built


def explained(pattern: str, define: dict[str, str] | None = None, **given: Any) -> Explanation:
    return explain(operator(pattern, define, **given))


def kinds(explanation: Explanation) -> list[str]:
    return [caution.kind for caution in explanation.warnings]


def test_a_plain_sequence_reads_from_pattern_to_replay() -> None:
    assert explained("A -> B", within=HOUR).as_text() == (
        """
x: A -> B
  by key, WITHIN 1 h, the preferred match of each start, AFTER MATCH SKIP PAST LAST ROW

Automaton: the start and 2 steps; each with what may follow, in order of preference
  0 start  begin 1 A
  1 A      next 2 B
  2 B      accept

Predicates
  A  columnar, before matching  type = 'a'
  B  columnar, before matching  type = 'b'
  Columns read: key, type, besides sn and stream_ts.

Matching
  - Completion array: for a plain sequence one pass backwards tells where each start ends; no runs are kept.
  - Parallel by key: a task reads the buckets of its own keys and nothing else; shards do not change the result.
  - A match comes out with its last row.

Replay
  - A row that fits no symbol is never held; it is dropped before matching.
  - Held are the used rows since the first start still undecided: those that a step took.
  - WITHIN bounds it: what started 1 h of stream time ago is no longer held.

Warnings: none
""".strip()
    )


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (
            "S{2,} -> L",
            ["0 start  begin 1 S", "1 S      strict 2 S", "2 S      1. strict 2 S   2. next 3 L", "3 L      accept"],
        ),
        ("A -> !N -> !M -> B", ["1 A      next 2 B, no M, no N"]),
        ("A ->> B+? C", ["1 A      any 2 B", "2 B      1. strict 3 C   2. any 2 B"]),
        ("A -> !N -> B? -> C", ["1 A      1. next 2 B, no N   2. next 3 C, no N"]),
        ("A {- B -} C", ["1 A        strict 2 B", "2 {- B -}  strict 3 C"]),
        ("^ A B", ["0 start, on a first row  begin 1 A"]),
        ("A -> B -> !N", ["2 B      accept when WITHIN has passed with no N"]),
    ],
)
def test_a_line_per_state_has_its_options_in_order_of_preference(pattern: str, lines: list[str]) -> None:
    said = [line.strip() for line in explained(pattern, within=HOUR).as_text().splitlines()]
    assert [line for line in lines if line not in said] == []


def test_lines_stay_short_and_aligned_for_thirty_steps_and_many_options() -> None:
    names = [f"S{k}" for k in range(30)]
    long = explained(" -> ".join(names), within=HOUR).as_text()
    begins = {line.index(" next ") for line in long.splitlines() if " next " in line}
    assert len(begins) == 1
    wide = explained("PERMUTE(A, B, C, D)", within=HOUR).as_text()
    assert max(map(len, wide.splitlines())) <= 118
    counted = explained("A{250} B", within=HOUR).as_text()
    assert "... and 52 more; --json has all of them" in counted  # 250 As, a B and the start, of which 200 are shown


def test_predicates_say_where_they_run() -> None:
    given = {"S": "v < 5", "L": "v > 100 AND v > 10 * SUM(S.v)", "T": "v > LAST(S.v)", "N": "TRUE"}
    opened = Window("opened", 10, 10, "v > 1", "type = 'z'", by_rows=True)
    said = explained("S+ -> L -> !N -> T", given, window=opened)
    assert [(line.symbol, line.where) for line in said.predicates] == [
        ("S", "columnar, before matching"),
        ("L", "columnar, before matching"),
        ("L", "in the kernel, per run"),
        ("N", "none needed"),
        ("T", "in the kernel, per run"),
        ("window opens", "columnar, before matching"),
        ("window closes", "columnar, before matching"),
    ]
    assert said.columns == ("key", "type", "v")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"pattern": "A B"}, "the pattern is more than a plain 'A -> B -> C'"),
        ({"define": {"A": "v > 0", "B": "v > A.v"}}, "B must be compared with rows bound before"),
        ({"define": {"A": "v > 0", "B": "v > PREV(v)"}}, "PREV looks at other rows"),
        ({"all_runs": True}, "all runs are asked for"),
        ({"timed_out": True}, "timed-out matches are asked for"),
        ({"within_steps": HOUR}, "the time between steps is limited"),
        ({"after_match": AfterMatch("to last", "B")}, "AFTER MATCH SKIP TO LAST is asked for"),
        ({"window": Window("keyed", 5, 5)}, "windows begin at rows"),
    ],
)
def test_ordered_runs_are_used_for_a_reason(given: dict[str, Any], reason: str) -> None:
    built = operator(**{"pattern": "A -> B", "within": HOUR, **given})
    assert not built.plain
    assert explain(built).matching[0] == f"Ordered runs, moved on row by row, because {reason}."


@pytest.mark.parametrize(
    ("pattern", "given", "sentence"),
    [
        ("A -> B", {"partition_by": None}, "One stream: without PARTITION BY every row may matter"),
        ("A -> B", {"partition_by": "type"}, "Parallel by type: the log is not bucketed by it"),
        ("A -> B+", {"within": HOUR}, "A complete match that a later B could lengthen waits until WITHIN (1 h) has passed."),
        ("A -> B+", {"window": Window("time", HOUR, HOUR)}, "could lengthen waits until its window closes."),
        ("A -> B+", {}, "could lengthen waits for ever."),
        ("A -> B -> !N", {"within": HOUR}, "comes out when its time has passed, or its window closes, with no N."),
        ("A B $", {"window": Window("time", HOUR, HOUR)}, "A match comes out when its window closes."),
        ("A B*", {"within": HOUR}, "comes out with the first row that can no longer lengthen it"),
        ("A -> B", {"all_runs": True}, "Every run that completes is a match"),
        ("A B", {"within": HOUR}, "A match is also held back while an earlier start may still match"),
        ("A B", {"within": HOUR}, "cannot be told apart by any predicate and are merged"),
        ("A -> B", {"define": {"A": "v > 0", "B": "v > A.v"}}, "No part of B can be decided by a row alone"),
    ],
)
def test_how_it_is_matched_depends_on_the_pattern(pattern: str, given: dict[str, Any], sentence: str) -> None:
    assert sentence in " ".join(explained(pattern, **given).matching)


@pytest.mark.parametrize(
    ("pattern", "given", "sentence"),
    [
        ("A B", {}, "Strict steps (B) need every row of the key: one that fits no symbol ends a run"),
        ("A B", {}, "All steps are strict, so each key holds the rows of its current run only."),
        ("A -> B", {}, "Without WITHIN or a window a start that never completes is held for ever."),
        ("A", {}, "A match is one row, so nothing is ever held."),
        ("A -> X -> B", {"define": {"A": "v > 0", "B": "v > 1"}}, "X fits every row, so every row can be used."),
        ("A -> !N -> B", {}, "those that a step took and N rows that ended a run."),
        ("A -> B", {"define": {"A": "v > 0", "B": "v > PREV(v, 3)"}}, "PREV: as context, 3 rows before each held one"),
        ("A -> B", {"window": Window("keyed", 20, 20)}, "All rows of windows still open are held: up to 20 per key"),
        ("A -> B", {"window": Window("opened", 20, 20, "v > 1", None, True)}, "a key that falls silent keeps them."),
        ("A -> B", {"window": Window("opened", HOUR, HOUR, "v > 1")}, "until it closes or that much stream time has passed."),
        ("A -> B", {"window": Window("count", 100, 10)}, "Windows overlap and matches consume rows"),
        ("A -> B", {"window": Window("count", 100, 100)}, "When a window closes, everything that only it held is released."),
        ("^ A B", {}, "'^' needs the first row of each key and window, whatever it is: used rows are held for ever."),
        ("A B $", {"window": Window("count", 9, 9)}, "'$' needs every row"),
        ("A -> B", {"within": 90_000_000}, "WITHIN bounds it: what started 90 s of stream time ago is no longer held."),
        ("A -> B", {"within_steps": HOUR}, "a run that took no row for 1 h of stream time is no longer held."),
        ("A -> B", {"complete": True}, "None: a query sees its input to the end"),
    ],
)
def test_what_a_replay_needs_depends_on_the_pattern(pattern: str, given: dict[str, Any], sentence: str) -> None:
    assert sentence in " ".join(explained(pattern, **given).replay)


@pytest.mark.parametrize(
    ("pattern", "given", "kind"),
    [
        ("A -> B", {}, "No WITHIN and no window"),
        ("A -> B+", {}, "Endless tail (B)"),
        ("A B", {"define": {"B": "v > 1"}}, "A begins matches and fits every row"),
        ("A B", {"define": {"A": "TRUE", "B": "v > 1"}}, "A begins matches and fits every row"),
        ("A -> !N -> B", {"define": {"A": "v > 1", "B": "v > 2"}, "within": HOUR}, "!N fits every row"),
        ("A -> B -> !N", {"define": {"A": "v > 1", "B": "v > 2"}, "within": HOUR}, "!N fits every row"),
        ("A ->> B+ ->> C", {"within": HOUR, "all_runs": True}, "Repetition under '->>'"),
        ("A ->> B+ ->> C", {"within": HOUR, "define": letters("A") | {"B": "v > A.v", "C": "v < 1"}}, "Repetition under '->>'"),
        ("A B*?", {"within": HOUR}, "B can never be bound"),
        ("A B", {"define": {"A": "v < NEXT(v)", "B": "v > 1"}, "complete": True}, "NEXT()"),
        ("A B", {"measures": {"n": "MATCH_NUMBER()"}, "complete": True}, "MATCH_NUMBER()"),
    ],
)
def test_a_warning_names_the_consequence_and_what_to_write(pattern: str, given: dict[str, Any], kind: str) -> None:
    said = explained(pattern, **given)
    (found,) = [caution for caution in said.warnings if caution.kind == kind]
    assert found.consequence.endswith(".")
    assert found.instead.endswith(".")
    assert f"  ! {kind}: " in said.as_text()


@pytest.mark.parametrize(
    ("pattern", "given"),
    [
        ("A -> B", {"within": HOUR}),
        ("A -> B", {"within_steps": HOUR}),
        ("A -> B", {"window": Window("count", 10, 10)}),
        ("A -> B", {"complete": True}),
        ("A B+", {}),  # strict: the next row decides
        ("A -> B+", {"within_steps": HOUR}),  # time ends the wait
        ("A ->> B+ ->> C", {"within": HOUR}),  # runs are merged
        ("A B*?", {"within": HOUR, "all_runs": True}),
        ("A B*? C", {}),
        ("A B", {"define": {"A": "type = 'NEXT(v)'", "B": "v > 1"}}),
    ],
)
def test_what_is_bounded_has_no_warnings(pattern: str, given: dict[str, Any]) -> None:
    assert kinds(explained(pattern, **given)) == []


@pytest.mark.parametrize(
    ("micros", "text"), [(1, "1 us"), (1500, "1,500 us"), (90_000_000, "90 s"), (HOUR, "1 h"), (48 * HOUR, "2 d")]
)
def test_durations_are_said_in_the_largest_whole_unit(micros: int, text: str) -> None:
    assert duration_text(micros) == text


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  # what draw() wrote


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    found = parsed(svg).iter(f"{SVG}rect")
    wanted = [rect.attrib for rect in found if "box" in rect.attrib["class"].split()]
    return [(float(r["x"]), float(r["y"]), float(r["width"]), float(r["height"])) for r in wanted]


def picture(pattern: str, define: dict[str, str] | None = None) -> str:
    return draw(compile_pattern(parse_pattern(pattern)), f"x: {pattern}", define or {})


PICTURES = [
    "A -> B -> C",
    "A (B -> C | D ->> E? F)+ -> G",
    "PERMUTE(X, Y, Z)",
    "S{3,} -> L",
    "SCAN -> EXPL -> !PATCH -> EXF",
    "A{2,5} -> B",
    "^ (A | B)+? -> !N -> !M -> C? -> {- D -} ->> E* $",
    "A -> B? -> C? -> D? -> E? -> F",
    "(A B? C)+ (D | E F)*",
    "A* | ()",
]


@pytest.mark.parametrize("pattern", PICTURES)
def test_in_a_picture_nothing_lies_on_a_state_or_on_a_label(pattern: str) -> None:
    svg = picture(pattern)
    assert len(boxes(svg)) == len(compile_pattern(parse_pattern(pattern)).states) - 1
    check_layout(svg)


def check_layout(svg: str) -> None:
    """States lie apart inside the frame, labels apart from states and each other, and edges run around states."""
    width, height = (float(number) for number in parsed(svg).attrib["viewBox"].split()[2:])
    drawn = boxes(svg)
    for place, (x, y, w, h) in enumerate(drawn):
        assert 0 <= x < x + w <= width
        assert 0 <= y < y + h <= height
        for ox, oy, ow, oh in drawn[place + 1 :]:
            assert x + w <= ox or ox + ow <= x or y + h <= oy or oy + oh <= y
    orders = [c.attrib for c in parsed(svg).iter(f"{SVG}circle") if c.attrib["class"] == "order"]
    circles = [(float(c["cx"]), float(c["cy"])) for c in orders]
    for place, (x, y) in enumerate(circles):
        # The circles have a radius of 7.5.
        assert all(abs(x - ox) >= 15 or abs(y - oy) >= 15 for ox, oy in circles[place + 1 :])
        assert not any(bx < x < bx + w and by < y < by + h for bx, by, w, h in drawn)
    inner = [(x + 2, y + 2, w - 4, h - 4) for x, y, w, h in drawn]
    for path in parsed(svg).iter(f"{SVG}path"):
        if " h " not in path.attrib["d"]:  # those are the legend's
            for x, y in along(path.attrib["d"]):
                assert not any(bx < x < bx + w and by < y < by + h for bx, by, w, h in inner), path.attrib["d"]


def along(path: str) -> list[tuple[float, float]]:
    """Points on a path of M, L, Q and C."""
    points: list[tuple[float, float]] = []
    at = (0.0, 0.0)
    for command, numbers in re.findall(r"([MLQC])([^MLQC]*)", path):
        values = [float(number) for number in numbers.split()]
        corners = [at, *zip(values[::2], values[1::2], strict=True)]
        if command != "M":
            points += [between(corners, step / 20) for step in range(21)]
        at = corners[-1]
    return points


def between(corners: list[tuple[float, float]], share: float) -> tuple[float, float]:
    """De Casteljau: the point of a Bezier curve."""
    while len(corners) > 1:
        corners = [(a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share) for a, b in pairwise(corners)]
    return corners[0]


def test_definitions_cannot_inject_markup_into_a_picture() -> None:
    nasty = "type < '</text><script>alert(1)</script>' AND v < 5 & 3 OR \"x\" > ']]>'"
    svg = picture("A -> B", {"A": nasty})
    assert "<script" not in svg
    texts = [element.text or "" for element in parsed(svg).iter()]
    assert nasty in texts


def test_a_picture_marks_negations_ends_and_the_order_of_preference() -> None:
    svg = picture("A -> !N -> B+ -> !M")
    texts = [element.text for element in parsed(svg).iter(f"{SVG}text")]
    assert "no N" in texts
    assert "2. end, then no M" in texts
    assert "the next row that fits" in texts
    assert svg.count('class="inner"') == 1


def test_a_picture_that_nobody_could_read_is_refused() -> None:
    with pytest.raises(RepriseError, match=rf"more than the {MAX_STATES} that a picture can show"):
        picture(f"A{{{MAX_STATES}}}")
    assert len(boxes(picture(f"A{{{MAX_STATES - 1}}}"))) == MAX_STATES - 1


@st.composite
def patterns(draw_: st.DrawFn, depth: int = 3) -> str:
    if depth == 0:
        return draw_(st.sampled_from("ABCD"))
    parts = draw_(st.lists(patterns(depth=depth - 1), min_size=1, max_size=3))
    joined = draw_(st.sampled_from([" ", " -> ", " ->> ", " | ", " -> !N -> "])).join(parts)
    return f"({joined}){draw_(st.sampled_from(['', '', '*', '+', '?', '{2,3}', '+?']))}"


@settings(max_examples=40, deadline=None)
@given(patterns())
def test_every_pattern_can_be_drawn_and_explained(pattern: str) -> None:
    try:
        built = operator(pattern, complete=True)
        svg = picture(pattern)
    except (ExpressionError, RepriseError):
        return  # too many options or states, said elsewhere
    assert len(boxes(svg)) == len(built.automaton.states) - 1
    check_layout(svg)
    assert explain(built).as_text()


def test_sql_is_explained_over_the_columns_of_the_pipeline(tmp_path: Path) -> None:
    sql = """SELECT * FROM tx MATCH_RECOGNIZE (PARTITION BY key, type ORDER BY ts MEASURES B.v AS v
             PATTERN (A -> B) WITHIN INTERVAL '2' HOURS DEFINE A AS v < NEXT(v), B AS v > A.v)"""
    built, keys = operator_of_sql(sql, TYPES)
    said = explain(built, keys)
    assert said.rules[:2] == ("by key, type", "WITHIN 2 h")
    assert said.columns == ("key", "type", "v")
    assert kinds(said) == ["NEXT()"]
    assert "__key" not in said.as_text()
    (tmp_path / "q.sql").write_text(sql)
    assert operator_of_sql(str(tmp_path / "q.sql"), TYPES)[0] == built
    for wrong in ("nowhere.sql", "SELECT 1", "\0"):
        with pytest.raises(RepriseError, match="no MATCH_RECOGNIZE, and is no readable file"):
            operator_of_sql(wrong, TYPES)


def reprise(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_can_be_explained(file: Path, tmp_path: Path) -> None:
    pipeline = load_pipeline(file)
    for name in pipeline.operators:
        titles = ("Predicates", "Matching", "Replay", "Warnings: ", *(() if name in pipeline.stateful else ("Automaton: ",)))
        done = reprise("explain", file, "--operator", name, "--svg", tmp_path / "new" / f"{name}.svg")
        assert done.exit_code == 0, done.output
        assert all(title in done.stdout for title in titles)
        parsed((tmp_path / "new" / f"{name}.svg").read_text())
        (line,) = reprise("explain", file, "--operator", name, "--json").stdout.splitlines()
        assert set(json.loads(line)) == set(Explanation.__dataclass_fields__)


def test_a_graph_says_what_it_reads() -> None:
    said = reprise("explain", ROOT / "examples" / "fraud_waves.yaml").stdout
    assert "Reads probing and rising as one stream, in the order of the log; on a tie, in this order." in said
    assert "Reads the complex events of waves, in their order." in said


def test_strict_turns_warnings_into_an_exit_code() -> None:
    assert reprise("explain", ROOT / "examples" / "v_shape.yaml").exit_code == 0
    assert reprise("explain", ROOT / "examples" / "v_shape.yaml", "--strict").exit_code == 1
    assert reprise("explain", ROOT / "examples" / "card_probing.yaml", "--strict").exit_code == 0


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    second = PIPELINE[PIPELINE.index("  probing:") :].replace("probing", "other")
    file.write_text(PIPELINE + second.lstrip("\n"))
    one = reprise("explain", file, "--operator", "probin")
    assert "pipeline small has no operator 'probin'; did you mean 'probing'?" in str(one.exception)
    assert "choose one of probing, other with --operator" in str(reprise("explain", file, "--svg", "a.svg").exception)
    both = reprise("explain", file, "--operator", "probing", "--sql", "x")
    assert "give one of the two" in str(both.exception)
    assert reprise("explain", file, "--operator", "other").stdout.count("Automaton: ") == 1
    assert reprise("explain", file).stdout.count("Automaton: ") == 2
