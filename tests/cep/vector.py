"""The examples under tests/cep/vectors/, read into queries, events and expectations. Their README says what the fields mean."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tests.cep.oracle import Case, Event

FOLDER = Path(__file__).parent / "vectors"
EVENT = re.compile(r"(?:(?P<key>\w+):)?(?P<letters>[a-z]+)(?P<number>\d*)(?:@(?P<ts>\d+))?(?:=(?P<v>-?\d+))?")
WINDOWS = [
    (re.compile(r"ROWS (?P<size>\d+)(?: SLIDE (?P<slide>\d+))?"), "count"),
    (re.compile(r"ROWS (?P<size>\d+)(?: SLIDE (?P<slide>\d+))? PER KEY"), "keyed"),
    (re.compile(r"RANGE (?P<size>\d+)(?: SLIDE (?P<slide>\d+))?"), "time"),
    (re.compile(r"OPEN WHEN (?P<open>.*?)(?: CLOSE WHEN (?P<close>.*?))? FOR (?P<size>\d+)(?P<rows> ROWS)?"), "opened"),
]
OPTIONS = {"within", "within_steps", "after", "all_runs", "timed_out", "complete", "define"}
OTHERS = {"name", "pattern", "stream", "window", "subset", "measures", "rows", "matches", "values", "output", "refused"}


@dataclass(frozen=True)
class Expected:
    """One match: the names of its rows, and what else the example says about it (None: nothing)."""

    rows: tuple[str, ...]
    x: int | None = None
    y: int | None = None
    by: str | None = None  # the name of an event, a deadline as @7, or the end
    symbols: tuple[str, ...] | None = None
    timed_out: bool = False


@dataclass(frozen=True)
class Vector:
    """`times` are the time stamps as written; an event's own `ts` is stream time."""

    group: str
    name: str
    case: Case
    events: list[Event]
    times: tuple[int, ...]
    matches: list[Expected] | None
    measures: dict[str, str] = field(default_factory=dict)
    values: list[dict[str, Any]] | None = None
    rows: str = "one"  # or all: "all", "all omit", "all unmatched"
    output: list[dict[str, Any]] | None = None  # "row" is the name of the event; the rest are measures
    refused: str | None = None

    def prefix(self, count: int) -> Vector:
        return replace(self, events=self.events[:count], times=self.times[:count])

    def event(self, name: str) -> Event:
        (event,) = [e for e in self.events if e.name == name]
        return event


def load_vectors() -> list[Vector]:
    return [_vector(path.stem, entry) for path in sorted(FOLDER.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]


def _vector(group: str, entry: dict[str, Any]) -> Vector:
    if unknown := set(entry) - OPTIONS - OTHERS:
        raise ValueError(f"{group}: {entry['name']}: nobody knows {sorted(unknown)}")
    events, times = _stream(entry.get("stream", ""))
    case = Case(
        pattern=entry["pattern"],
        subsets={name: tuple(members) for name, members in entry.get("subset", {}).items()},
        **_window(entry.get("window")),
        **{name: entry[name] for name in OPTIONS & set(entry)},
    )
    return Vector(
        group=group,
        name=entry["name"],
        case=case,
        events=events,
        times=times,
        matches=[_expected(text) for text in entry["matches"]] if "matches" in entry else None,
        measures=entry.get("measures", {}),
        values=entry.get("values"),
        rows=entry.get("rows", "one"),
        output=entry.get("output"),
        refused=entry.get("refused"),
    )


def _stream(text: str) -> tuple[list[Event], tuple[int, ...]]:
    events: list[Event] = []
    times: list[int] = []
    for sn, token in enumerate(text.split(), 1):
        found = EVENT.fullmatch(token)
        if found is None:
            raise ValueError(f"not an event: {token}")
        times.append(int(found["ts"]) if found["ts"] else (times[-1] + 1 if times else 1))
        v = int(found["v"]) if found["v"] else None
        name = found["letters"] + found["number"]
        events.append(Event(sn, max(times), found["key"] or "x", found["letters"], v, name))
    return events, tuple(times)


def _window(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    for regex, kind in WINDOWS:
        if found := regex.fullmatch(text):
            parts = found.groupdict()
            size = int(parts["size"])
            if kind != "opened":
                return {"kind": kind, "size": size, "slide": int(parts["slide"] or size)}
            opening = {"open_when": parts["open"], "close_when": parts["close"], "by_rows": bool(parts["rows"])}
            return {"kind": kind, "size": size, **opening}
    raise ValueError(f"not a window: {text}")


def _expected(text: str) -> Expected:
    names, *remarks = [part.strip() for part in text.split("|")]
    rows = () if names == "()" else tuple(names.split())
    x, y, by, symbols, timed_out = None, None, None, None, False
    for remark in remarks:
        if remark == "timed out":
            timed_out = True
        elif remark.startswith("by "):
            by = remark[3:]
        elif remark.startswith("as "):
            symbols = tuple(remark[3:].split())
        else:
            x, y = (int(number) for number in remark.split(":"))
    return Expected(rows, x, y, by, symbols, timed_out)
