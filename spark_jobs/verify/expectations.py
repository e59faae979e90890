"""Great Expectations, made to fail closed: suites as YAML files, run over small tables of facts.

A suite sees one row per landing partition, or one row per complex event, never the raw log; so it costs the
same for a thousand events and for a billion. An expectation that Great Expectations does not know is dropped by
it in silence; here that is an error (FACTS.md, "It fails open").
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from spark_jobs.errors import RepriseError

SUITES = Path(__file__).resolve().parents[2] / "expectations"


@dataclass(frozen=True)
class Check:
    """One expectation and whether it was met."""

    expectation: str
    met: bool
    detail: str


def run_suite(file: Path, rows: pd.DataFrame) -> list[Check]:
    """All expectations of a suite file over `rows`; an empty suite or an unknown expectation is refused."""
    wanted = _read(file)
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    import great_expectations as gx
    from great_expectations import expectations as known

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    suite = gx.ExpectationSuite(name=file.stem)
    for entry in wanted:
        kind = getattr(known, _class_name(entry["type"]), None)
        if kind is None:
            raise RepriseError(f"{file}: Great Expectations has no '{entry['type']}'; the suite was not run")
        try:
            suite.add_expectation(kind(**entry.get("kwargs", {})))
        except Exception as error:
            raise RepriseError(f"{file}: {entry['type']} cannot be built: {str(error).splitlines()[0]}") from error
    if len(suite.expectations) != len(wanted):
        raise RepriseError(f"{file}: {len(wanted)} expectations in the file, {len(suite.expectations)} loaded; the suite was not run")
    batch = context.data_sources.pandas_default.read_dataframe(rows)
    outcome = batch.validate(suite)
    checks = [_check(result) for result in outcome.results]
    if len(checks) != len(wanted):
        raise RepriseError(f"{file}: {len(wanted)} expectations, {len(checks)} results; the suite proves nothing")
    return checks


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        wanted = document["expectations"]
    except FileNotFoundError:
        raise RepriseError(f"{file}: no such suite") from None
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise RepriseError(f"{file}: not a suite; it needs a list 'expectations': {error}") from None
    if not wanted:
        raise RepriseError(f"{file}: the suite is empty and would pass anything")
    return list(wanted)


def _class_name(type_: str) -> str:
    return "".join(part.capitalize() for part in type_.split("_"))


def _check(result: Any) -> Check:
    config = result.expectation_config
    subject = config.kwargs.get("column", config.kwargs.get("column_list", "table"))
    if result.exception_info and result.exception_info.get("raised_exception"):
        return Check(f"{config.type}({subject})", False, str(result.exception_info.get("exception_message"))[:200])
    facts = {k: v for k, v in result.result.items() if k in ("observed_value", "unexpected_count", "partial_unexpected_list")}
    return Check(f"{config.type}({subject})", bool(result.success), str(facts)[:200])
