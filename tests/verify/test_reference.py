"""The reference run may stop and go on: from what it kept itself, it finds what it would have found in one pass."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.cep import sequencer
from spark_jobs.cep.arrays import NOT_HELD
from spark_jobs.cep.matcher import Known
from spark_jobs.verify.reference import NOTHING_KEPT, Kept, reference_run
from tests.cep.cases import examples, problems, skip_refused
from tests.cep.engine import numbered, operator_of, table_of
from tests.cep.oracle import Case, Event, complex_events

Problem = tuple[Case, list[Event]]
CUTS = st.lists(st.integers(1, 14), min_size=1, max_size=5)


def in_stretches(case: Case, log: list[Event], cuts: list[int]) -> list[object]:
    """Stretch by stretch; between two, what is kept goes through a file, and no other event of the past is seen."""
    operator = operator_of(case)
    seed, kept, after, since, found = sequencer.Seed(), NOTHING_KEPT, 0, NOT_HELD, []
    with tempfile.TemporaryDirectory() as folder:
        for end in [*sorted({cut for cut in cuts if cut < len(log)}), len(log)]:
            watermark = max([e.ts for e in log[:end]], default=NOT_HELD)
            first = operator.window.first_open(after, since) if after else operator.window.first_window()
            known = Known(after, end, since, watermark, first)
            matches, kept = reference_run(operator, table_of(log[after:end]), known, kept)
            rows, seed = sequencer.number(operator, seed, 0, [matches])
            found += numbered(rows)
            kept.save(f"{folder}/{end}")
            kept, after, since = Kept.load(f"{folder}/{end}"), end, watermark
    return found


@settings(max_examples=examples(400), deadline=None)
@given(problems(complete=False, plain=True), CUTS)
def test_the_automaton_goes_on_from_its_runs(problem: Problem, cuts: list[int]) -> None:
    case, log = problem
    assert operator_of(case).plain
    assert in_stretches(case, log, cuts) == complex_events(case, log)


@settings(max_examples=examples(200), deadline=None)
@given(problems(complete=False), CUTS)
def test_so_does_the_rest_of_the_language(problem: Problem, cuts: list[int]) -> None:
    case, log = problem
    skip_refused(case)
    assert in_stretches(case, log, cuts) == complex_events(case, log)
