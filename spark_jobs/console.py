"""What the command line shows: progress while it works, tables at the end, errors without a stack trace."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

# A file or a pipe has no width; tables in it should not be folded to a small screen's.
_WIDTH = None if sys.stdout.isatty() else 200
OUT = Console(highlight=False, soft_wrap=True, width=_WIDTH)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)

# Where a watching process (a drill) wants to read along; every command below it appends its progress there.
PROGRESS_FILE = "REPRISE_PROGRESS"
# Set by whoever starts a command that must not outlive it.
WITH_PARENT = "REPRISE_WITH_PARENT"


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and new line: a terminal would obey them
LONGEST_CELL = 2000


def say(line: str) -> None:
    """One line of progress, on the screen or, under a drill, in its progress file."""
    line = " ".join(_COLOURS.sub("", line).split())  # an error of somebody else may have lines and colours
    target = os.environ.get(PROGRESS_FILE)
    if target:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} {line}\n")
    else:
        OUT.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {escape(line)}")


def table(title: str, columns: list[str], rows: list[list[object]]) -> None:
    """A small table; numbers to the right."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*[
            f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else escape(_cell(str(cell))) for cell in row
        ])
    OUT.print(shown)


def _cell(text: str) -> str:
    """What data may do to a screen: no more than fill a few lines. `--json` has all of it."""
    if len(text) > LONGEST_CELL:
        text = f"{text[:LONGEST_CELL]}... ({len(text):,} characters)"
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
