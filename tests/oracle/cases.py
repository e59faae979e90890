"""The cases, made from a fixed seed: each is a pattern and a stream, told to Reprise, to Flink and to the model.

reprise   what tests.cep.engine.matches takes: pattern, define, within (microseconds), after_match, all_runs, stream
flink     one line for FlinkOracle.java: a MATCH_RECOGNIZE query or a list of CEP steps
model     what tests.oracle.model.matches takes
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.oracle import model

Step = dict[str, Any]
Case = dict[str, Any]

TRIES = 40  # a stream with hardly a match, or a pattern seen before, tells little: draw again, but not for ever
SECOND = 1_000_000
CONNECTORS = {"strict": " ", "next": " -> ", "any": " ->> "}
CEP_CONNECTORS = {"strict": "next", "next": "followedBy", "any": "followedByAny"}


def all_cases() -> list[Case]:
    cases, known = [], set()
    for family, make, count in FAMILIES:
        for number in range(1, count + 1):
            rng = random.Random(f"{family} {number}")  # noqa: S311 a seeded generator is the point
            made = make(rng)
            for _ in range(TRIES):
                if query(made) not in known and len(model.matches(made["model"])) >= 2:
                    break
                made = make(rng)
            known.add(query(made))
            cases.append({"id": f"{family}-{number:03}", "family": family, **made})
    return cases


def query(made: Case) -> str:
    """All of a case but its stream: what has to differ for two patterns to count as two."""
    return json.dumps({name: value for name, value in made["flink"].items() if name != "stream"}, sort_keys=True)


def example(steps: list[Step], rows: str, *, conditions: dict[str, Any] | None = None, **how: Any) -> Case:
    """A case written by hand: `rows` are the letters of each event with v behind them, a second apart."""
    names = {n for s in steps for n in (s["name"], *s.get("nots", []))} | set(how.get("end_nots", []))
    events = []
    for sn, row in enumerate(rows.split(), 1):
        letters = row.rstrip("0123456789")
        v = int(row.removeprefix(letters) or 0)
        events.append({"sn": sn, "ts": sn * SECOND, "key": "x", "letters": letters, "v": v})
    fits = letters_of("".join(sorted(names))) | (conditions or {})
    return case(steps, fits, events, **{"after": "past last row", "sql": False, **how})


# What a case is made of


def stream(rng: random.Random, letters: str, length: int, keys: int, overlap: float) -> list[dict[str, Any]]:
    """Events that tend to follow the letters in order; `overlap` is the share of rows that fit two symbols."""
    events, ts, at = [], 10 * SECOND, dict.fromkeys(range(keys), 0)
    for sn in range(1, length + 1):
        ts += rng.choice([0, 1, 1, 1, 2, 3]) * SECOND
        key = rng.randrange(keys)
        if rng.random() < 0.5:
            letter = letters[at[key] % len(letters)]
            at[key] += rng.random() < 0.7
        else:
            letter = rng.choice(letters + "z")
        if rng.random() < overlap:
            letter = "".join(sorted({letter, rng.choice(letters)}))
        events.append({"sn": sn, "ts": ts, "key": "xyz"[key], "letters": letter, "v": rng.randrange(10)})
    return events


def case(
    steps: list[Step],
    conditions: dict[str, Any],
    events: list[dict[str, Any]],
    *,
    after: str,
    sql: bool,
    within: int = 0,
    end_nots: list[str] | None = None,
    alone: bool = False,
    anchors: str = "",
    cep_steps: list[dict[str, Any]] | None = None,
) -> Case:
    end_nots = end_nots or []
    text = ("^ " if "^" in anchors else "") + pattern(steps) + "".join(f" -> !{name}" for name in end_nots)
    text += " $" if "$" in anchors else ""
    common = {"within": within * SECOND, "after_match": after, "all_runs": not sql, "stream": events}
    rows = [[e["sn"], e["ts"] // 1000, e["key"], e["letters"], e["v"]] for e in events]
    flink: dict[str, Any] = {"stream": rows, "alone": alone}
    if sql:
        flink["symbols"] = [step["name"] for step in steps]
        flink["sql"] = match_recognize(flink["symbols"], text, conditions, after, within)
    else:
        skip = after.rsplit(" ", 1) if after.startswith(("to first ", "to last ")) else [after]
        flink["steps"] = cep_steps or cep(steps, conditions, end_nots)
        flink |= {"skip": skip, "within": within * 1000}
    # The engine's test interface gives a symbol without definition its letter; what fits every row is said as TRUE.
    define = {name: "TRUE" if tree is None else sql_text(tree, name, "") for name, tree in conditions.items()}
    return {
        "reprise": {"pattern": text, "define": define, "partition_by": "key", "complete": True, **common},
        "flink": flink,
        "model": {"steps": steps, "conditions": conditions, "end_nots": end_nots, "anchors": anchors, **common},
    }


# The pattern in Reprise's words


def pattern(steps: list[Step]) -> str:
    text = ""
    for step in steps:
        connector = CONNECTORS[step.get("conn", "strict")]
        for name in step.get("nots", []):
            text += f" -> !{name}"
        text += (connector if text else "") + element(step)
    return text


def element(step: Step) -> str:
    """A repetition repeats the connector before it; where Flink's differs inside, the first one is written apart."""
    name = f"({pattern(step['group'])})" if "group" in step else step["name"]
    lo, hi = step.get("lo", 1), step.get("hi", 1)
    conn = step.get("conn", "strict")
    inside = step.get("inside", conn)
    if inside == conn or hi == 1:
        return name + quantifier(lo, hi, bool(step.get("reluctant")))
    more = quantifier(max(lo, 1) - 1, None if hi is None else hi - 1, bool(step.get("reluctant")))
    text = f"{name}{CONNECTORS[inside]}{name}{more}"
    return f"({text})" + ("?" if lo == 0 else "")


