"""What the engine will do with an operator, said before it runs: automaton, predicates, matching, replay, warnings.

Everything here is read off the checked operator; no data is needed and nothing is run.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_jobs.cep.automaton import NO_ACCEPT, Automaton
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.pattern import Connector
from spark_jobs.cep.sql import split_match_recognize
from spark_jobs.cep.units import UNITS
from spark_jobs.errors import RepriseError
from spark_jobs.transactions.operators import HeavyHitters, StatefulOperator

WIDTH = 118
# Nobody reads further; --json has all of them.
MAX_SHOWN = 200
_CONNECTOR = {Connector.STRICT: "strict", Connector.NEXT: "next", Connector.ANY: "any"}
_ROW_WISE, _IN_KERNEL = "columnar, before matching", "in the kernel, per run"


@dataclass(frozen=True)
class Caution:
    """A warning: what about the pattern, what follows from it, what to write instead."""

    kind: str
    consequence: str
    instead: str


@dataclass(frozen=True)
class StateLine:
    """A state and what a run may do in it, in order of preference."""

    number: int
    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class PredicateLine:
    """A predicate, or a part of one, and where it is evaluated."""

    symbol: str
    where: str
    text: str


@dataclass(frozen=True)
class Explanation:
    operator: str
    pattern: str
    rules: tuple[str, ...]
    states: tuple[StateLine, ...]
    predicates: tuple[PredicateLine, ...]
    columns: tuple[str, ...]
    matching: tuple[str, ...]
    replay: tuple[str, ...]
    warnings: tuple[Caution, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        lines = [f"{self.operator}: {self.pattern}", *_wrapped(", ".join(self.rules), "  ", "  ")]
        if self.states:
            steps = _count(len(self.states) - 1, "step")
            lines += ["", f"Automaton: the start and {steps}; each with what may follow, in order of preference"]
            lines += _automaton_lines(self.states)
        lines += ["", "Predicates"]
        lines += _predicate_lines(self.predicates)
        others = [column for column in self.columns if column not in ("sn", "stream_ts")]
        lines += _wrapped(f"Columns read: {', '.join(others) or 'none'}, besides sn and stream_ts.", "  ", "  ")
        for title, sentences in (("Matching", self.matching), ("Replay", self.replay)):
            lines += ["", title, *(line for sentence in sentences for line in _wrapped(sentence, "  - ", "    "))]
        lines += ["", f"Warnings: {len(self.warnings) or 'none'}"]
        for caution in self.warnings:
            lines += _wrapped(f"{caution.kind}: {caution.consequence}", "  ! ", "    ")
            lines += _wrapped(f"Instead: {caution.instead}", "    ", "    ")
        return "\n".join(lines)


def explain(operator: Operator, keys: str | None = None, upstream: Sequence[str] = ()) -> Explanation:
    """Explain an operator; `keys` names what it is partitioned by, where that is more than one column.

    `upstream` are its inputs, where it reads more than the log.
    """
    keys = keys or operator.partition_by
    return Explanation(
        operator.name,
        operator.pattern.text,
        tuple(_rules(operator, keys)),
        tuple(_states(operator.automaton)),
        tuple(_predicates(operator)),
        tuple(sorted({name for name in operator.columns if name in operator.types} | set(keys.split(", ") if keys else ()))),
        tuple(_matching(operator, keys, upstream)),
        tuple(_replay(operator)),
        tuple(_cautions(operator)),
    )


def explain_stateful(operator: Operator, stateful: StatefulOperator) -> Explanation:
    """Explain an operator with shared state, which finds single events."""
    match stateful:
        case HeavyHitters(threshold, cells):
            what = f"heavy hitters by {operator.partition_by}: who is first seen to have come {threshold:,} times"
            held = f"two sketches of {cells:,} cells, whatever the number of keys"
            learned = "who is below the threshold and who was found before"
        case _:
            what = f"balances by {operator.partition_by}: withdrawals that are not covered"
            held = "one number for every key"
            learned = "for whom the balance was enough, and for whom it was not"
    return Explanation(
        operator.name,
        what,
        ("one event each",),
        (),
        tuple(_predicates(operator)),
        tuple(operator.columns),
        (
            "Chunks of a batch run side by side and commit in their order; the result is that of running one after the other.",
            f"A chunk learns {learned}. If that is no longer so when it commits, it runs again; if many do, fewer run ahead.",
            "A match is published with the batch of its event.",
        ),
        (f"None: the state is part of the savepoint, {held}.",),
        (),
    )


def operator_of_sql(text_or_file: str, types: Mapping[str, pa.DataType]) -> tuple[Operator, str]:
    """The operator of a MATCH_RECOGNIZE query, given as text or as a file with it, and its PARTITION BY."""
    text = text_or_file
    if "match_recognize" not in text.lower():
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError, UnicodeDecodeError):
            raise RepriseError(f"--sql: '{text_or_file[:80]}' has no MATCH_RECOGNIZE, and is no readable file either") from None
    _, query = split_match_recognize(text)
    return query.operator(types), ", ".join(query.partition_by)


def duration_text(micros: int) -> str:
    """`1 h`: the largest unit that keeps it whole."""
    unit, size = next((unit, size) for unit, size in reversed(UNITS.items()) if micros % size == 0)
    return f"{micros // size:,} {unit}"


def _rules(operator: Operator, keys: str | None) -> Iterator[str]:
    yield f"by {keys}" if keys else "over the whole input"
    if operator.window.kind != "none":
        yield _window_text(operator)
    if operator.within:
        yield f"WITHIN {duration_text(operator.within)}"
    if operator.within_steps:
        yield f"WITHIN {duration_text(operator.within_steps)} BETWEEN STEPS"
    yield "all runs" if operator.all_runs else "the preferred match of each start"
    if operator.timed_out:
        yield "timed-out partial matches too"
    after = operator.after_match
    yield " ".join(filter(None, ["AFTER MATCH SKIP", after.kind.upper(), after.symbol]))


def _window_text(operator: Operator) -> str:
    window = operator.window
    slide = "" if window.slide in (0, window.size) else window.slide
    match window.kind:
        case "time":
            return f"in windows of {duration_text(window.size)}" + (f" every {duration_text(window.slide)}" if slide else "")
        case "opened":
            size = f"{window.size:,} rows" if window.by_rows else duration_text(window.size)
            closes = f", at most until ({window.close_when})" if window.close_when else ""
            return f"in windows of {size} opened by ({window.open_when}){closes}"
        case _:
            whose = "rows of a key" if window.kind == "keyed" else "rows of the whole input"
            return f"in windows of {window.size:,} {whose}" + (f" every {window.slide:,}" if slide else "")


def _states(automaton: Automaton) -> Iterator[StateLine]:
    pattern = automaton.pattern
    accept = "accept"
    if pattern.at_end:
        accept = "accept on the last row"
    elif pattern.never_after:
        accept = f"accept when WITHIN has passed with {' and '.join(f'no {symbol}' for symbol in pattern.never_after)}"
    for number, state in enumerate(automaton.states):
        cells = []
        for option in state.options:
            how = _CONNECTOR[option.connector] if number else "begin"
            gap = "".join(f", no {symbol}" for symbol in sorted(option.negated))
            cells.append(f"{how} {option.state} {automaton.states[option.state].symbol}{gap}")
        if state.accept != NO_ACCEPT:
            cells.insert(state.accept, accept)
        if len(cells) > 1:
            cells = [f"{place}. {cell}" for place, cell in enumerate(cells, 1)]
        name = state.symbol or ("start, on a first row" if pattern.at_start else "start")
        yield StateLine(number, f"{{- {name} -}}" if state.excluded else name, tuple(cells))


def _automaton_lines(states: tuple[StateLine, ...]) -> list[str]:
    """Aligned: number, name, then the options in columns as far as they fit."""
    digits = len(str(states[-1].number))
    names = max(len(state.name) for state in states[:MAX_SHOWN])
    # Only lines of several options share columns; a long single one would push all others apart.
    widths: dict[int, int] = {}
    for state in states[:MAX_SHOWN]:
        for place, cell in enumerate(state.options if len(state.options) > 1 else ()):
            widths[place] = max(widths.get(place, 0), len(cell))
    lines = []
    for state in states[:MAX_SHOWN]:
        head = f"  {state.number:>{digits}} {state.name:<{names}}  "
        line = head
        for place, cell in enumerate(state.options):
            if len(line) > len(head) and len(line) + len(cell) > WIDTH:
                lines.append(line.rstrip())
                line = " " * len(head)
            line += f"{cell:<{widths.get(place, 0) if len(state.options) > 1 else 0}}   "
        lines.append(line.rstrip())
    if len(states) > MAX_SHOWN:
        lines.append(f"  ... and {len(states) - MAX_SHOWN:,} more; --json has all of them")
    return lines


def _predicates(operator: Operator) -> Iterator[PredicateLine]:
    terms = operator.terms
    for symbol in operator.pattern.symbols:
        if _fits_every_row(operator, symbol):
            yield PredicateLine(symbol, "none needed", "fits every row")
            continue
        alone, rest = terms.row_only[symbol].text, terms.rest.get(symbol)
        if rest is None or not _always(alone):
            yield PredicateLine(symbol, _ROW_WISE, " ".join(alone.split()))
        if rest is not None:
            yield PredicateLine(symbol, _IN_KERNEL, " ".join(rest.split()))
    for name, predicate in (("window opens", operator.open_when), ("window closes", operator.close_when)):
        if predicate:
            yield PredicateLine(name, _ROW_WISE, " ".join(predicate.text.split()))


def _predicate_lines(predicates: tuple[PredicateLine, ...]) -> list[str]:
    names = max(len(line.symbol) for line in predicates)
    where = max(len(line.where) for line in predicates)
    lines, before = [], ""
    for line in predicates:
        head = f"  {line.symbol if line.symbol != before else '':<{names}}  {line.where:<{where}}  "
        lines += _wrapped(line.text, head, " " * len(head))
        before = line.symbol
    return lines


def _matching(operator: Operator, keys: str | None, upstream: Sequence[str]) -> Iterator[str]:
    if len(upstream) > 1:
        yield f"Reads {_listed(list(upstream))} as one stream, in the order of the log; on a tie, in this order."
    elif upstream:
        yield f"Reads the complex events of {upstream[0]}, in their order."
    if operator.plain:
        yield "Completion array: for a plain sequence one pass backwards tells where each start ends; no runs are kept."
    else:
        yield f"Ordered runs, moved on row by row, because {_listed(_why_runs(operator))}."
    if not operator.plain and not _told_apart(operator):
        yield "Runs of one start that wait for the same cannot be told apart by any predicate and are merged."
    if _undecided(operator) and not operator.every_row:
        whose = _listed(_undecided(operator), "or")
        yield f"No part of {whose} can be decided by a row alone, so every row reaches the matcher."
    yield _parallel_over_a_graph(keys) if upstream else _parallel(operator, keys)
    yield _when_out(operator)
    if not operator.plain and not operator.all_runs and operator.after_match.consumes:
        yield "A match is also held back while an earlier start may still match, because that one would come first."


def _why_runs(operator: Operator) -> list[str]:
    terms, after = operator.terms, operator.after_match
    reasons = {
        "the pattern is more than a plain 'A -> B -> C'": operator.pattern.steps is None,
        f"{_listed(sorted(terms.crossing))} must be compared with rows bound before": terms.crossing,
        "PREV looks at other rows": operator.back,
        "all runs are asked for": operator.all_runs,
        "timed-out matches are asked for": operator.timed_out,
        "the time between steps is limited": operator.within_steps,
        f"AFTER MATCH SKIP {after.kind.upper()} is asked for": after.kind not in ("past last row", "to next row"),
        "windows begin at rows": operator.window.kind in ("keyed", "opened"),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _parallel_over_a_graph(keys: str | None) -> str:
    if keys:
        return f"Parallel by {keys}: every task reads all complex events and keeps its own keys."
    return "One stream: without PARTITION BY every event may matter to every match, so one task does all of it."


def _parallel(operator: Operator, keys: str | None) -> str:
    if not keys:
        if operator.window.on_grid and not operator.complete:
            return "Parallel by windows: each task gets a stretch of them, and the rows that neighbours share twice."
        return "One stream: without PARTITION BY every row may matter to every match, so one task does all of it."
    if operator.complete:
        if operator.window.kind == "count":
            return "One stream: windows count the rows of the whole input, so keys cannot be matched apart."
        return f"Parallel by {keys}: the rows of a key go to one task, keys are independent of each other."
    if keys == "key":
        return "Parallel by key: a task reads the buckets of its own keys and nothing else; shards do not change the result."
    return f"Parallel by {keys}: the log is not bucketed by it, so every task reads all files and keeps its own keys."


def _when_out(operator: Operator) -> str:
    """When a match is decided."""
    pattern, automaton = operator.pattern, operator.automaton
    if pattern.never_after:
        gone = _listed(list(pattern.never_after), "or")
        return f"A match comes out when its time has passed, or its window closes, with no {gone}."
    if pattern.at_end:
        return f"A match comes out when its {'window closes' if operator.window.kind != 'none' else 'key ends'}."
    if operator.all_runs:
        kept = (
            ""
            if operator.after_match.kind == "none"
            else f", unless a match before it skipped it ({operator.after_match.kind})"
        )
        return f"Every run that completes is a match and comes out with its last row{kept}."
    if automaton.endless:
        limits = [limit for limit in (operator.within, operator.within_steps) if limit]
        until = [f"WITHIN ({_listed([duration_text(limit) for limit in limits], 'or')}) has passed"] if limits else []
        until += ["its window closes"] if operator.window.kind != "none" else []
        until += ["the input ends"] if operator.complete and not until else []
        later = _listed(automaton.endless, "or")
        wait = f"until {_listed(until, 'or')}" if until else "for ever"
        return f"A complete match that a later {later} could lengthen waits {wait}."
    if any(state.accept > 0 for state in automaton.states):
        return "A match comes out with the first row that can no longer lengthen it, or with its last row if nothing can."
    if any(len(state.options) > 1 for state in automaton.states[1:]):
        return "A match comes out with its last row; where a row fits several steps, when no preferred way is left."
    return "A match comes out with its last row."


def _replay(operator: Operator) -> Iterator[str]:
    if operator.complete:
        yield "None: a query sees its input to the end, so nothing is held from one batch to the next."
        return
    window, automaton = operator.window, operator.automaton
    whole = window.kind in ("keyed", "opened")
    if operator.every_row:
        yield from _why_every_row(operator)
    elif window.kind == "opened":
        yield "A row that fits no symbol and neither opens nor closes a window is dropped before matching."
    else:
        dropped = "" if _undecided(operator) else "; it is dropped before matching"
        yield f"A row that fits no symbol is never held{dropped}."
    everywhere = [symbol for symbol in operator.pattern.bound if _fits_every_row(operator, symbol)]
    if everywhere:
        fit = "fits" if len(everywhere) == 1 else "fit"
        yield f"{_listed(everywhere)} {fit} every row, so every row can be used."
    if not whole:
        yield f"Held are the used rows since the first start still undecided: {_listed(_uses(operator))}."
    if operator.back:
        back = _count(operator.back, "row")
        yield f"PREV: as context, {back} before each held one and at the end of each key are kept too."
    if window.kind == "keyed":
        yield f"All rows of windows still open are held: up to {window.size:,} per key, for as long as the key is silent."
    elif window.kind == "opened":
        until = "; a key that falls silent keeps them" if window.by_rows else " or that much stream time has passed"
        yield f"All rows from the first window still open on are held, until it closes{until}."
    elif window.kind != "none" and window.overlapping and operator.after_match.consumes:
        yield "Windows overlap and matches consume rows: a floor per key and stretch of windows says from where each goes on."
    elif window.kind != "none":
        yield "When a window closes, everything that only it held is released."
    if _timed(operator):
        yield from _time_bounds(operator)
    elif window.kind == "none" and _waits(automaton):
        yield "Without WITHIN or a window a start that never completes is held for ever."
    elif window.kind == "none" and len(automaton.states) > 2:
        yield "All steps are strict, so each key holds the rows of its current run only."
    elif window.kind == "none":
        yield "A match is one row, so nothing is ever held."


def _why_every_row(operator: Operator) -> Iterator[str]:
    strict = {
        operator.automaton.states[option.state].symbol or ""
        for state in operator.automaton.states[1:]
        for option in state.options
        if option.connector is Connector.STRICT
    }
    if strict:
        yield (
            f"Strict steps ({', '.join(sorted(strict))}) need every row of the key: one that fits no symbol ends a run, "
            "and is held as long as the start of that run."
        )
    if operator.pattern.at_end:
        yield "'$' needs every row: any row after the last one undoes a match."
    if operator.pattern.at_start:
        until = "until that closes" if operator.window.kind != "none" else "for ever"
        yield f"'^' needs the first row of each key and window, whatever it is: used rows are held {until}."
    if operator.window.kind == "keyed" or (operator.window.kind == "opened" and operator.window.by_rows):
        yield "Windows count the rows of a key, so rows that fit no symbol count too."


def _uses(operator: Operator) -> list[str]:
    """What makes a row used."""
    automaton = operator.automaton
    negated = {symbol for state in automaton.states for option in state.options for symbol in option.negated}
    negated |= set(operator.pattern.never_after)
    uses = ["those that a step took"]
    uses += [f"{_listed(sorted(negated))} rows that ended a run"] if negated else []
    uses += ["those that broke a strict step"] if automaton.strict else []
    return uses


def _time_bounds(operator: Operator) -> Iterator[str]:
    if operator.within:
        yield f"WITHIN bounds it: what started {duration_text(operator.within)} of stream time ago is no longer held."
    if operator.within_steps:
        quiet = duration_text(operator.within_steps)
        yield f"WITHIN BETWEEN STEPS bounds it: a run that took no row for {quiet} of stream time is no longer held."


def _cautions(operator: Operator) -> Iterator[Caution]:
    automaton, pattern = operator.automaton, operator.pattern
    bounded = _timed(operator) or operator.window.kind != "none" or operator.complete
    if not bounded and _waits(automaton):
        yield Caution(
            "No WITHIN and no window",
            "a start that never completes is held for ever; savepoints and replays grow with the number of such starts.",
            "give 'within: 1 h', or a window.",
        )
    if operator.endless and not operator.within_steps:
        last = operator.endless[0]
        yield Caution(
            f"Endless tail ({', '.join(operator.endless)})",
            f"a complete match is held back because a later {last} could still lengthen it, and nothing ends that wait.",
            f"give 'within', make the repetition reluctant ('{last}+?'), strict inside a group ('-> ({last} {last}*)'), "
            "or end the pattern with a step that has to come.",
        )
    first = sorted({automaton.states[option.state].symbol or "" for option in automaton.states[0].options})
    everywhere = [symbol for symbol in first if _fits_every_row(operator, symbol)]
    if everywhere:
        yield Caution(
            f"{_listed(everywhere)} begins matches and fits every row",
            "every row starts a run, so all rows reach the matcher and little can be skipped in a replay.",
            f"define {_listed(everywhere)}, or let the pattern begin with a step that is rare.",
        )
    yield from _negation_cautions(operator)
    if _explodes(automaton) and _told_apart(operator):
        yield Caution(
            "Repetition under '->>'",
            "each row that fits doubles the runs of a start: 20 of them are a million. More than "
            f"{operator.limits.runs:,} in one key and window stop the job with an error.",
            "write '->', limit the count ('{1,3}'), or make WITHIN or the window so short that few rows fit.",
        )
    dead = [symbol for symbol in pattern.bound if symbol not in _reachable(operator)]
    if dead:
        yield Caution(
            f"{_listed(dead)} can never be bound",
            "the match is already complete before that step, and the shortest one is preferred.",
            "make the repetition greedy (without '?' behind it), or ask for all runs.",
        )
    for function in _complete_only(operator):
        yield Caution(
            f"{function}()",
            "it needs rows that a log does not have yet, so this query cannot become a pipeline.",
            "look back with PREV or LAST, or bind the later row to a symbol of its own."
            if function == "NEXT"
            else "use x, y and ordinal, the numbers of complex events.",
        )


def _negation_cautions(operator: Operator) -> Iterator[Caution]:
    for symbol in operator.pattern.symbols:
        if symbol not in operator.pattern.bound and _fits_every_row(operator, symbol):
            last = symbol in operator.pattern.never_after
            yield Caution(
                f"!{symbol} fits every row",
                "any later row undoes the match." if last else "no row at all may stand in that gap.",
                f"define {symbol}." if last else f"define {symbol}; if that is meant, a strict step says it: 'A B'.",
            )


def _undecided(operator: Operator) -> list[str]:
    """Symbols that the columnar part of their predicate lets every row pass for."""
    return [symbol for symbol, alone in operator.terms.row_only.items() if _always(alone.text)]


def _timed(operator: Operator) -> bool:
    return bool(operator.within or operator.within_steps)


def _waits(automaton: Automaton) -> bool:
    """Can a run pass over rows while it waits?"""
    return any(option.connector is not Connector.STRICT for state in automaton.states[1:] for option in state.options)


def _told_apart(operator: Operator) -> bool:
    """Do two runs of one start in the same state have different futures or results?"""
    return bool(operator.all_runs or operator.timed_out or operator.terms.crossing)


def _explodes(automaton: Automaton) -> bool:
    """Some occurrence can be taken again and again by skip-till-any-match."""
    states = enumerate(automaton.states)
    return any(option.connector is Connector.ANY and option.state <= s for s, state in states for option in state.options)


def _reachable(operator: Operator) -> set[str]:
    """The symbols that some match can bind: options after accept do not exist, unless something may undo the accept."""
    states, pattern = operator.automaton.states, operator.pattern
    undone = operator.all_runs or pattern.at_end or bool(pattern.never_after)
    seen, waiting = {0}, [0]
    while waiting:
        state = states[waiting.pop()]
        until = len(state.options) if undone or state.accept == NO_ACCEPT else state.accept
        new = {option.state for option in state.options[:until]} - seen
        seen |= new
        waiting += new
    return {states[number].symbol or "" for number in seen}


def _complete_only(operator: Operator) -> list[str]:
    """Functions in use that only a complete input can answer."""
    texts = " ".join([*operator.define.values(), *(operator.measures or {}).values()])
    code = re.sub(r"'[^']*'", "''", texts)
    return [name for name in ("NEXT", "MATCH_NUMBER") if re.search(rf"\b{name}\s*\(", code, re.IGNORECASE)]


def _fits_every_row(operator: Operator, symbol: str) -> bool:
    return _always(operator.define.get(symbol, "TRUE"))


def _always(text: str) -> bool:
    return text.strip(" ()\n\t").upper() == "TRUE"


def _listed(words: list[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _wrapped(text: str, first: str, then: str) -> list[str]:
    width = max(WIDTH, len(first) + 40)
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )
