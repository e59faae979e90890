"""What a shard may use is bounded; what exceeds it fails with the key and the rule, and nothing is swapped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.cep.matcher import match_complete
from spark_jobs.cep.operator import Limits, Operator
from spark_jobs.errors import ExpressionError, RepriseError
from spark_jobs.recovery.savepoint import fresh_savepoint
from tests.cep.engine import operator_of, step, table_of
from tests.cep.oracle import Case, Event


def stream(letters: str, key: str) -> list[Event]:
    return [Event(sn, sn, key, letter) for sn, letter in enumerate(letters, 1)]


def limited(case: Case, limits: Limits) -> Operator:
    return replace(operator_of(case), limits=limits)


@pytest.mark.parametrize(
    ("case", "limits", "letters", "rule"),
    [
        # Every subset of the Bs is a run: 2^n of them.
        (Case("A ->> B+ ->> C", within=100, all_runs=True), Limits(runs=1000), "a" + "b" * 12, "limits.runs = 1,000"),
        (Case("A -> B+ -> C"), Limits(length=5), "abbbbbbc", "limits.length = 5"),
        (Case("A -> B+ -> C"), Limits(nodes=2000), "a" + "b" * 3000, "limits.nodes = 2,000"),
    ],
)
def test_a_limit_is_reported_with_key_and_rule(case: Case, limits: Limits, letters: str, rule: str) -> None:
    operator = limited(case, limits)
    with pytest.raises(RepriseError) as refused:
        step(operator, fresh_savepoint(operator), stream(letters, "x"), len(letters), 1)
    assert "key 'x'" in str(refused.value)
    assert rule in str(refused.value)
    assert "Nothing of this batch was published" in str(refused.value)


def test_a_limit_is_no_limit_below_it() -> None:
    operator = limited(Case("A -> B+ -> C", complete=True), Limits(length=8))
    assert match_complete(operator, table_of(stream("abbbbbbc", "x"))).found.first.size == 1


def test_an_explosion_that_nothing_bounds_is_refused_before_it_runs() -> None:
    with pytest.raises(ExpressionError, match="WITHIN or a window"):
        operator_of(Case("A ->> B+ ->> C", all_runs=True))