def quantifier(lo: int, hi: int | None, reluctant: bool) -> str:
    short = {(1, 1): "", (0, None): "*", (1, None): "+", (0, 1): "?"}.get((lo, hi))
    if short is None:
        short = f"{{{lo}}}" if lo == hi else f"{{{lo},{'' if hi is None else hi}}}"
    return short + ("?" if reluctant and lo != hi else "")


# Conditions as SQL; `prefix` is what Flink wants before the candidate's columns


def sql_text(tree: list[Any], symbol: str, prefix: str) -> str:
    column = f"{prefix}v"
    match tree:
        case ["letter", letter]:
            return f"{prefix}letters LIKE '%{letter}%'"
        case ["next is not", letter]:
            return f"COALESCE(NEXT(letters), '') NOT LIKE '%{letter}%'"
        case ["v", op, limit]:
            return f"{column} {op} {limit}"
        case ["rises"]:
            return f"(LAST({symbol}.v, 1) IS NULL OR {symbol}.v > LAST({symbol}.v, 1))"
        case ["last" | "first" as function, op, name]:
            return f"{column} {op} {function.upper()}({name}.v)"
        case ["sum" | "avg" | "min" | "max" | "count" as function, name, op, limit]:
            return f"{function.upper()}({name}.v) {op} {limit}"
        case ["and", *parts]:
            return " AND ".join(sql_text(part, symbol, prefix) for part in parts)
    raise ValueError(tree)


def match_recognize(names: list[str], text: str, conditions: dict[str, Any], after: str, within: int) -> str:
    measures = ", ".join(f"LISTAGG(CAST({name}.sn AS VARCHAR)) AS s{i}" for i, name in enumerate(names))
    define = ", ".join(f"{n} AS {sql_text(tree, n, n + '.')}" for n, tree in conditions.items() if tree is not None)
    limit = f" WITHIN INTERVAL '{within}' SECOND" if within else ""
    inside = f"PARTITION BY `key` ORDER BY ts MEASURES {measures} ONE ROW PER MATCH AFTER MATCH SKIP {after.upper()}"
    return f"SELECT * FROM $input MATCH_RECOGNIZE ({inside} PATTERN ({text}){limit} DEFINE {define})"


