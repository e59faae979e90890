"""The words that pipelines, the builder and SQL share: durations, windows, and where to go on after a match."""

from __future__ import annotations

import re
from typing import TypedDict, Unpack

from spark_jobs.cep.operator import SKIPS, AfterMatch
from spark_jobs.cep.units import SQL_UNITS, UNITS
from spark_jobs.cep.windows import Window
from spark_jobs.errors import suggest

# Larger than any use, and far from where 64-bit arithmetic with time stamps would overflow.
LONGEST = 365_250 * UNITS["d"]
# A count beyond this is a slip, and far from where 64-bit positions would overflow.
LARGEST_COUNT = 2**53
# A number with more digits than this is longer than LONGEST in every unit, and Python need not even read it.
_DIGITS = 20


def duration(text: str) -> int:
    """`10 min` in microseconds."""
    found = re.fullmatch(r"\s*([0-9]+)\s*([A-Za-z]*)\s*", text)
    if not found or not found[1].strip("0"):
        raise ValueError(f"'{text}' is not a duration; write a positive number and a unit, such as '10 min'")
    if not found[2]:
        raise ValueError(f"in '{text}' a unit is missing{units_hint(found[1])}")
    if found[2] not in UNITS:
        meant = [unit for unit in ("ms", "min", "s", "h", "d") if found[2].lower().startswith(unit)]
        hint = f"; did you mean '{meant[0]}'?" if meant else suggest(found[2], list(UNITS))
        raise ValueError(f"in '{text}' unit '{found[2]}' is not known{hint}")
    return _bounded(found[1], UNITS[found[2]], text)


def interval(number: str, unit: str) -> int:
    """INTERVAL 'number' unit, in microseconds; the unit in singular or plural."""
    if not re.fullmatch(r"[0-9]+", number) or not number.strip("0"):
        raise ValueError(f"INTERVAL '{number}' is not a positive whole number")
    word = unit.upper().removesuffix("S")
    if word in ("MONTH", "YEAR", "QUARTER"):
        raise ValueError(f"a {word} has no fixed length; write the interval in days")
    if word not in SQL_UNITS:
        raise ValueError(f"unit '{unit}' is not known{suggest(word, list(SQL_UNITS))}")
    return _bounded(number, SQL_UNITS[word], f"{number} {unit}")


def interval_text(micros: int) -> str:
    """The SQL interval, in the largest unit that keeps it whole."""
    for unit, size in reversed(SQL_UNITS.items()):
        if micros % size == 0 and unit != "WEEK":
            return f"INTERVAL '{micros // size}' {unit}"
    raise AssertionError("every whole number is one of microseconds")


def skip_policy(text: str) -> AfterMatch:
    """'to first A' and the like, as pipelines and the builder write them."""
    words = text.split()
    whole, first = " ".join(words).lower(), " ".join(words[:2]).lower()
    for kind in SKIPS:
        if kind in ("to first", "to last") and kind == first:
            if len(words) != 3:
                raise ValueError(f"'{text}' needs one symbol, as in '{kind} A'")
            return AfterMatch(kind, words[2])
        if kind == whole:
            return AfterMatch(kind)
    raise ValueError(f"'{text}' is not supported{suggest(whole, list(SKIPS))}")


class WindowWords(TypedDict, total=False):
    """How pipelines and the builder say a window."""

    count: int | None
    time: str | None
    slide: int | str | None
    per_key: bool
    open_when: str | None
    close_when: str | None
    rows: int | None


def window_of(**words: Unpack[WindowWords]) -> Window:
    """A window from the words of pipelines and the builder."""
    unknown = sorted(set(words) - set(WindowWords.__annotations__))
    if unknown:
        raise ValueError(f"'{unknown[0]}' is not known{suggest(unknown[0], list(WindowWords.__annotations__))}")
    count, time, slide, per_key = words.get("count"), words.get("time"), words.get("slide"), words.get("per_key", False)
    open_when, close_when, rows = words.get("open_when"), words.get("close_when"), words.get("rows")
    kinds = "a window is either {count: 1000, slide: 50} or {time: 1 h, slide: 5 min} or {open_when: .., rows: 10}"
    if open_when is not None:
        if (rows is None) == (time is None) or count is not None:
            raise ValueError("a window that a predicate opens needs either rows: 10 or time: 5 min, so that it ends")
        if slide is not None or per_key:
            raise ValueError("a window that a predicate opens does not slide: every row that opens one has its own, per key")
        size = _positive(rows, "rows") if rows is not None else duration(str(time))
        return Window("opened", size, size, open_when, close_when, by_rows=rows is not None)
    if close_when is not None or rows is not None:
        raise ValueError(f"close_when and rows belong to open_when; {kinds}")
    if (count is None) == (time is None):
        raise ValueError(kinds)
    if count is not None:
        if isinstance(slide, str) or (slide is not None and not 1 <= slide <= LARGEST_COUNT):
            raise ValueError(f"a count window slides by a positive number of events, not by '{slide}'")
        return Window("keyed" if per_key else "count", _positive(count, "count"), slide or count)
    if per_key:
        raise ValueError("only a count window can count per key; time is the same for all keys")
    if isinstance(slide, int):
        raise ValueError(f"a time window slides by a duration, not by {slide}{units_hint(str(slide))}")
    size = duration(str(time))
    return Window("time", size, duration(slide) if slide else size)


def _positive(number: int, what: str) -> int:
    if isinstance(number, bool) or not 1 <= number <= LARGEST_COUNT:
        raise ValueError(f"{what} is a positive number of events, not {number}")
    return number


def units_hint(number: str) -> str:
    return f"; write '{number} ms' or another of {', '.join(UNITS)}"


def _bounded(number: str, unit: int, text: str) -> int:
    if len(number.lstrip("0")) > _DIGITS or int(number) * unit > LONGEST:
        raise ValueError(f"'{text}' is longer than 1,000 years; leave it out for no limit")
    return int(number) * unit
