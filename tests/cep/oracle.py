"""A brute-force oracle for the whole language, straight from docs/LANGUAGE.md, that shares no code with the engine.

It parses the pattern itself, tries every way of preference by recursion, and finds what decides a match by asking the
same question again at every instant of the log: "what if this were all we knew?" Clear rather than fast.

    complex_events(case, events)   the numbered complex events, (x, y, ordinal, sns, symbols, timed_out)
    matches(case, events)          the same with all that is known about each: producer, bindings, start
    measured / all_rows            ONE ROW and ALL ROWS PER MATCH
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.cep.oracle_sql import Scope, expression

WindowKind = Literal["none", "count", "time", "keyed", "opened"]


@dataclass(frozen=True)
class Event:
    """`ts` is stream time, so it never goes back along the log; `letters` are the symbols the event fits, in lower case."""

    sn: int
    ts: int
    key: str
    letters: str
    v: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Case:
    """A query. A symbol X without a `define` fits the events whose letters contain x."""

    pattern: str
    kind: WindowKind = "none"
    size: int = 0
    slide: int = 0
    open_when: str | None = None
    close_when: str | None = None
    by_rows: bool = False
    within: int = 0
    within_steps: int = 0
    after: str = "past last row"
    all_runs: bool = False
    timed_out: bool = False
    complete: bool = False
    define: Mapping[str, str] = field(default_factory=dict)
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def definition(case: Case, symbol: str) -> str:
    """The SQL text of a symbol's predicate, also where it is only implied."""
    return case.define.get(symbol, f"letters LIKE '%{symbol.lower()}%'")


# An instant: (stream time, rank, SN). A deadline (rank 0) comes before all rows (rank 1) at its time; the end of a
# complete input (rank 2) comes right after its last row, so that no later deadline passes.
Instant = tuple[int, int, int]
Binding = tuple[tuple[str, Event], ...]


@dataclass(frozen=True)
class Match:
    producer: Instant
    y: int
    start: Event  # its first row; for an empty match the row it was found at
    preference: int
    bound: Binding
    timed_out: bool


def complex_events(case: Case, events: list[Event]) -> list[tuple[int, int, int, tuple[int, ...], tuple[str, ...], bool]]:
    found = matches(case, events)
    producers = sorted({m.producer for m in found})
    return [
        (
            producers.index(m.producer) + 1,
            m.y,
            ordinal,
            tuple(e.sn for _, e in m.bound),
            tuple(s for s, _ in m.bound),
            m.timed_out,
        )
        for ordinal, m in enumerate(found, 1)
    ]


class OutOfPatience(Exception):  # nothing is wrong
    """Trying every way would take longer than anybody waits: nested repetitions have exponentially many."""


def matches(case: Case, events: list[Event], until: int | None = None, patience: int | None = None) -> list[Match]:
    """All of them, in the order of their numbers; `until` says that time has passed up to there, without further events.

    `patience` is how many looks at a row against a symbol it may take.
    """
    pattern = parse(case.pattern)
    looks = itertools.count() if patience is None else iter(range(patience))
    found = []
    for unit in units(case, events):
        search = Search(case, pattern, unit, events, looks, until)
        found += search.all_runs() if case.all_runs else search.preferred()
    return sorted(found, key=lambda m: (m.producer, m.y, m.start.sn, m.preference))


# ---------------------------------------------------------------------------------------------- ONE and ALL ROWS PER MATCH


def measured(case: Case, events: list[Event], measures: Mapping[str, str]) -> list[dict[str, Any]]:
    """ONE ROW PER MATCH: the measures of each match, in the order of their numbers."""
    numbers = match_numbers(case, events)
    return [_values(case, events, m, m.bound, numbers[m], measures) for m in matches(case, events)]


