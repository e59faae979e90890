"""Places: the pipelines of an installation, and where the landing files, the lake and the drills of each are.

A pipeline file in the pipelines folder is all it takes. DAG files and the page ask here, so nothing heavy is imported and no
table is read; whether a file makes sense is for `load_pipeline` to say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from spark_jobs.errors import PipelineError

ROOT = Path(__file__).resolve().parents[1]
# A name is part of folders, of DAG ids and of addresses.
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
# When a landing folder is looked at: cron, or one of its short forms.
SCHEDULE = re.compile(r"@(hourly|daily|weekly|monthly)|[0-9*/,-]+( [0-9*/,-]+){4}")
NO_SCHEDULE = "'schedule' is no cron expression; write five fields like '*/10 * * * *', or @hourly, @daily, @weekly, @monthly"
# Larger files than this are not pipelines; the bound keeps hostile YAML from exhausting memory.
MAX_FILE_BYTES = 1_000_000


class Place(NamedTuple):
    """One pipeline of the installation."""

    name: str
    file: Path
    landing: Path
    lake: Path
    schedule: str | None  # when its landing folder is looked at; None: when somebody says so


class Misplaced(NamedTuple):
    """A file of the pipelines folder that gives no pipeline, and why."""

    file: Path
    problem: str


def pipelines_folder() -> Path:
    return _folder("REPRISE_PIPELINES", ROOT / "pipelines")


def drills_folder() -> Path:
    return _folder("REPRISE_DRILLS", ROOT / ".local" / "drills")


def jobs_folder() -> Path:
    """What a job and a task that does not wait for it share; on a cluster, a folder that all machines see."""
    return _folder("REPRISE_JOBS", ROOT / ".local" / "jobs")


def places() -> list[Place]:
    return [place for place in _looked_at() if isinstance(place, Place)]


def misplaced() -> list[Misplaced]:
    return [place for place in _looked_at() if isinstance(place, Misplaced)]


def place_of(name: str) -> Place:
    """The pipeline of this name; names come from requests too."""
    for place in places():
        if place.name == name:
            return place
    raise PipelineError(f"no pipeline '{name[:64]}' in {pipelines_folder()}. There are: {', '.join(p.name for p in places())}")


def _looked_at() -> Iterator[Place | Misplaced]:
    seen: dict[str, Path] = {}
    folder = pipelines_folder()
    for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            name, schedule = _said_in(file)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, PipelineError) as error:
            yield Misplaced(file, str(error).split("\n", 1)[0])
            continue
        if name in seen:
            yield Misplaced(file, f"it is called '{name}', as is {seen[name].name}. Give one of them another name.")
            continue
        seen[name] = file
        landing = _folder("REPRISE_LANDING", ROOT / ".local" / "landing") / name
        lake = _folder("REPRISE_LAKES", ROOT / ".local" / "lakes") / name
        yield Place(name, file, landing, lake, schedule)


def _said_in(file: Path) -> tuple[str, str | None]:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise PipelineError(f"larger than {MAX_FILE_BYTES:,} bytes, which no pipeline is")
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise PipelineError("it has no 'name' of small letters, digits and _, starting with a letter")
    schedule = document.get("schedule")
    if schedule is not None and not (isinstance(schedule, str) and SCHEDULE.fullmatch(schedule)):
        raise PipelineError(NO_SCHEDULE)
    return name, schedule


def _folder(variable: str, default: Path) -> Path:
    return Path(os.environ.get(variable) or default)
