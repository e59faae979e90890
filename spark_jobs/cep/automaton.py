"""From the pattern's tree to the tables of an ordered automaton (docs/LANGUAGE.md, "A waiting run").

Every occurrence of a symbol is a state: "this row was taken last". State 0 is the start. A state has options in order of
preference: the occurrences that may be taken next, each with its connector and its negations, and possibly *accept*.
The tree becomes a small program (take, split, connect, forbid, begin, end, jump, accept) as in Thompson's construction; a
state's options are what can be reached from it without taking a row, in the order of the splits. A connector met on the way
replaces the one before it, negations add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from spark_jobs.cep.pattern import (
    MAX_STEPS,
    Alternatives,
    Connector,
    Excluded,
    Node,
    Pattern,
    Permute,
    Repeat,
    Sequence,
    Symbol,
)
from spark_jobs.errors import ExpressionError

# A run marks its living options in a 64-bit word.
MAX_OPTIONS = 62
# Far above what a readable pattern needs; the start of the tables' growth with PERMUTE and nested counts.
MAX_PERMUTED = 5
NO_ACCEPT = -1


@dataclass(frozen=True)
class Option:
    """What a run may take next: the occurrence `state`, reached by `connector`, with no `negated` symbol in the gap."""

    state: int
    connector: Connector
    negated: frozenset[str]


@dataclass(frozen=True)
class State:
    """An occurrence of a symbol that was just taken (or the start), and what can follow in order of preference."""

    symbol: str | None
    excluded: bool
    options: tuple[Option, ...]
    accept: int  # its place among the options; NO_ACCEPT where the pattern may not end here


class Tables(NamedTuple):
    """The automaton as arrays for the kernel. The options of state s are `first[s] .. first[s + 1]`."""

    first: Any
    target: Any
    symbol: Any  # of the target, index into Pattern.symbols
    connector: Any
    negated: Any  # uint64, a bit per symbol
    accept: Any
    excluded: Any  # bool per state
    never_after: Any  # one uint64: the symbols negated at the end


@dataclass(frozen=True)
class Automaton:
    pattern: Pattern
    states: tuple[State, ...]

    @property
    def nullable(self) -> bool:
        """Does the pattern fit no row at all?"""
        return self.states[0].accept != NO_ACCEPT

    @property
    def strict(self) -> bool:
        """Must a run see every row, also one that fits no symbol?"""
        later = (option for state in self.states[1:] for option in state.options)
        return any(option.connector is Connector.STRICT for option in later) or self.pattern.at_end

    @property
    def endless(self) -> list[str]:
        """Symbols for which a complete match may wait without an end: greedy repetitions that a later row can lengthen."""
        waits = set()
        for state in self.states[1:]:
            before = state.options[: state.accept] if state.accept != NO_ACCEPT else ()
            waits |= {self.states[o.state].symbol for o in before if o.connector is not Connector.STRICT}
        return sorted(symbol for symbol in waits if symbol)

    def tables(self) -> Tables:
        index = {symbol: k for k, symbol in enumerate(self.pattern.symbols)}
        options = [option for state in self.states for option in state.options]
        return Tables(
            first=np.cumsum([0, *(len(state.options) for state in self.states)]).astype(np.int64),
            target=np.array([option.state for option in options], np.int64),
            symbol=np.array([index[self.states[option.state].symbol or ""] for option in options], np.int64),
            connector=np.array([option.connector for option in options], np.int64),
            negated=np.array([_bits(option.negated, index) for option in options], np.uint64),
            accept=np.array([state.accept for state in self.states], np.int64),
            excluded=np.array([state.excluded for state in self.states], np.bool_),
            never_after=np.array([_bits(frozenset(self.pattern.never_after), index)], np.uint64),
        )


def _bits(symbols: frozenset[str], index: dict[str, int]) -> int:
    return sum(1 << index[symbol] for symbol in symbols)


def compile_pattern(pattern: Pattern) -> Automaton:
    """The automaton of a pattern; refuses what would not fit the kernel's words, in the words of the pattern."""
    program = _Program()
    program.add(pattern.root, Connector.STRICT)
    program.put("accept")
    takes = [pc for pc, (what, _) in enumerate(program.code) if what == "take"]
    state_of = {pc: number for number, pc in enumerate(takes, 1)}
    states = [_state(program, state_of, 0, None, False)]
    for pc in takes:
        symbol, excluded = program.code[pc][1]
        states.append(_state(program, state_of, pc + 1, symbol, excluded))
    return Automaton(pattern, tuple(states))


def _state(program: _Program, state_of: dict[int, int], begin: int, symbol: str | None, excluded: bool) -> State:
    options: list[Option] = []
    accept = NO_ACCEPT
    for pc, connector, negated in program.reachable(begin):
        if pc in state_of:
            option = Option(state_of[pc], connector, negated)
            if option not in options:  # the same by another way: the preferred one counts
                options.append(option)
        elif accept == NO_ACCEPT:
            accept = len(options)
    if len(options) > MAX_OPTIONS:
        where = f"after '{symbol}'" if symbol else "at the start"
        raise ExpressionError(f"{len(options)} steps are possible {where}; {MAX_OPTIONS} can be told apart", 1)
    return State(symbol, excluded, tuple(options), accept)