def cep(steps: list[Step], conditions: dict[str, Any], end_nots: list[str]) -> list[dict[str, Any]]:
    built: list[dict[str, Any]] = []
    for step in steps:
        built += [{"name": n, "how": "notFollowedBy", "condition": conditions[n]} for n in step.get("nots", [])]
        conn = step.get("conn", "strict")
        added: dict[str, Any] = {"how": CEP_CONNECTORS[conn]}
        if "group" in step:
            added["group"] = cep(step["group"], conditions, [])
        else:
            added |= {"name": step["name"], "condition": conditions[step["name"]]}
        lo, hi = step.get("lo", 1), step.get("hi", 1)
        if hi != 1:
            added |= {"from": max(lo, 1), "inside": CEP_CONNECTORS[step.get("inside", conn)]}
            if hi is not None:
                added["to"] = hi
        added |= {"optional": lo == 0, "greedy": bool(step.get("greedy"))}
        built.append(added)
    return built + [{"name": n, "how": "notFollowedBy", "condition": conditions[n]} for n in end_nots]


def letters_of(names: str) -> dict[str, Any]:
    return {name: ["letter", name.lower()] for name in names}


# Families: SQL


def sql_plain(rng: random.Random) -> Case:
    """Quantifiers where no row fits two symbols."""
    steps = sql_steps(rng, optional=0.0)
    return sql_case(rng, steps, letters_of(names_of(steps)), overlap=0.0)


def sql_overlap(rng: random.Random) -> Case:
    """Rows that fit two symbols; reluctant quantifiers and fixed counts only, where Flink has SQL's preference."""
    steps = sql_steps(rng, optional=0.0, greedy=False)
    return sql_case(rng, steps, letters_of(names_of(steps)), overlap=0.35)


def sql_greedy_overlap(rng: random.Random) -> Case:
    """Greedy quantifiers that would have to give a row back, and optional symbols."""
    steps = sql_steps(rng, optional=0.4)
    return sql_case(rng, steps, letters_of(names_of(steps)), overlap=0.35)


def sql_undefined(rng: random.Random) -> Case:
    """A symbol without definition between two that have one: `A X*? B`."""
    middle = rng.choice([{"lo": 0, "hi": None}, {"lo": 1, "hi": None}, {"lo": 0, "hi": 3}, {"lo": 2, "hi": 4}])
    steps = [{"name": "A"}, {"name": "B", "reluctant": True, **middle}, {"name": "C"}]
    return sql_case(rng, steps, {"A": ["letter", "a"], "B": None, "C": ["letter", "c"]}, overlap=0.2)


def sql_navigation(rng: random.Random) -> Case:
    """LAST and FIRST in DEFINE: rising and falling runs over letters or over the value alone."""
    loop = rng.choice([{"lo": 1, "hi": None}, {"lo": 0, "hi": None}, {"lo": 2, "hi": None}, {"lo": 2, "hi": 4}])
    loop = {**loop, "greedy": True}
    shape = rng.randrange(4)
    if shape == 0:
        steps = [{"name": "A"}, {"name": "B", **loop}, {"name": "C"}]
        conditions = {"A": None, "B": ["rises"], "C": ["last", "<", "B" if loop["lo"] else "A"]}
    elif shape == 1:
        steps = [{"name": "A"}, {"name": "B", **loop}, {"name": "C"}]
        conditions = {"A": ["v", ">", 3], "B": ["last", "<", "A"], "C": ["first", ">", "A"]}
    elif shape == 2:
        steps = [{"name": "A"}, {"name": "B"}, {"name": "C", "lo": 1, "hi": 3, "reluctant": True}, {"name": "D"}]
        conditions = {"A": ["letter", "a"], "B": ["last", ">", "A"], "C": ["first", "<", "B"], "D": ["last", ">", "C"]}
    else:
        steps = [{"name": "A", **loop, "lo": max(1, loop["lo"])}, {"name": "B"}]
        conditions = {"A": ["and", ["rises"], ["v", "<", 8]], "B": ["last", "<", "A"]}
    return sql_case(rng, steps, conditions, overlap=0.0)