def all_rows(case: Case, events: list[Event], measures: Mapping[str, str], mode: str = "show") -> list[dict[str, Any]]:
    """ALL ROWS PER MATCH, by key and match number: the row's SN and its measures. `mode`: show, omit or unmatched.

    Unmatched rows stand where their SN puts them, before a match that begins later.
    """
    numbers = match_numbers(case, events)
    excluded = parse(case.pattern).excluded
    rows: list[tuple[str, int, int, dict[str, Any]]] = []
    contained: set[int] = set()
    for m in matches(case, events):
        for i, (symbol, event) in enumerate(m.bound, 1):
            contained.add(event.sn)
            if symbol not in excluded:
                values = _values(case, events, m, m.bound[:i], numbers[m], measures)
                rows.append((event.key, m.start.sn, numbers[m], {"sn": event.sn, **values}))
        if not m.bound:
            contained.add(m.start.sn)
            if mode != "omit":
                values = _values(case, events, m, (), numbers[m], measures)
                rows.append((m.start.key, m.start.sn, numbers[m], {"sn": m.start.sn, **values}))
    if mode == "unmatched":
        nothing = dict.fromkeys(measures)
        rows += [(e.key, e.sn, 0, {"sn": e.sn, **nothing}) for e in events if e.sn not in contained]
    return [row for *_, row in sorted(rows, key=lambda r: r[:3])]


def match_numbers(case: Case, events: list[Event]) -> dict[Match, int]:
    """1, 2, .. per key, by start as SQL counts them."""
    numbers: dict[Match, int] = {}
    for m in sorted(matches(case, events), key=lambda m: (m.start.sn, m.y, m.preference)):
        numbers[m] = 1 + sum(other.start.key == m.start.key for other in numbers)
    return numbers


def _values(
    case: Case, events: list[Event], m: Match, running: Binding, number: int, measures: Mapping[str, str]
) -> dict[str, Any]:
    key_rows = [e for e in events if e.key == m.start.key]
    scope = Scope(running, m.bound, running[-1] if running else None, key_rows, case.subsets, number)
    return {name: expression(text)(scope) for name, text in measures.items()}


# ------------------------------------------------------------------------------------------------------ the rows one sees


@dataclass(frozen=True)
class Unit:
    """The rows of one key in one window, and when the window closes (None: not yet)."""

    y: int
    rows: tuple[Event, ...]
    close: Instant | None


def units(case: Case, events: list[Event]) -> Iterator[Unit]:
    end = (events[-1].ts, 2, 0) if case.complete and events else None
    for y, members, close in windows(case, events):
        closes = min((c for c in (close, end) if c is not None), default=None)
        for key in sorted({e.key for e in members}):
            yield Unit(y, tuple(e for e in members if e.key == key), closes)


