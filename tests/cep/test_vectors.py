"""docs/LANGUAGE.md as examples: the oracle and the engine both give what was worked out by hand.

The engine is reached through tests/cep/engine.py:

    run(vector)  -> the matches as (x, y, ordinal, sns, symbols, timed_out)
    measures(vector) -> per match a dict of its measures, in the same order
    output(vector) -> ALL ROWS PER MATCH: per row a dict of `sn` and the measures
    Refused      the error of a query that is not accepted
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.cep import engine, oracle
from tests.cep.vector import Expected, Vector, load_vectors

VECTORS = load_vectors()
REFUSED = [v for v in VECTORS if v.refused is not None]
ACCEPTED = [v for v in VECTORS if v.refused is None]

Numbered = tuple[int, int, int, tuple[int, ...], tuple[str, ...], bool]


class Oracle:
    """The oracle, with the face of tests/cep/engine.py."""

    @staticmethod
    def run(vector: Vector) -> list[Numbered]:
        return oracle.complex_events(vector.case, vector.events)

    @staticmethod
    def measures(vector: Vector) -> list[dict[str, Any]]:
        return oracle.measured(vector.case, vector.events, vector.measures)

    @staticmethod
    def output(vector: Vector) -> list[dict[str, Any]]:
        mode = vector.rows.removeprefix("all").strip() or "show"
        return oracle.all_rows(vector.case, vector.events, vector.measures, mode)


def label(vector: Vector) -> str:
    return f"{vector.group}: {vector.name}"


implementations = pytest.mark.parametrize("by", [Oracle, engine], ids=["oracle", "engine"])


@implementations
@pytest.mark.parametrize("vector", [v for v in ACCEPTED if v.matches is not None], ids=label)
def test_the_matches_are_those_worked_out_by_hand(vector: Vector, by: Any) -> None:
    found = by.run(vector)
    names = {e.sn: e.name for e in vector.events}
    assert vector.matches is not None
    assert [" ".join(names[sn] for sn in sns) for _, _, _, sns, _, _ in found] == [" ".join(e.rows) for e in vector.matches]
    assert [ordinal for _, _, ordinal, *_ in found] == list(range(1, len(found) + 1))
    for expected, (x, y, _, _, symbols, timed_out) in zip(vector.matches, found, strict=True):
        assert timed_out == expected.timed_out
        assert expected.x is None or (x, y) == (expected.x, expected.y)
        assert expected.symbols is None or symbols == expected.symbols


@implementations
@pytest.mark.parametrize("vector", [v for v in ACCEPTED if any(e.by for e in v.matches or [])], ids=label)
def test_a_match_comes_out_with_the_row_that_decides_it_and_not_before(vector: Vector, by: Any) -> None:
    """Of a complete input only its whole is ever seen."""
    if vector.case.complete:
        return
    run = by.run
    counts = [len(run(vector.prefix(n))) for n in range(len(vector.events) + 1)]
    for number, expected in enumerate(vector.matches or [], 1):
        if expected.by is not None:
            assert next(n for n, count in enumerate(counts) if count >= number) == deciding_sn(vector, expected)


def deciding_sn(vector: Vector, expected: Expected) -> int:
    """The SN of the row with which the match comes out: a deadline is reached by the first row at or after it."""
    assert expected.by is not None
    if expected.by.startswith("@"):
        return next(e.sn for e in vector.events if e.ts >= int(expected.by[1:]))
    return vector.event(expected.by).sn


@pytest.mark.parametrize("vector", [v for v in ACCEPTED if any(e.by for e in v.matches or [])], ids=label)
def test_the_oracle_names_what_decided_a_match(vector: Vector) -> None:
    names = {e.sn: e.name for e in vector.events}
    for expected, match in zip(vector.matches or [], oracle.matches(vector.case, vector.events), strict=True):
        time, rank, sn = match.producer
        assert expected.by in (None, [f"@{time}", names.get(sn), "end"][rank])


@implementations
@pytest.mark.parametrize("vector", [v for v in ACCEPTED if v.values is not None], ids=label)
def test_the_measures_are_those_worked_out_by_hand(vector: Vector, by: Any) -> None:
    assert by.measures(vector) == vector.values


@implementations
@pytest.mark.parametrize("vector", [v for v in ACCEPTED if v.output is not None], ids=label)
def test_all_rows_per_match_are_those_worked_out_by_hand(vector: Vector, by: Any) -> None:
    names = {e.sn: e.name for e in vector.events}
    rows = by.output(vector)
    found = [{"row": names[row["sn"]], **{k: v for k, v in row.items() if k != "sn"}} for row in rows]
    assert found == vector.output


@pytest.mark.parametrize("vector", REFUSED, ids=label)
def test_a_query_that_means_nothing_is_refused(vector: Vector) -> None:
    with pytest.raises(engine.Refused):
        engine.run(vector)


def test_there_are_enough_examples_and_their_names_are_unique() -> None:
    # The number asked for when the language was defined; fewer means that a file was not read.
    assert len(VECTORS) >= 250
    assert [n for n, count in Counter(label(v) for v in VECTORS).items() if count > 1] == []
