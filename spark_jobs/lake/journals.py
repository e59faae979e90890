"""Journals: the file that each attempt writes its history to, by its number."""

from __future__ import annotations

import re
from pathlib import Path

from spark_jobs.lake.tables import Lake


def folder(lake: Lake) -> Path:
    return lake.root / "_journal"


def journal(lake: Lake, attempt: int) -> Path:
    return folder(lake) / f"{attempt:06}.jsonl"


def journals(lake: Lake) -> dict[int, Path]:
    """All there are, by attempt, in order."""
    return {int(file.stem): file for file in sorted(folder(lake).glob("*.jsonl")) if re.fullmatch(r"\d+", file.stem)}


def at_work(lake: Lake) -> set[int]:
    """The attempts that have come to a phase of their work."""
    return {attempt for attempt, file in journals(lake).items() if b'"kind": "phase"' in file.read_bytes()}
