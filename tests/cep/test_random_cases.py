"""The whole language on random patterns and streams, against a brute-force oracle that shares no code with the engine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.cep.cases import examples, problems, skip_refused
from tests.cep.engine import complex_events
from tests.cep.oracle import Case, Event
from tests.cep.oracle import complex_events as expected

# Thousands of cases, and make soak tries forty times as many; the machine may be busy.
pytestmark = pytest.mark.timeout(14_400)


@settings(max_examples=examples(2500), deadline=None)
@given(problems())
def test_the_engine_finds_what_the_oracle_finds(problem: tuple[Case, list[Event]]) -> None:
    case, log = problem
    skip_refused(case)
    assert complex_events(case, log) == expected(case, log)