def sql_aggregates(rng: random.Random) -> Case:
    """SUM, AVG, MIN, MAX and COUNT over the rows bound so far, the candidate included."""
    function = rng.choice(["sum", "avg", "min", "max", "count"])
    limit = {"sum": 14, "avg": 5, "min": 3, "max": 7, "count": 3}[function]
    op = ">" if function == "min" else "<"
    steps = [{"name": "A"}, {"name": "B", "lo": rng.choice([1, 1, 2]), "hi": None, "greedy": True}, {"name": "C"}]
    inside = [function, "B", op, limit]
    if rng.random() < 0.75:
        inside = ["and", ["letter", "b"], inside]  # no row is both a B and a C then
    ends = rng.choice([
        ["letter", "c"],
        ["sum", "B", ">", 9],
        ["avg", "B", ">", 3],
        ["count", "B", "=", 2],
        ["max", "B", ">", 4],
    ])
    if inside[0] == "and":
        ends = rng.choice([["letter", "c"], ["and", ["letter", "c"], ends]])
    conditions = {"A": rng.choice([["letter", "a"], ["v", ">", 2]]), "B": inside, "C": ends}
    return sql_case(rng, steps, conditions, overlap=0.0)


def sql_anchors(rng: random.Random) -> Case:
    """`^` and `$`."""
    steps: list[Step] = [{"name": "A"}, {"name": "B", "lo": rng.choice([0, 1]), "hi": None, "greedy": True}, {"name": "C"}]
    events = stream(rng, "abc", 30, 3, 0.0)
    after = rng.choice(["past last row", "to next row"])
    return case(steps, letters_of("ABC"), events, after=after, sql=True, anchors=rng.choice(["^", "$"]))


def sql_missed_skip(rng: random.Random) -> Case:
    """AFTER MATCH SKIP to a symbol that is not bound or is the first row: Flink fails the job."""
    if rng.random() < 0.5:
        steps, first = [{"name": "A"}, {"name": "B", "lo": 0, "hi": None, "greedy": True}, {"name": "C"}], "ac"
    else:
        steps, first = [{"name": "A", "lo": 0, "hi": None, "greedy": True}, {"name": "B"}, {"name": "C"}], "bc"
    events = stream(rng, "abc", 12, 1, 0.0)
    events = [e | {"letters": letter} for e, letter in zip(events, first, strict=False)] + events[2:]
    return case(steps, letters_of("ABC"), events, after=f"to {rng.choice(['first', 'last'])} B", sql=True, alone=True)


def sql_case(rng: random.Random, steps: list[Step], conditions: dict[str, Any], overlap: float) -> Case:
    after = rng.choice(["past last row", "past last row", "to next row", "to next row", "to"])
    if after == "to":
        # Flink fails where the target is not bound or is the first row of the match.
        sure = [s["name"] for i, s in enumerate(steps) if s.get("lo", 1) and any(b.get("lo", 1) for b in steps[:i])]
        after = f"to {rng.choice(['first', 'last'])} {rng.choice(sure)}" if sure else "to next row"
    within = rng.choice([0, 0, 4, 6, 10])
    letters = "".join(sorted(name.lower() for name in conditions))
    events = stream(rng, letters, rng.randint(20, 40), rng.choice([1, 2, 2, 3]), overlap)
    return case(steps, conditions, events, after=after, sql=True, within=within)


