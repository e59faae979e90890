"""Values as a browser can take them: plain, bounded, and never rounded."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

from spark_jobs.places import ROOT

# What a person reads of one value; more is cut, and said.
LONGEST_TEXT = 2_000
# Beyond this, JavaScript rounds whole numbers.
LARGEST_EXACT = 2**53


def plain(value: Any) -> Any:
    """A value of a table as JSON; what JSON cannot say exactly becomes text."""
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) <= LARGEST_EXACT else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dt.datetime():
            return moment(value)
        case dt.date() | Decimal():
            return str(value)
        case bytes():
            return f"{len(value):,} bytes"
        case list() | tuple():
            return [plain(one) for one in value]
        case _:
            return cut(str(value))


def moment(at: dt.datetime | int | None) -> str | None:
    """A time as ISO 8601 in UTC; a number counts microseconds."""
    if isinstance(at, int):
        at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=at)
    return None if at is None else at.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"


def shown(path: Path) -> str:
    """A path for people: from the project folder on where it lies there."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def told(error: Exception, *folders: Path) -> str:
    """The first line of an error, without the paths of this machine."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    for folder in (*folders, ROOT):
        text = text.replace(f"{folder}/", "").replace(str(folder), folder.name)
    return cut(text)
