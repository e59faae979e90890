"""What the documentation tells a reader to do is done here, in its order: files are written, commands run, outputs compared.

In a fenced block of `console`, a line that begins with `$` is a command, `-> 2` its exit code if that is not 0, and every other
line a part of what it prints. A block with `file=NAME` is a file.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.reference import TARGET, page

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "docs" / "tutorial.md", *(ROOT / "docs" / "howto").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    words: str
    printed: list[str]
    code: int


def commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        words, *printed = part.splitlines()
        codes = [int(line[3:]) for line in printed if line.startswith("-> ")]
        yield Command(words, [line for line in printed if not line.startswith("-> ")], codes[0] if codes else 0)


def run(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "REPRISE_PROJECT": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_happens(page: Path, tmp_path: Path) -> None:
    done = 0
    for kind, file, text in BLOCK.findall(page.read_text()):
        if file:
            target = tmp_path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        if kind != "console":
            continue
        for command in commands(text):
            ended = run(command.words, tmp_path)
            said = " ".join(ended.stdout.split())
            assert ended.returncode == command.code, f"{command.words}\n{ended.stdout}"
            for line in command.printed:
                assert " ".join(line.split()) in said, f"{command.words}: no '{line}' in\n{ended.stdout}"
            done += 1
    assert done


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_first_page_is_in_the_readme() -> None:
    assert "docs/tutorial.md" in (ROOT / "README.md").read_text()


def test_the_reference_is_that_of_the_code() -> None:
    assert page() == TARGET.read_text(), "make reference"


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    """The control: neither another output nor another exit code passes."""
    for block in ("$ echo one\ntwo\n", f"$ {shlex.quote(sys.executable)} -c 'raise SystemExit(2)'\n"):
        page = tmp_path / "page.md"
        page.write_text(f"```console\n{block}```\n")
        with pytest.raises(AssertionError):
            test_a_page_says_what_happens(page, tmp_path)