def sql_steps(rng: random.Random, optional: float, greedy: bool = True) -> list[Step]:
    steps: list[Step] = []
    count = rng.choice([2, 3, 3, 4])
    for i, name in enumerate("ABCD"[:count]):
        step: Step = {"name": name}
        lo, hi = rng.choice([(1, 1), (0, None), (1, None), (2, 2), (1, 3), (2, None), (0, 2)])
        if steps and steps[-1]["greedy"]:
            lo = max(lo, 1)  # Flink refuses an optional symbol behind a greedy one
        elif (lo, hi) == (1, 1) and rng.random() < optional:
            lo = 0
        # Flink has no greedy last symbol, no reluctant `??`, and no symbol that may be empty as the whole pattern.
        reluctant = lo != hi and hi != 1 and (not greedy or i == count - 1 or rng.random() < 0.4)
        step |= {"lo": lo, "hi": hi, "reluctant": reluctant, "greedy": lo != hi and hi != 1 and not reluctant}
        steps.append(step)
    if all(step["lo"] == 0 for step in steps):
        steps[-1] |= {"lo": 1, "hi": 1, "reluctant": False, "greedy": False}
    return steps


def names_of(steps: list[Step]) -> str:
    return "".join(step["name"] for step in steps)


# Families: CEP


def cep_sequence(rng: random.Random) -> Case:
    """Single steps with all three connectors."""
    steps = [{"name": n, "conn": rng.choice(["strict", "next", "any"])} for n in "ABCD"[: rng.choice([2, 3, 3, 4])]]
    steps[0]["conn"] = "strict"
    return cep_case(rng, steps, letters_of(names_of(steps)), after=rng.choice(["none", "none", *skips(rng, steps)]))


def cep_iterative(rng: random.Random) -> Case:
    """Conditions that look at rows bound before."""
    steps = [
        {"name": "A"},
        {"name": "B", "conn": rng.choice(["next", "any"])},
        {"name": "C", "conn": rng.choice(["strict", "next"])},
    ]
    loop = rng.random() < 0.5
    if loop:
        steps[1] |= {"lo": rng.choice([1, 2]), "hi": rng.choice([2, 3]), "greedy": False}
    conditions = {
        "A": rng.choice([["letter", "a"], ["v", "<", 3]]),
        "B": rng.choice([["last", ">", "A"], ["and", ["letter", "b"], ["rises"]], ["sum", "B", "<", 9]]),
        "C": rng.choice([["and", ["letter", "c"], ["last", ">", "B"]], ["and", ["letter", "c"], ["last", "<", "A"]]]),
    }
    return cep_case(rng, steps, conditions, after="none", within=rng.choice([6, 9]), overlap=0.0)


def cep_negation(rng: random.Random) -> Case:
    """notFollowedBy between steps; no row fits both the negation and a step."""
    return negation_case(rng, overlap=0.0)


def cep_negation_overlap(rng: random.Random) -> Case:
    """The same, with rows that fit both."""
    return negation_case(rng, overlap=0.4)


def negation_case(rng: random.Random, overlap: float) -> Case:
    steps = [{"name": n, "conn": rng.choice(["next", "any"])} for n in "ABC"[: rng.choice([2, 3])]]
    steps[0]["conn"] = "strict"
    for step in steps[1:]:
        if rng.random() < 0.6:
            step["nots"] = rng.choice([["N"], ["N"], ["N", "M"]]) if step["name"] == "B" else ["K"]
    if not any("nots" in step for step in steps):
        steps[-1]["nots"] = ["N"]
    conditions = letters_of(names_of(steps)) | letters_of("".join(n for s in steps for n in s.get("nots", [])))
    return cep_case(rng, steps, conditions, after=rng.choice(["none", "none", *skips(rng, steps)]), overlap=overlap)


def cep_last_negation(rng: random.Random) -> Case:
    """notFollowedBy at the end: comes out when time has passed."""
    steps = [{"name": n, "conn": rng.choice(["next", "any", "strict"])} for n in "AB"[: rng.choice([1, 2, 2])]]
    steps[0]["conn"] = "strict"
    return cep_case(
        rng,
        steps,
        letters_of(names_of(steps) + "N"),
        after=rng.choice(["none", "to next row"]),
        within=rng.choice([3, 5, 8]),
        end_nots=["N"],
    )


def cep_loop_last_negation(rng: random.Random) -> Case:
    """The same behind a loop."""
    steps = [{"name": "A"}, {"name": "B", "conn": "next", "lo": 1, "hi": rng.choice([None, 2, 3])}]
    within = rng.choice([3, 5, 8])
    return cep_case(rng, steps, letters_of("ABN"), after="none", within=within, end_nots=["N"], overlap=0.0)


