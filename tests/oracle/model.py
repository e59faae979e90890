"""What LANGUAGE.md says, by exhaustive search over a step tree, with switches for each way in which Flink differs.

A difference between Flink and Reprise counts as explained only if this model gives Reprise's matches with all switches
off and exactly Flink's with all of them on. It shares no code with the engine.

A step is a dict: name, conn and inside ("strict", "next", "any": before it and between its repetitions), lo, hi (None:
no end), reluctant, greedy (Flink's flag), nots (negations in the gap before it), or group (a list of steps) for name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

QUIRKS = (
    "first completed wins",
    "no give-back",
    "options wait apart",
    "negation wins",
    "a negation ends all options",
    "a last negation needs a row",
    "skip to v spares the same start",
    "the end of input ends no run",
    "ties fall anyhow",
    "anchors are ignored",
)

Bound = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Option:
    """A way on for a waiting run; a name of None is accept."""

    name: str | None
    conn: str
    nots: frozenset[str]
    state: int
    guards: frozenset[str]  # greedy loops that this option leaves
    loop_nots: frozenset[str]  # negations written after the loop that this option stays in


ACCEPT = Option(None, "any", frozenset(), -1, frozenset(), frozenset())


def matches(case: dict[str, Any], quirks: frozenset[str] = frozenset(), chosen: frozenset[Bound] = frozenset()) -> list[Bound]:
    """Sorted. `chosen` are the runs that "ties fall anyhow" lets win over others which complete with the same row."""
    search = _Search(case, quirks, chosen)
    found = []
    for key in sorted({event["key"] for event in case["stream"]}):
        found.extend(search.of_key([event for event in case["stream"] if event["key"] == key]))
    return sorted(found)


class _Search:
    def __init__(self, case: dict[str, Any], quirks: frozenset[str], chosen: frozenset[Bound]) -> None:
        self.case, self.quirks = case, quirks
        self.chosen = chosen if "ties fall anyhow" in quirks else frozenset()
        self.anchors = "" if "anchors are ignored" in quirks else case.get("anchors", "")
        self.apart = "options wait apart" in quirks
        self.states: list[tuple[Any, ...]] = []
        last = self._state("accept")
        for name in reversed(case.get("end_nots", [])):
            last = self._state("not", name, last)
        self.first = self._steps(case["steps"], last, case.get("end_nots", []))

    def of_key(self, rows: list[dict[str, Any]]) -> list[Bound]:
        self.rows = [dict(row, next=after["letters"]) for row, after in zip(rows, [*rows[1:], {"letters": ""}], strict=True)]
        self.place = {row["sn"]: i for i, row in enumerate(rows)}
        if self.case["all_runs"] or "first completed wins" in self.quirks:
            return self._all_runs()
        found, start = [], 0
        while start < (1 if "^" in self.anchors else len(rows)):
            match = self._preferred(self._starts(), start, (), start)
            start = self._next_start(match, start) if match else start + 1
            if match:
                found.append(match)
        return found

    # The automaton: states in order of preference

    def _state(self, *what: Any) -> int:
        self.states.append(what)
        return len(self.states) - 1

    def _steps(self, steps: list[dict[str, Any]], after: int, nots_after: list[str]) -> int:
        for i in range(len(steps) - 1, -1, -1):
            after = self._step(steps[i], after, nots_after)
            nots_after = steps[i].get("nots", [])
        return after

    def _step(self, step: dict[str, Any], after: int, nots_after: list[str]) -> int:
        lo, hi = step.get("lo", 1), step.get("hi", 1)
        exit_ = self._state("leave", step["name"], after) if step.get("greedy") and lo != hi else after

        def once(first: bool, then: int) -> int:
            conn = step.get("conn", "strict") if first else step.get("inside", step.get("conn", "strict"))
            if "group" in step:
                inner = [dict(step["group"][0], conn=conn), *step["group"][1:]]
                return self._steps(inner, then, [])
            state = self._state("take", step["name"], conn, then)
            return state if first or not nots_after else self._state("stay", nots_after[0], state)

        def choice(stay: int, leave: int) -> int:
            return self._state("or", (leave, stay) if step.get("reluctant") else (stay, leave))

        if hi is None:
            again = self._state("or", ())
            stay = once(False, again)
            self.states[again] = ("or", (exit_, stay) if step.get("reluctant") else (stay, exit_))
        else:
            again = exit_
            for _ in range(hi - max(lo, 1)):
                again = choice(once(False, again), exit_)
        for _ in range(max(lo, 1) - 1):
            again = once(False, again)
        entry = once(True, again)
        if lo == 0:
            entry = choice(entry, exit_)
        for name in reversed(step.get("nots", [])):
            entry = self._state("not", name, entry)
        return entry

    def _starts(self) -> list[Option]:
        return [option for option in self._options(self.first) if option.name]

    def _options(self, state: int) -> list[Option]:
        found: list[Option] = []
        self._walk(state, frozenset(), ACCEPT, found)
        accepts = [i for i, option in enumerate(found) if option.name is None]
        if accepts and not self.case["all_runs"] and "first completed wins" not in self.quirks:
            return found[: accepts[0] + 1]
        return found

    def _walk(self, state: int, seen: frozenset[int], so_far: Option, found: list[Option]) -> None:
        if state in seen:
            return
        seen |= {state}
        match self.states[state]:
            case ("or", targets):
                for target in targets:
                    self._walk(target, seen, so_far, found)
            case ("not", name, then):
                self._walk(then, seen, replace(so_far, nots=so_far.nots | {name}), found)
            case ("leave", name, then):
                self._walk(then, seen, replace(so_far, guards=so_far.guards | {name}), found)
            case ("stay", name, then):
                self._walk(then, seen, replace(so_far, loop_nots=so_far.loop_nots | {name}), found)
            case ("take", name, conn, then):
                found.append(replace(so_far, name=name, conn=conn, state=then))
            case ("accept",):
                found.append(so_far)

    # One row

    def _fits(self, name: str, row: dict[str, Any], bound: Bound) -> bool:
        rows = [(symbol, self.rows[self.place[sn]]) for symbol, sn in bound]
        return _holds(self.case["conditions"].get(name), name, row, rows) is True

    def _takes(self, options: list[Option], row: dict[str, Any], bound: Bound) -> list[Option]:
        named = [option for option in options if option.name and not self._guarded(option, row, bound)]
        fitting = [option for option in named if self._fits(str(option.name), row, bound)]
        if "negation wins" in self.quirks and self._stopped(options, row, bound):
            fitting = [option for option in fitting if any(o.name is None and not o.nots for o in self._options(option.state))]
        return fitting

    def _guarded(self, option: Option, row: dict[str, Any], bound: Bound) -> bool:
        return "no give-back" in self.quirks and any(self._fits(loop, row, bound) for loop in option.guards)

    def _stopped(self, options: list[Option], row: dict[str, Any], bound: Bound) -> bool:
        """Whether the row fits a negation that stands before any option, or behind the loop that one stays in."""
        living = [option for option in options if not self._guarded(option, row, bound)]
        names = {name for option in living for name in option.nots} | {name for option in options for name in option.loop_nots}
        return any(self._fits(name, row, bound) for name in names)

    def _passing(self, options: list[Option], row: dict[str, Any], bound: Bound) -> list[Option]:
        if "a negation ends all options" in self.quirks and self._stopped(options, row, bound):
            return []
        fitting = [option.name is not None and self._fits(option.name, row, bound) for option in options]
        rest = []
        for option, fits in zip(options, fitting, strict=True):
            dies = (
                option.conn == "strict"
                or any(self._fits(name, row, bound) for name in option.nots)
                or (option.conn == "next" and (fits if self.apart else any(fitting)))
                or self._guarded(option, row, bound)
            )
            if not dies:
                rest.append(option)
        return rest

    def _expired(self, i: int, first: int) -> bool:
        within = self.case["within"]
        return i >= len(self.rows) or bool(within and self.rows[i]["ts"] - self.rows[first]["ts"] >= within)

    # Preferred: depth first, in order of preference

    def _preferred(self, options: list[Option], i: int, bound: Bound, first: int) -> Bound | None:
        if "$" in self.anchors and i < len(self.rows):
            options = [option for option in options if option.name]
        if options and options[0].name is None and not options[0].nots:
            return bound
        accepts = any(option.name is None for option in options)
        if self._expired(i, first):
            return bound if accepts else None
        if not any(option.name for option in options) and not any(option.nots for option in options):
            return bound if accepts else None
        row = self.rows[i]
        for option in self._takes(options, row, bound):
            match = self._preferred(self._options(option.state), i + 1, (*bound, (str(option.name), row["sn"])), first)
            if match:
                return match
        if not bound:
            return None
        return self._preferred(self._passing(options, row, bound), i + 1, bound, first)

    def _next_start(self, match: Bound, start: int) -> int:
        after = self.case["after_match"]
        if after == "past last row":
            return self.place[match[-1][1]] + 1
        target = self._target(match)
        return start + 1 if target is None or target == start else target

    def _target(self, match: Bound) -> int | None:
        after = self.case["after_match"]
        if not after.startswith(("to first ", "to last ")):
            return None
        rows = [self.place[sn] for name, sn in match if name == after.split()[-1]]
        return (rows[0] if after.startswith("to first ") else rows[-1]) if rows else None

    # All runs: every binding, then what the skip mode drops

    def _all_runs(self) -> list[Bound]:
        waiting = []
        self.alive: set[int] = set()  # starts of which a run still waits when the input ends
        for start in range(1 if "^" in self.anchors else len(self.rows)):
            ways: dict[Bound, float] = {}
            for done, bound in self._ways(self._starts(), start, (), start):
                if "$" not in self.anchors or bound[-1][1] == self.rows[-1]["sn"]:
                    ways.setdefault(bound, done)
            waiting += sorted((start, done, bound not in self.chosen, i, bound) for i, (bound, done) in enumerate(ways.items()))
        found = []
        while waiting:
            start, *_, bound = waiting.pop(0)
            if self._held_back(start):
                break
            found.append(bound)
            self.alive = {other for other in self.alive if not self._drops(bound, start, other)}
            waiting = [other for other in waiting if not self._drops(bound, start, other[0])]
        return found

    def _held_back(self, start: int) -> bool:
        for_ever = "the end of input ends no run" in self.quirks and not self.case["within"]
        return for_ever and self.case["after_match"] != "none" and any(other < start for other in self.alive)

    def _drops(self, match: Bound, start: int, other: int) -> bool:
        after = self.case["after_match"]
        if after == "none":
            return False
        if after == "to next row":
            return other == start
        if after == "past last row":
            return other <= self.place[match[-1][1]]
        target = self._target(match)
        if "skip to v spares the same start" in self.quirks:
            return target is not None and other < target
        return other == start or (target is not None and other < target)

    def _ways(self, options: list[Option], i: int, bound: Bound, first: int) -> Iterator[tuple[float, Bound]]:
        """(when complete, rows) of every way on. A trailing negation completes when time is up."""
        if self._expired(i, first):
            if any(option.name for option in options) and bound:
                self.alive.add(first)
            pending = [option for option in options if option.name is None and option.nots]
            if pending and not ("a last negation needs a row" in self.quirks and len(options) > 1):
                yield float("inf"), bound
            return
        row = self.rows[i]
        for option in self._takes(options, row, bound):
            taken = (*bound, (str(option.name), row["sn"]))
            after = self._options(option.state)
            if any(o.name is None and not o.nots for o in after):
                yield i, taken
            yield from self._ways([o for o in after if o.name or o.nots], i + 1, taken, first)
        if bound:
            rest = self._passing(options, row, bound)
            for part in [[option] for option in rest] if self.apart else [rest]:
                if part:
                    yield from self._ways(part, i + 1, bound, first)


# Conditions: trees of lists, with SQL's three-valued logic


def _holds(tree: list[Any] | None, symbol: str, row: dict[str, Any], bound: list[tuple[str, dict[str, Any]]]) -> bool | None:
    if tree is None:
        return True

    def values(name: str) -> list[float]:
        rows = [r for s, r in bound if s == name] + ([row] if name == symbol else [])
        return [r["v"] for r in rows]

    match tree:
        case ["letter", letter]:
            return letter in row["letters"]
        case ["v", op, limit]:
            return _compare(row["v"], op, limit)
        case ["next is not", letter]:
            return letter not in row["next"]
        case ["rises"]:
            own = values(symbol)
            return len(own) < 2 or _compare(own[-1], ">", own[-2])
        case ["last", op, name]:
            seen = values(name)
            return _compare(row["v"], op, seen[-1]) if seen else None
        case ["first", op, name]:
            seen = values(name)
            return _compare(row["v"], op, seen[0]) if seen else None
        case ["sum", name, op, limit]:
            seen = values(name)
            return _compare(sum(seen), op, limit) if seen else None
        case ["avg", name, op, limit]:
            seen = values(name)
            return _compare(sum(seen) / len(seen), op, limit) if seen else None
        case ["min" | "max" as function, name, op, limit]:
            seen = values(name)
            return _compare((min if function == "min" else max)(seen), op, limit) if seen else None
        case ["count", name, op, limit]:
            return _compare(len(values(name)), op, limit)
        case ["and", *parts]:
            answers = [_holds(part, symbol, row, bound) for part in parts]
            return False if False in answers else None if None in answers else True
    raise ValueError(tree)


def _compare(left: float, op: str, right: float) -> bool:
    return {">": left > right, "<": left < right, "=": left == right}[op]
