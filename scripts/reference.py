"""Writes docs/reference.md from the code: commands, tables, faults and settings. `make reference`; a test compares."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import schemas
from spark_jobs import places
from spark_jobs.cli import COMMANDS, app
from spark_jobs.faults.catalogue import CATALOGUE
from spark_jobs.faults.phases import PHASES

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "reference.md"
# The comment beside a column, as the modules of `schemas` write it.
MEANING = re.compile(r'(?:required|pa\.field)\("(\w+)", .+?  # (.+)$', re.MULTILINE)


def page() -> str:
    parts = [
        "# Reference",
        "Made from the code by `make reference`; a test compares. The words of patterns are in [LANGUAGE.md](LANGUAGE.md), the "
        "keys of pipeline files in the [README](../README.md), what is guaranteed in [GUARANTEES.md](../GUARANTEES.md).",
        "## Commands",
        *_commands(),
        "## Tables",
        "A lake is a folder of Delta tables. Names and types are a contract: read them with any tool that reads Delta.",
        *_tables(),
        "## Faults",
        "`KIND:PHASE@BATCH[:OPERATOR][/SHARD][#REPLICA][*TIMES]`, or `KIND:SECONDSs` where it may strike at any time. "
        "[DRILLS.md](DRILLS.md) says how they are used.",
        _faults(),
        "Phases: " + ", ".join(f"`{phase}`" for phase in PHASES) + ".",
        "## Settings",
        _settings(),
    ]
    return "\n\n".join(parts) + "\n"


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for panel, functions in COMMANDS.items():
        yield f"### {panel}"
        for function in functions:
            command = group.commands[function.__name__.replace("_", "-")]
            rows = [_option(param) for param in command.params if param.name != "help" and not getattr(param, "hidden", False)]
            yield f"#### `reprise {command.name}`\n\n{_plain(inspect.cleandoc(command.help or ''))}\n\n" + _table(
                ["argument", "default", "meaning"], rows
            )


def _option(param: Any) -> list[str]:
    name = " ".join(f"`{opt}`" for opt in param.opts) if param.param_type_name == "option" else f"`{param.name.upper()}`"
    silent = any(param.default is nothing for nothing in (None, False)) or param.default in ("", ()) or callable(param.default)
    return [name, "needed" if param.required else ("" if silent else f"`{param.default}`"), _plain(param.help or "")]


def _plain(text: str) -> str:
    return re.sub(r"\[/?(bold|red|green|dim)\]", "", " ".join(text.split()) if "\n\n" not in text else text)


def _tables() -> Iterator[str]:
    for module_info in sorted(pkgutil.iter_modules(schemas.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"schemas.{module_info.name}")
        meaning = dict(MEANING.findall(inspect.getsource(module)))
        rows = [[f"`{field.name}`", f"`{_type(field.type)}`", meaning.get(field.name, "")] for field in _columns(module)]
        if rows:
            name, _, about = " ".join((module.__doc__ or "").split("\n\n")[0].split()).partition(": ")
            yield f"### {name}\n\n{about[:1].upper()}{about[1:]}\n\n" + _table(["column", "type", "meaning"], rows)


def _columns(module: Any) -> list[Any]:
    """Those that every lake has; tables with attributes or measures have these besides."""
    return [*getattr(module, "SCHEMA", getattr(module, "FIXED", [])), *getattr(module, "REVISIONS", [])]


def _type(type_: Any) -> str:
    return str(type_).partition("[us")[0].replace("element: ", "").replace("item: ", "")


def _faults() -> str:
    rows = [
        [f"`{kind.name}`", kind.group.value, kind.breaks, kind.heals, kind.needs.value or "nothing"]
        for kind in CATALOGUE.values()
    ]
    return _table(["kind", "group", "breaks", "how it heals", "needs"], rows)


def _settings() -> str:
    """The environment variables that say where things are."""
    source = inspect.getsource(places)
    found = re.findall(r'_folder\("(REPRISE_\w+)", ROOT / (.+?)\)', source)
    rows = [[f"`{name}`", "`" + "/".join(re.findall(r'"([^"]+)"', default)) + "`"] for name, default in found]
    return _table(["environment variable", "default, below the project folder"], sorted(rows))


def _table(columns: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)]) if rows else ""


if __name__ == "__main__":
    TARGET.write_text(page())