def cep_not_next(rng: random.Random) -> Case:
    """notNext: Reprise says it with NEXT in the definition of the step before."""
    conn = rng.choice(["next", "any", "strict"])
    steps = [{"name": "A"}, {"name": "B", "conn": conn}]
    conditions = {"A": ["and", ["letter", "a"], ["next is not", "n"]], "B": ["letter", "b"], "N": ["letter", "n"]}
    cep_steps = [
        {"name": "A", "condition": ["letter", "a"]},
        {"name": "N", "how": "notNext", "condition": conditions["N"]},
        {"name": "B", "how": CEP_CONNECTORS[conn], "condition": conditions["B"]},
    ]
    events = stream(rng, "anb", 24, 2, 0.2)
    del conditions["N"]
    return case(steps, conditions, events, after="none", sql=False, cep_steps=cep_steps)


def cep_loop(rng: random.Random) -> Case:
    """Loops that are strict inside, greedy, or last: where Flink and Reprise mean the same."""
    loop = rng.choice([
        {"lo": 1, "hi": None},
        {"lo": 2, "hi": None},
        {"lo": 2, "hi": 2},
        {"lo": 1, "hi": 3},
        {"lo": 0, "hi": 1},
    ])
    style = rng.choice(["greedy", "strict", "last", "head", "greedy head"])
    if style == "greedy":
        steps = [{"name": "A"}, {"name": "B", "conn": rng.choice(["next", "strict"]), "inside": "next", "greedy": True, **loop}]
        steps.append({"name": "C", "conn": "next"})
        if loop["hi"] == 1:
            steps[1]["greedy"] = False
            steps[1]["lo"] = 1
    elif style == "strict":
        steps = [{"name": "A"}, {"name": "B", "conn": "next", "inside": "strict", **loop}, {"name": "C", "conn": "strict"}]
        if loop["lo"] == 0:
            steps[1]["conn"] = "strict"
    elif style == "last":
        steps = [{"name": "A"}, {"name": "B", "conn": "next", **loop, "inside": rng.choice(["next", "strict"])}]
    elif style == "greedy head":
        steps = [
            {"name": "A", "lo": rng.choice([1, 2]), "hi": None, "inside": "next", "greedy": True},
            {"name": "B", "conn": "next"},
        ]
    else:
        steps = [{"name": "A", **loop, "lo": max(1, loop["lo"]), "inside": "strict"}, {"name": "B", "conn": "strict"}]
    return cep_case(
        rng, steps, letters_of(names_of(steps)), after=rng.choice(["none", *skips(rng, steps)]), overlap=0.0, length=20
    )


def cep_free_loop(rng: random.Random) -> Case:
    """Relaxed loops without greedy(), and rows that fit both the loop and the step after it."""
    loop = rng.choice([{"lo": 1, "hi": None}, {"lo": 0, "hi": None}, {"lo": 1, "hi": 3}, {"lo": 0, "hi": 1}])
    steps = [{"name": "A"}, {"name": "B", "conn": "next", **loop}, {"name": "C", "conn": "next"}]
    greedy = loop["hi"] != 1 and rng.random() < 0.3
    steps[1]["greedy"] = greedy
    return cep_case(
        rng, steps, letters_of("ABC"), after="none", overlap=0.3 if greedy else 0.1, length=18, within=rng.choice([0, 8])
    )


def cep_combinations(rng: random.Random) -> Case:
    """allowCombinations: every subset of the rows."""
    hi = rng.choice([None, 2, 3])
    steps = [{"name": "A"}, {"name": "B", "conn": "any", "inside": "any", "lo": 1, "hi": hi}, {"name": "C", "conn": "any"}]
    steps = steps[: rng.choice([2, 3])]
    return cep_case(rng, steps, letters_of(names_of(steps)), after="none", within=rng.choice([5, 7]), length=16, overlap=0.2)