class _Program:
    """Thompson's construction: instructions that take a row, and those that only lead on."""

    def __init__(self) -> None:
        self.code: list[tuple[str, Any]] = []
        self.excluded = 0
        self.steps = 0

    def put(self, what: str, argument: Any = None) -> int:
        self.code.append((what, argument))
        return len(self.code) - 1

    def add(self, node: Node, connector: Connector) -> None:
        """Add the code of a node that is reached by `connector`; repetitions and permutations use it again."""
        match node:
            case Symbol(name):
                self.steps += 1
                if self.steps > MAX_STEPS:
                    raise ExpressionError(f"with its repetitions the pattern has more than {MAX_STEPS:,} steps", 1)
                self.put("take", (name, self.excluded > 0))
            case Sequence(items):
                for place, item in enumerate(items):
                    reached = connector if place == 0 else (item.connector or Connector.STRICT)
                    if place:
                        self.put("connect", reached)
                    for symbol in item.negated:
                        self.put("forbid", symbol)
                    self.add(item.node, reached)
            case Alternatives(options):
                self._alternatives([(option,) for option in options], connector)
            case Permute(items):
                if len(items) > MAX_PERMUTED:
                    raise ExpressionError(f"PERMUTE of {len(items)} elements; {MAX_PERMUTED} are possible", 1)
                self._alternatives(list(permutations(items)), connector)
            case Repeat():
                self._repeat(node, connector)
            case Excluded(below):
                self.excluded += 1
                self.add(below, connector)
                self.excluded -= 1

    def _alternatives(self, chains: list[tuple[Node, ...]], connector: Connector) -> None:
        ends = []
        for chain in chains[:-1]:
            split = self.put("split")
            self._chain(chain, connector)
            ends.append(self.put("jump"))
            self.code[split] = ("split", (split + 1, len(self.code)))
        self._chain(chains[-1], connector)
        for end in ends:
            self.code[end] = ("jump", len(self.code))

    def _chain(self, nodes: tuple[Node, ...], connector: Connector) -> None:
        for place, node in enumerate(nodes):
            if place:
                self.put("connect", connector)
            self.add(node, connector)

    def _repeat(self, node: Repeat, connector: Connector) -> None:
        """Iterations beyond those needed at least stand between `begin` and `end`: they must take a row."""
        if node.high is None:
            return self._endless(node, connector)
        self._chain((node.node,) * node.low, connector)
        exits = []
        for place in range(node.low, node.high):
            exits.append(self.put("split"))
            if place:
                self.put("connect", connector)
            begin = self.put("begin")
            self.add(node.node, connector)
            self.put("end", begin)
        for split in exits:
            self._leave(split, node.greedy)

    def _endless(self, node: Repeat, connector: Connector) -> None:
        """As many copies as are needed at least; the last one is the one that repeats."""
        exits = [self.put("split")] if node.low == 0 else []
        self._chain((node.node,) * (node.low - 1), connector)
        if node.low > 1:
            self.put("connect", connector)
        first = self.put("begin") if node.low == 0 else None
        last = len(self.code)
        self.add(node.node, connector)
        end = self.put("end")
        exits.append(self.put("split"))
        self.put("connect", connector)
        again = self.put("begin")
        self.put("jump", last)
        self.code[end] = ("end", again)
        if first is not None:
            self.code[first] = ("begin", again)
        for split in exits:
            self._leave(split, node.greedy)

    def _leave(self, split: int, greedy: bool) -> None:
        """A split between going on right behind it and leaving to where the code now ends."""
        on, out = split + 1, len(self.code)
        self.code[split] = ("split", (on, out) if greedy else (out, on))

    def reachable(self, start: int) -> Iterator[tuple[int, Connector, frozenset[str]]]:
        """Takes and accepts that can be reached without taking a row, in order of preference."""
        seen = set()
        # Where, how and past which negations, and the iterations begun on the way: one that ends here took no row.
        stack = [(start, Connector.STRICT, frozenset[str](), frozenset[int]())]
        while stack:
            here = stack.pop()
            if here in seen:
                continue
            seen.add(here)
            pc, connector, negated, begun = here
            what, argument = self.code[pc]
            if what in ("take", "accept"):
                yield pc, connector, negated
            elif what == "split":
                stack += [(to, connector, negated, begun) for to in reversed(argument)]
            elif what == "jump":
                stack.append((argument, connector, negated, begun))
            elif what == "connect":
                stack.append((pc + 1, argument, negated, begun))
            elif what == "begin":
                stack.append((pc + 1, connector, negated, begun | {pc if argument is None else argument}))
            elif what == "forbid":
                stack.append((pc + 1, connector, negated | {argument}, begun))
            elif argument not in begun:
                stack.append((pc + 1, connector, negated, begun))