def windows(case: Case, events: list[Event]) -> Iterator[tuple[int, list[Event], Instant | None]]:
    """Every window that has rows: its number, its rows, and what closes it (None: nothing in this log)."""
    if case.kind == "none":
        yield 1, events, None
    elif case.kind == "count":
        for y in range(1, len(events) // case.slide + 2):
            first = (y - 1) * case.slide
            members = [e for e in events if first <= e.sn - 1 < first + case.size]
            yield y, members, (at_row(members[-1]) if len(members) == case.size else None)
    elif case.kind == "time":
        latest = max((e.ts for e in events), default=0)
        for y in range(-case.size // case.slide - 1, latest // case.slide + 2):
            opens = (y - 1) * case.slide
            yield y, [e for e in events if opens <= e.ts < opens + case.size], (opens + case.size, 0, 0)
    elif case.kind == "keyed":
        for rows in by_key(events):
            for first in range(0, len(rows), case.slide):
                members = rows[first : first + case.size]
                yield members[0].sn, members, (at_row(members[-1]) if len(members) == case.size else None)
    elif case.kind == "opened":
        for rows in by_key(events):
            for i, opening in enumerate(rows):
                if holds(case.open_when, opening):
                    yield opening.sn, *opened(case, opening, rows[i + 1 :])


def opened(case: Case, opening: Event, later: list[Event]) -> tuple[list[Event], Instant | None]:
    deadline = None if case.by_rows else (opening.ts + case.size, 0, 0)
    members = [opening]
    for event in [None, *later]:
        if event is not None:
            if deadline is not None and at_row(event) > deadline:
                break
            members.append(event)
            if holds(case.close_when, event):
                return members, at_row(event)
        if case.by_rows and len(members) == case.size:
            return members, at_row(members[-1])
    return members, deadline


def by_key(events: list[Event]) -> list[list[Event]]:
    return [[e for e in events if e.key == key] for key in sorted({e.key for e in events})]


def holds(text: str | None, event: Event) -> bool:
    return text is not None and expression(text)(Scope((), (), ("", event), [event])) is True


def at_row(event: Event) -> Instant:
    return (event.ts, 1, event.sn)


# -------------------------------------------------------------------------------------------------------------- the search


@dataclass(frozen=True)
class Leaf:
    """How one way through the pattern ends: a match, still waiting, or expired (WITHIN) before it accepted."""

    kind: Literal["match", "waiting", "expired"]
    bound: Binding
    instant: Instant | None = None


@dataclass(frozen=True)
class Search:
    """One pattern over the rows of one key and window."""

    case: Case
    pattern: Pattern
    unit: Unit
    events: list[Event]
    looks: Iterator[int]  # that it may still take
    until: int | None = None

    # Preferred: each start has an outcome, once it is decided.

    def preferred(self) -> list[Match]:
        found: dict[int, Match] = {}
        for now in self.instants():
            for start, leaf in self.known_at(now).items():
                if start not in found:
                    match = Match(now, self.unit.y, self.unit.rows[start], 0, leaf.bound, leaf.kind == "expired")
                    found[start] = match
        return list(found.values())

    def instants(self) -> list[Instant]:
        """Everything that may decide something here, as far as the log goes."""
        limits = [limit for limit in (self.case.within, self.case.within_steps) if limit]
        deadlines = {(row.ts + limit, 0, 0) for row in self.unit.rows for limit in limits}
        closing = {self.unit.close} if self.unit.close else set()
        return sorted(i for i in deadlines | closing | {at_row(row) for row in self.unit.rows} if i <= self.last_instant())

    def last_instant(self) -> Instant:
        last = self.events[-1]
        passed = at_row(last) if self.until is None else max(at_row(last), (self.until, 1, last.sn))
        return (last.ts, 2, 0) if self.case.complete else passed

    def known_at(self, now: Instant) -> dict[int, Leaf]:
        """What stands by `now`: per start a match or a timed-out partial match."""
        found: dict[int, Leaf] = {}
        start = 0
        while start < len(self.unit.rows) and at_row(self.unit.rows[start]) <= now:
            outcome = self.outcome(start, now)
            following = start + 1
            if outcome is not None and outcome.kind == "waiting":
                if self.case.after not in ("to next row", "none"):
                    break  # An earlier start that may still match comes first.
            elif outcome is not None and outcome.kind == "expired":
                if self.case.timed_out:
                    found[start] = outcome
            elif outcome is not None:
                if outcome.bound or self.case.complete:
                    found[start] = outcome
                following = max(start + 1, self.next_start(outcome.bound))
            start = following
        return found

    def outcome(self, start: int, now: Instant) -> Leaf | None:
        expired = None
        for leaf in self.leaves(start, now):
            if leaf.kind != "expired":
                return leaf
            expired = expired or leaf
        return expired

    def next_start(self, bound: Binding) -> int:
        """Where matching goes on, as the number of a row; at most the first row of the match if its place is not there."""
        if not bound:
            return 0
        if self.case.after == "past last row":
            return self.unit.rows.index(bound[-1][1]) + 1
        if self.case.after.startswith("to first ") or self.case.after.startswith("to last "):
            _, which, symbol = self.case.after.split()
            members = self.case.subsets.get(symbol, (symbol,))
            rows = [self.unit.rows.index(e) for s, e in bound if s in members]
            if rows:
                return rows[0] if which == "first" else rows[-1]
        return 0

    # All runs: every leaf counts, and a match drops what AFTER MATCH SKIP says.

    def all_runs(self) -> list[Match]:
        now = self.last_instant()
        candidates = []
        for start, first in enumerate(self.unit.rows):
            for preference, leaf in enumerate(self.leaves(start, now)):
                if leaf.instant is not None and (leaf.kind == "match" or self.case.timed_out) and leaf.instant <= now:
                    timed_out = leaf.kind == "expired"
                    candidates.append(Match(leaf.instant, self.unit.y, first, preference, leaf.bound, timed_out))
        candidates.sort(key=lambda m: (m.producer, m.start.sn, m.preference))
        found: list[Match] = []
        dropped: set[int] = set()
        for m in candidates:
            start = self.unit.rows.index(m.start)
            same = [f for f in found if (f.bound, f.timed_out) == (m.bound, m.timed_out)]
            if start in dropped or same or not (m.bound or self.case.complete):
                continue
            found.append(m)
            if not m.timed_out and self.case.after != "none":
                dropped.add(start)
                if self.case.after != "to next row":
                    dropped |= set(range(self.next_start(m.bound)))
                    dropped |= set(range(start))
        return found

    # The runs of one start, in order of preference, as far as is known `now`.

    def leaves(self, start: int, now: Instant) -> Iterator[Leaf]:
        row = self.unit.rows[start]
        if self.pattern.at_first_row and start > 0:
            return
        options = self.existing(self.pattern.options())
        for option in options:
            if isinstance(option, Accept):
                if not option.negations and not self.pattern.at_last_row:
                    yield Leaf("match", (), at_row(row))
                if not self.case.all_runs and not self.pattern.at_last_row:
                    return
            elif self.fits(option.symbol, (), row):
                yield from self.enter(((option.symbol, row),), option.then(), start + 1, now)

    def existing(self, options: list[Option | Accept]) -> list[Option | Accept]:
        """Options after accept do not exist; with `$` accept excludes all rows and so hides nothing."""
        if self.case.all_runs or self.pattern.at_last_row:
            return options
        accepts = [i for i, option in enumerate(options) if isinstance(option, Accept)]
        return options[: accepts[0] + 1] if accepts else options

    def enter(self, bound: Binding, options: list[Option | Accept], following: int, now: Instant) -> Iterator[Leaf]:
        """A run that has just taken the last row of `bound`."""
        options = self.existing(options)
        if not self.case.all_runs:
            yield from self.wait(bound, options, following, now)
            return
        sure = [o for o in options if isinstance(o, Accept) and not o.negations and not self.pattern.at_last_row]
        if sure:
            yield Leaf("match", bound, at_row(bound[-1][1]))
            options = [o for o in options if o not in sure]
        later = list(self.wait(bound, options, following, now, accepted=bool(sure)))
        if options and isinstance(options[0], Accept):
            later.sort(key=lambda leaf: not (leaf.bound == bound and leaf.kind == "match"))
        yield from later

    def wait(
        self,
        bound: Binding,
        options: list[Option | Accept],
        following: int,
        now: Instant,
        accepted: bool = False,
        expired: bool = False,
    ) -> Iterator[Leaf]:
        """A waiting run: what is the first thing to happen to it, its next row, its deadline, or the close of the window?"""
        if not options:
            return
        accepts = [o for o in options if isinstance(o, Accept)]
        if isinstance(options[0], Accept) and not options[0].negations and not self.pattern.at_last_row and not expired:
            yield Leaf("match", bound)
            return
        row = self.unit.rows[following] if following < len(self.unit.rows) else None
        deadline = None if expired else self.deadline(bound)
        happening: list[tuple[Instant, int, str]] = []
        if row is not None:
            happening.append((at_row(row), 0, "row"))
        if deadline is not None:
            happening.append((deadline, 0, "expired"))
        if self.unit.close is not None:
            happening.append((self.unit.close, 1, "closed"))
        instant, _, what = min(happening, default=((0, 0, 0), 0, "nothing"))
        if not happening or instant > now:
            yield Leaf("waiting", bound)
        elif what == "closed":
            if accepts:
                yield Leaf("match", bound, instant)
        elif what == "expired":
            if self.pattern.at_last_row:
                if len(accepts) < len(options) and not accepted:
                    yield Leaf("expired", bound, instant)
                yield from self.wait(bound, list(accepts), following, now, accepted, expired=True)
            elif accepts:
                yield Leaf("match", bound, instant)
            elif not accepted:
                yield Leaf("expired", bound, instant)
        elif row is not None:
            fitting = [o for o in options if isinstance(o, Option) and self.fits(o.symbol, bound, row)]
            for option in fitting:
                yield from self.enter((*bound, (option.symbol, row)), option.then(), following + 1, now)
            left = [o for o in options if self.passes_over(o, bool(fitting), bound, row)]
            yield from self.wait(bound, left, following + 1, now, accepted, expired)

    def passes_over(self, option: Option | Accept, taken: bool, bound: Binding, row: Event) -> bool:
        """Does the option live on if the run passes over the row?"""
        if any(self.fits(negation, bound, row) for negation in option.negations):
            return False
        if isinstance(option, Accept):
            return not self.pattern.at_last_row
        return option.connector == "any" or (option.connector == "next" and not taken)

    def deadline(self, bound: Binding) -> Instant | None:
        deadlines = []
        if self.case.within:
            deadlines.append(bound[0][1].ts + self.case.within)
        if self.case.within_steps:
            deadlines.append(bound[-1][1].ts + self.case.within_steps)
        if self.case.complete:  # a complete input ends, for each key, with its last row
            end = max(e.ts for e in self.events if e.key == bound[0][1].key)
            deadlines = [deadline for deadline in deadlines if deadline <= end]
        return (min(deadlines), 0, 0) if deadlines else None

    def fits(self, symbol: str, bound: Binding, row: Event) -> bool:
        """The candidate counts as bound to the symbol being defined; unknown does not fit."""
        if next(self.looks, None) is None:
            raise OutOfPatience(self.case.pattern)
        rows = (*bound, (symbol, row))
        key_rows = [e for e in self.events if e.key == row.key]
        scope = Scope(rows, rows, (symbol, row), key_rows, self.case.subsets)
        return expression(definition(self.case, symbol))(scope) is True


# ------------------------------------------------------------------------------------------------------------- the pattern


@dataclass(frozen=True)
class Gap:
    """Where a way through the pattern stands: the negations passed since the last symbol, the number of symbols taken."""

    negations: tuple[str, ...] = ()
    taken: int = 0

    def with_negations(self, negations: Sequence[str]) -> Gap:
        return Gap((*self.negations, *negations), self.taken)


@dataclass(frozen=True)
class Option:
    symbol: str
    connector: str  # strict, next, any
    negations: tuple[str, ...]
    then: Callable[[], list[Option | Accept]]


@dataclass(frozen=True)
class Accept:
    negations: tuple[str, ...] = ()


Then = Callable[[Gap], list["Option | Accept"]]


@dataclass(frozen=True)
class Pattern:
    root: Node
    at_first_row: bool
    at_last_row: bool
    symbols: tuple[str, ...]
    bound: tuple[str, ...]  # those that are not only negated
    excluded: frozenset[str]  # symbols that stand only inside {- -}

    def options(self) -> list[Option | Accept]:
        return self.root.options("strict", Gap(), lambda gap: [Accept(gap.negations)])

    @property
    def nullable(self) -> bool:
        return any(isinstance(o, Accept) for o in self.options())


@dataclass(frozen=True)
class Symbol:
    name: str

    def options(self, connector: str, gap: Gap, then: Then) -> list[Option | Accept]:
        return [Option(self.name, connector, gap.negations, lambda: then(Gap((), gap.taken + 1)))]


@dataclass(frozen=True)
class Step:
    connector: str
    negations: tuple[str, ...]
    node: Node


@dataclass(frozen=True)
class Steps:
    steps: tuple[Step, ...]
    trailing: tuple[str, ...] = ()

    def options(self, connector: str, gap: Gap, then: Then) -> list[Option | Accept]:
        def at(i: int, gap: Gap) -> list[Option | Accept]:
            if i == len(self.steps):
                return then(gap.with_negations(self.trailing))
            step = self.steps[i]
            reached = connector if i == 0 else step.connector
            return step.node.options(reached, gap.with_negations(step.negations), lambda g: at(i + 1, g))

        return at(0, gap)


@dataclass(frozen=True)
class Choice:
    nodes: tuple[Node, ...]

    def options(self, connector: str, gap: Gap, then: Then) -> list[Option | Accept]:
        return [option for node in self.nodes for option in node.options(connector, gap, then)]


@dataclass(frozen=True)
class Permute:
    nodes: tuple[Node, ...]

    def options(self, connector: str, gap: Gap, then: Then) -> list[Option | Accept]:
        orders = itertools.permutations(self.nodes)
        choice = Choice(tuple(Steps(tuple(Step(connector, (), node) for node in order)) for order in orders))
        return choice.options(connector, gap, then)


@dataclass(frozen=True)
class Repeat:
    node: Node
    least: int
    most: int | None
    greedy: bool

    def options(self, connector: str, gap: Gap, then: Then) -> list[Option | Accept]:
        def after(count: int, gap: Gap) -> list[Option | Accept]:
            def again(g: Gap) -> list[Option | Accept]:
                # A repetition that takes nothing only counts towards the least number.
                return [] if g.taken == gap.taken and count >= self.least else after(count + 1, g)

            more = self.node.options(connector, gap, again) if self.most is None or count < self.most else []
            stop = then(gap) if count >= self.least else []
            return more + stop if self.greedy else stop + more

        return after(0, gap)


Node = Symbol | Steps | Choice | Permute | Repeat

TOKEN = re.compile(r"->>|->|\{-|-\}|\{[\d\s,]*\}|[A-Za-z_]\w*|[()|,!^$?*+]")
TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(text: str) -> Pattern:
    if re.sub(r"\s", "", text) != "".join(re.sub(r"\s", "", t) for t in TOKEN.findall(text)):
        raise ValueError(f"cannot read all of {text!r}")
    return _Parser(TOKEN.findall(text)).pattern()


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, "end"]
        self.symbols: list[str] = []
        self.bound: list[str] = []
        self.shown: set[str] = set()
        self.depth = 0  # of {- -}

    def pattern(self) -> Pattern:
        at_first_row = self.next_is("^")
        root = self.choice()
        at_last_row = self.next_is("$")
        if self.tokens != ["end"]:
            raise ValueError(f"{self.tokens[:-1]} is left over")
        symbols = tuple(dict.fromkeys(self.symbols))
        bound = tuple(dict.fromkeys(self.bound))
        return Pattern(root, at_first_row, at_last_row, symbols, bound, frozenset(set(bound) - self.shown))

    def next_is(self, token: str) -> bool:
        if self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.next_is(token):
            raise ValueError(f"{token} expected before {self.tokens}")

    def choice(self) -> Node:
        nodes = [self.steps()]
        while self.next_is("|"):
            nodes.append(self.steps())
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def steps(self) -> Node:
        steps: list[Step] = []
        connector, negations = "strict", []
        while self.tokens[0] not in ("end", ")", "|", ",", "-}", "$"):
            if self.next_is("->"):
                connector = "next"
            elif self.next_is("->>"):
                connector = "any"
            elif self.next_is("!"):
                negations.append(self.symbol())
            else:
                steps.append(Step(connector, tuple(negations), self.repeated()))
                connector, negations = "strict", []
        return Steps(tuple(steps), tuple(negations))

    def symbol(self) -> str:
        name = self.tokens.pop(0)
        self.symbols.append(name)
        return name

    def repeated(self) -> Node:
        node = self.primary()
        least, most = 1, None
        if self.tokens[0] in TIMES:
            least, most = TIMES[self.tokens.pop(0)]
        elif re.fullmatch(r"\{[\d\s,]*\}", self.tokens[0]):
            low, comma, high = self.tokens.pop(0)[1:-1].replace(" ", "").partition(",")
            least = int(low or 0)
            most = (int(high) if high else None) if comma else least
        else:
            return node
        return Repeat(node, least, most, greedy=not self.next_is("?"))

    def primary(self) -> Node:
        if self.next_is("("):
            node = self.choice()
            self.expect(")")
            return node
        if self.next_is("{-"):
            self.depth += 1
            node = self.choice()
            self.depth -= 1
            self.expect("-}")
            return node
        if self.tokens[0].upper() == "PERMUTE" and self.tokens[1] == "(":
            del self.tokens[:2]
            nodes = [self.choice()]
            while self.next_is(","):
                nodes.append(self.choice())
            self.expect(")")
            return Permute(tuple(nodes))
        name = self.symbol()
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"a symbol expected, not {name!r}")
        self.bound.append(name)
        if not self.depth:
            self.shown.add(name)
        return Symbol(name)
