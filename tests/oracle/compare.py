"""Compares Reprise with Flink, case by case; scripts/oracle calls it before and after Flink runs.

python -m tests.oracle.compare write CASES      the cases as FlinkOracle.java reads them
python -m tests.oracle.compare check RESULTS    the verdict on what it found; exit code 1 if anything is unexplained
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cep import engine
from tests.oracle import model
from tests.oracle.cases import Case, all_cases, example, letters_of, match_recognize, query

DIFFERENCES = yaml.safe_load((Path(__file__).parent / "differences.yaml").read_text())
SHOWN = 10  # unexplained cases printed in full
EQUAL, EXPLAINED, UNEXPLAINED = "equal", "explained", "unexplained"


@dataclass(frozen=True)
class Verdict:
    kind: str
    reasons: tuple[str, ...] = ()
    told: str = ""


def main() -> int:
    listed = [entry["name"] for entry in DIFFERENCES["differences"]]
    assert sorted(listed) == sorted(model.QUIRKS), "every switch of the model has its entry in differences.yaml"
    cases = [*all_cases(), *examples()]
    if sys.argv[1] == "write":
        lines = [{"id": case["id"], **case["flink"]} for case in cases] + refused()
        Path(sys.argv[2]).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return 0
    results = {line["id"]: line for line in map(json.loads, Path(sys.argv[2]).read_text().splitlines())}
    verdicts = {case["id"]: judge(case, results[case["id"]]) for case in cases}
    return report(cases, verdicts, refusals(results))


def examples() -> list[Case]:
    """The examples of the listed differences, with what each side is said to give."""
    made = []
    for number, entry in enumerate(DIFFERENCES["differences"], 1):
        told = dict(entry["example"])
        expected = {side: sorted(map(_read, told.pop(side))) for side in ("flink", "reprise")}
        named = {"id": f"example-{number}", "family": "examples", "shows": entry["name"], "expected": expected}
        made.append({**named, **example(**told)})
    return made


def _read(match: str) -> model.Bound:
    return tuple((word[0], int(word[1:])) for word in match.split())


# One case


def judge(case: Case, result: dict[str, Any]) -> Verdict:
    """The model stands for LANGUAGE.md: Reprise has to agree with it, and it has to know why Flink does not."""
    expected = model.matches(case["model"])
    try:
        ours = sorted(map(tuple, engine.matches(case["reprise"])))
    except Exception as failure:  # whatever it is, it is this case's verdict and not the end of the run
        return Verdict(UNEXPLAINED, told=f"Reprise fails: {failure!r}")
    if ours != expected:
        return Verdict(UNEXPLAINED, told=f"Reprise {_only(ours, expected)}; the model {_only(expected, ours)}")
    if "error" in result:
        known = [entry["name"] for entry in DIFFERENCES["failures"] if entry["error"] in result["error"]]
        return Verdict(EXPLAINED if known else UNEXPLAINED, tuple(known), f"Flink fails: {result['error']}")
    theirs = flink_matches(result)
    told = f"Reprise {_only(ours, theirs)}; Flink {_only(theirs, ours)}"
    if "expected" in case and case["expected"] != {"flink": theirs, "reprise": ours}:
        return Verdict(UNEXPLAINED, told=f"not what differences.yaml says: {told}")
    if model.matches(case["model"], frozenset(model.QUIRKS), frozenset(theirs)) != theirs:
        return Verdict(UNEXPLAINED, told=told)
    if ours == theirs:
        return Verdict(EQUAL)
    reasons = _smallest(case, theirs)
    if case.get("shows", reasons[0]) not in reasons:
        return Verdict(UNEXPLAINED, told=f"an example of {case['shows']!r}, but what explains it is {reasons}")
    return Verdict(EXPLAINED, reasons, told)


def _smallest(case: Case, theirs: list[model.Bound]) -> tuple[str, ...]:
    for size in range(1, len(model.QUIRKS) + 1):
        for quirks in itertools.combinations(model.QUIRKS, size):
            if model.matches(case["model"], frozenset(quirks), frozenset(theirs)) == theirs:
                return quirks
    raise AssertionError(case["id"])


def _only(these: list[model.Bound], others: list[model.Bound]) -> str:
    more = (Counter(these) - Counter(others)).elements()
    return "only: " + (", ".join(" ".join(f"{s}{sn}" for s, sn in match) for match in more) or "nothing")


def flink_matches(result: dict[str, Any]) -> list[model.Bound]:
    found = [[word.split(":") for word in match.split()] for match in result["matches"]]
    return sorted(tuple(sorted(((s, int(sn)) for s, sn in match), key=lambda b: b[1])) for match in found)


# Patterns that Flink refuses


def refused() -> list[dict[str, Any]]:
    lines = []
    for number, entry in enumerate(DIFFERENCES["refused"], 1):
        sql = match_recognize(["A"], entry["pattern"], letters_of("ABC"), "to next row", 0)
        sql = re.sub("DEFINE .*[)]", f"DEFINE {entry['define']})", sql) if "define" in entry else sql
        lines.append({"id": f"refused-{number}", "symbols": ["A"], "sql": sql, "stream": [[1, 1000, "x", "a", 0]]})
    return lines


def refusals(results: dict[str, Any]) -> list[str]:
    """Those that Flink does not refuse, or not for the reason in the list."""
    wrong = []
    for number, entry in enumerate(DIFFERENCES["refused"], 1):
        error = results[f"refused-{number}"].get("error", "no error")
        if entry["error"] not in error:
            wrong.append(f"{entry['pattern']}: {error}")
    return wrong


# The verdict on all of them


def report(cases: list[Case], verdicts: dict[str, Verdict], wrong: list[str]) -> int:
    print(f"{'':24}{'cases':>8}{EQUAL:>8}{EXPLAINED:>11}{UNEXPLAINED:>13}")
    for family in [*dict.fromkeys(case["family"] for case in cases), "all"]:
        mine = [verdicts[case["id"]].kind for case in cases if family in (case["family"], "all")]
        print(f"{family:24}{len(mine):>8}{mine.count(EQUAL):>8}{mine.count(EXPLAINED):>11}{mine.count(UNEXPLAINED):>13}")
    print(f"\n{len({query(case) for case in cases})} different patterns. Differences, all in tests/oracle/differences.yaml:")
    reasons = Counter(reason for verdict in verdicts.values() for reason in verdict.reasons)
    for reason, count in reasons.most_common():
        print(f"  {count:4}  {reason}")
    right = len(DIFFERENCES["refused"]) - len(wrong)
    print(f"  {right:4}  patterns that Flink refuses and Reprise has")
    unexplained = [case for case in cases if verdicts[case["id"]].kind == UNEXPLAINED]
    for case in unexplained[:SHOWN]:
        told = case["reprise"]
        rows = " ".join(f"{e['sn']}{e['key']}:{e['letters']}" for e in told["stream"])
        print(f"\n{case['id']}: PATTERN ({told['pattern']}) {told['define']}, within {told['within']}, {told['after_match']}")
        print(f"  rows {rows}\n  {verdicts[case['id']].told}")
    for line in wrong:
        print(f"\nFlink was expected to refuse {line}")
    print(f"\n{len(cases) - len(unexplained) + right} passed, {len(unexplained) + len(wrong)} failed")
    return 1 if unexplained or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
