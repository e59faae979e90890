"""Tables on the screen show data, and never obey it."""

from __future__ import annotations

import pytest

from spark_jobs.console import LONGEST_CELL, table


def test_a_very_long_value_is_cut_and_says_how_long_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table("matches", ["key"], [["K" * 100_000], ["short"]])
    said = capsys.readouterr().out
    assert said.count("K") == LONGEST_CELL
    assert "(100,000characters)" in "".join(said.split())
    assert "short" in said


def test_a_value_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table("matches", ["key"], [["a\x1b[2Jb\x00c\x9b31m"], ["<script>"], ["[red]x[/red]"]])
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert r"a\x1b[2Jb\x00c\x9b31m" in said
    assert "<script>" in said
    assert "[red]x[/red]" in said