def cep_loop_negation(rng: random.Random) -> Case:
    """A negation behind a loop."""
    steps = [{"name": "A"}, {"name": "B", "conn": "next", "lo": rng.choice([1, 2]), "hi": None, "greedy": True}]
    steps.append({"name": "C", "conn": "next", "nots": ["N"]})
    return cep_case(rng, steps, letters_of("ABCN"), after="none", overlap=0.0, length=20)


def cep_group(rng: random.Random) -> Case:
    """Groups repeated a fixed number of times."""
    conn, within_group = rng.choice(["next", "strict", "any"]), rng.choice(["next", "strict"])
    group = [{"name": "B"}, {"name": "C", "conn": within_group}]
    n = rng.choice([1, 2, 2, 3])
    steps = [{"name": "A"}, {"group": group, "conn": conn, "inside": conn, "lo": n, "hi": n}]
    if rng.random() < 0.5:
        steps.append({"name": "D", "conn": "next"})
    letters = letters_of("ABCD" if len(steps) == 3 else "ABC")
    return cep_case(rng, steps, letters, after="none", within=12, length=22)


def cep_missed_skip(rng: random.Random) -> Case:
    """Skipping to a symbol that is the first row or may be unbound."""
    if rng.random() < 0.5:
        steps = [{"name": "A", "lo": 0, "hi": 1}, {"name": "B", "conn": "any"}, {"name": "C", "conn": "any"}]
        after = f"to {rng.choice(['first', 'last'])} B"
    else:
        steps = [{"name": "A"}, {"name": "B", "conn": "next", "lo": 0, "hi": 1}, {"name": "C", "conn": "any"}]
        after = f"to {rng.choice(['first', 'last'])} B"
    return cep_case(rng, steps, letters_of(names_of(steps)), after=after, length=16, overlap=0.0, within=8)


def skips(rng: random.Random, steps: list[Step]) -> list[str]:
    sure = [s["name"] for s in steps[1:] if s.get("lo", 1)]
    named = [f"to {rng.choice(['first', 'last'])} {rng.choice(sure)}"] if sure else []
    return ["past last row", "to next row", *named]


def cep_case(
    rng: random.Random,
    steps: list[Step],
    conditions: dict[str, Any],
    *,
    after: str,
    within: int | None = None,
    overlap: float = 0.15,
    length: int = 26,
    end_nots: list[str] | None = None,
) -> Case:
    letters = "".join(name.lower() for name in conditions)
    events = stream(rng, letters, rng.randint(length - 8, length), rng.choice([1, 2, 2]), overlap)
    limit = rng.choice([0, 0, 5, 8]) if within is None else within
    return case(steps, conditions, events, after=after, sql=False, within=limit, end_nots=end_nots)


FAMILIES: list[tuple[str, Callable[[random.Random], Case], int]] = [
    ("sql-plain", sql_plain, 60),
    ("sql-overlap", sql_overlap, 35),
    ("sql-greedy-overlap", sql_greedy_overlap, 25),
    ("sql-undefined", sql_undefined, 12),
    ("sql-navigation", sql_navigation, 30),
    ("sql-aggregates", sql_aggregates, 25),
    ("sql-anchors", sql_anchors, 4),
    ("sql-missed-skip", sql_missed_skip, 3),
    ("cep-sequence", cep_sequence, 35),
    ("cep-iterative", cep_iterative, 15),
    ("cep-negation", cep_negation, 20),
    ("cep-negation-overlap", cep_negation_overlap, 12),
    ("cep-last-negation", cep_last_negation, 14),
    ("cep-loop-last-negation", cep_loop_last_negation, 8),
    ("cep-not-next", cep_not_next, 3),
    ("cep-loop", cep_loop, 30),
    ("cep-free-loop", cep_free_loop, 15),
    ("cep-combinations", cep_combinations, 10),
    ("cep-loop-negation", cep_loop_negation, 6),
    ("cep-group", cep_group, 12),
    ("cep-missed-skip", cep_missed_skip, 8),
]
