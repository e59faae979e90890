"""Random queries of the whole language with streams for them, small enough for the oracle."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hypothesis import assume
from hypothesis import strategies as st

from tests.cep.engine import Refused, operator_of
from tests.cep.oracle import Case, Event, WindowKind, parse

CONNECTORS = [" ", " ", " -> ", " -> ", " -> ", " -> ", " ->> "]
NEGATIONS = [" -> !N -> ", " -> !C -> !N -> ", " -> !N ->> "]
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}", "{,2}"]
KINDS: list[WindowKind] = ["none", "none", "count", "time", "keyed", "opened"]
OPTIONAL = {"*", "?", "{0,2}", "{,2}"}
# Any symbol S of the pattern, A another one: what S's predicate may say besides its letter.
CROSS_EVENT = [
    "v > LAST(S.v, 1) OR LAST(S.v, 1) IS NULL",
    "COUNT(S.*) <= 2",
    "SUM(S.v) <= 4",
    "v > PREV(v)",
    "v <> LAST(v, 1)",
    "COUNT(*) <= 3",
    "v >= COALESCE(PREV(v, 2), 1)",
    "v > A.v",
    "v = FIRST(A.v)",
    "v >= AVG(A.v)",
    "NOT v < MAX(A.v)",
    "COUNT(A.v) = COUNT(S.*)",
    "v > LAST(A.v, 1) OR COUNT(A.*) < 2",
    "v + 1 >= SUM(v) - MIN(A.v)",
]


@dataclass(frozen=True)
class Element:
    text: str
    may_be_empty: bool


@st.composite
def elements(draw: st.DrawFn, depth: int) -> Element:
    kind = draw(st.sampled_from(["symbol"] * 6 + (["group", "choice", "permute", "exclusion"] if depth else [])))
    if kind == "symbol":
        body = Element(draw(st.sampled_from("AABBCD")), may_be_empty=False)
    elif kind == "group":
        inner = draw(sequences(depth - 1, 2))
        body = Element(f"({inner.text})", inner.may_be_empty)
    elif kind == "choice":
        inners = draw(st.lists(sequences(depth - 1, 2), min_size=2, max_size=2))
        body = Element("(" + " | ".join(i.text for i in inners) + ")", any(i.may_be_empty for i in inners))
    elif kind == "permute":
        inners = draw(st.lists(elements(0), min_size=2, max_size=3))
        body = Element("PERMUTE(" + ", ".join(i.text for i in inners) + ")", all(i.may_be_empty for i in inners))
    else:
        inner = draw(sequences(depth - 1, 2))
        body = Element("{- " + inner.text + " -}", inner.may_be_empty)
    if not draw(st.sampled_from([True, False, False])):
        return body
    quantifier = draw(st.sampled_from(QUANTIFIERS))
    reluctant = "?" if draw(st.sampled_from([True, False, False])) else ""
    return Element(body.text + quantifier + reluctant, body.may_be_empty or quantifier in OPTIONAL)


@st.composite
def sequences(draw: st.DrawFn, depth: int, most: int) -> Element:
    """Elements and what stands between them; a negation only before an element that cannot be left out."""
    parts = draw(st.lists(elements(depth), min_size=1, max_size=most))
    text = parts[0].text
    for part in parts[1:]:
        text += draw(st.sampled_from(CONNECTORS + ([] if part.may_be_empty else NEGATIONS))) + part.text
    return Element(text, all(p.may_be_empty for p in parts))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(KINDS))
    complete = draw(st.sampled_from([True, False, False, False]))
    all_runs = draw(st.sampled_from([True, False, False]))
    within = draw(st.sampled_from([0, 0, 3, 6, 12, 20]))
    body = draw(sequences(1 if all_runs else 2, 3))
    text = body.text
    if body.may_be_empty and (all_runs or not complete):
        text = draw(st.sampled_from("AB")) + draw(st.sampled_from(CONNECTORS)) + text
    if draw(st.sampled_from([True, False, False, False])) and "|" not in text:
        middle = draw(st.sampled_from("BC"))
        text = f"{text} -> !N -> {middle}?" + draw(st.sampled_from([" -> ", " "])) + draw(st.sampled_from("ACD"))
    anchored = draw(st.sampled_from(["", "", "", "", "^", "$", "^$"]))
    may_be_empty = parse(text).nullable
    if within and "$" not in anchored and not may_be_empty and draw(st.sampled_from([True, False, False])):
        text = f"({text}) -> !N"
    endless = any(mark in text for mark in ("*", "+", ",}"))
    if "->>" in text and endless and kind == "none":
        within = within or 6  # runs would pile up without a limit
    if "$" in anchored and (kind == "none" and not complete):
        anchored = anchored.replace("$", "")
    text = ("^ " if "^" in anchored else "") + (f"({text})" if "|" in text and anchored else text)
    text += " $" if "$" in anchored else ""
    symbols = sorted(parse(text).bound)
    after = draw(st.sampled_from(["past last row", "past last row", "to next row", "to first", "to last", "none"]))
    return Case(
        pattern=text,
        kind=kind,
        size=0 if kind == "none" else draw(st.integers(1, 9)),
        slide=0 if kind in ("none", "opened") else draw(st.integers(1, 5)),
        open_when="letters LIKE '%o%'" if kind == "opened" else None,
        close_when="letters LIKE '%q%'" if kind == "opened" and draw(st.booleans()) else None,
        by_rows=kind == "opened" and draw(st.booleans()),
        within=within,
        within_steps=draw(st.sampled_from([0, 0, 0, 1, 2, 4])),
        after=f"{after} {draw(st.sampled_from(symbols))}" if after in ("to first", "to last") else after,
        all_runs=all_runs,
        # With `$` a run may expire and accept later, when the window closes.
        timed_out=draw(st.booleans()) and not (all_runs and "$" in anchored),
        complete=complete,
        define=draw(definitions(symbols)) if draw(st.sampled_from([True, False])) else {},
    )


@st.composite
def definitions(draw: st.DrawFn, symbols: list[str]) -> dict[str, str]:
    """Cross-event predicates for one or two symbols."""
    define = {}
    for symbol in draw(st.lists(st.sampled_from(symbols), min_size=1, max_size=2, unique=True)):
        others = [s for s in symbols if s != symbol]
        text = draw(st.sampled_from([t for t in CROSS_EVENT if others or "A." not in t]))
        other = draw(st.sampled_from(others)) if others else symbol
        text = text.replace("A.", "@.").replace("S.", f"{symbol}.").replace("@.", f"{other}.")
        define[symbol] = f"letters LIKE '%{symbol.lower()}%' AND ({text})"
    return define


@st.composite
def streams(draw: st.DrawFn, case: Case, max_events: int = 14) -> list[Event]:
    most = min(max_events, 9) if case.all_runs else max_events
    letters = st.sampled_from(["a", "b", "c", "a", "b", "ab", "ab", "bc", "ad", "abcd", "abcd", "n", "bcn", "acn", "-"])
    extra = st.sampled_from(["", "", "o", "o", "q", "oq"] if case.kind == "opened" else [""])
    values = st.sampled_from([None, 0, 1, 1, 2, 2, 3])
    keys = st.sampled_from(["x", "x", "y"])
    rows = draw(st.lists(st.tuples(letters, extra, keys, st.integers(0, 3), values), min_size=4, max_size=most))
    events, ts = [], 0
    for sn, (letter, mark, key, gap, v) in enumerate(rows, 1):
        ts += gap
        events.append(Event(sn, ts, key, letter + mark, v))
    return events


@st.composite
def plain_cases(draw: st.DrawFn) -> Case:
    """Sequences `A -> B -> C`, which have a kernel of their own."""
    kind: WindowKind = draw(st.sampled_from(["none", "count", "time"]))
    return Case(
        pattern=" -> ".join(draw(st.lists(st.sampled_from("ABC"), min_size=1, max_size=4))),
        kind=kind,
        size=0 if kind == "none" else draw(st.integers(1, 9)),
        slide=0 if kind == "none" else draw(st.integers(1, 7)),
        within=draw(st.sampled_from([0, 0, 1, 3, 6, 12])),
        after=draw(st.sampled_from(["past last row", "to next row"])),
    )


@st.composite
def problems(draw: st.DrawFn, max_events: int = 14, *, complete: bool = True, plain: bool = False) -> tuple[Case, list[Event]]:
    """A query and a stream for it; without `complete`, of a log that goes on."""
    case = draw(plain_cases() if plain else cases().filter(lambda case: complete or not case.complete))
    return case, draw(streams(case, max_events))


def examples(count: int) -> int:
    """How many random cases a property tries; `make soak` tries forty times as many."""
    return count * 40 if os.environ.get("REPRISE_SOAK") else count


def skip_refused(case: Case) -> None:
    """Random queries may ask for what is refused, such as a repetition under ->> without an end."""
    try:
        operator_of(case)
    except Refused:
        assume(False)
