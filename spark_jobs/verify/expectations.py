"""Great Expectations, made to fail closed: suites as YAML files, run over small tables of facts.

A suite sees one row per landing partition, or one row per complex event, never the raw log; so it costs the
same for a thousand events and for a billion. An expectation that Great Expectations does not know is dropped by
it in silence; here that is an error (FACTS.md, "It fails open").
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import yaml

from spark_jobs.errors import RepriseError

SUITES = Path(__file__).resolve().parents[2] / "expectations"


@dataclass(frozen=True)
class Check:
    """One expectation and whether it was met."""

    expectation: str
    met: bool
    detail: str


class Suite:
    """A suite in a process of its own, started early: loading Great Expectations takes ten seconds of CPU, which a
    job spends better on its own work."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.wanted = len(_read(file))
        environment = {**os.environ, "GX_ANALYTICS_ENABLED": "false"}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark_jobs.verify.expectations", str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
        )  # fmt: skip

    def check(self, rows: pa.Table) -> list[Check]:
        """All expectations over `rows`, as often as asked. Whatever kept one from being judged is an error, not a pass."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(sink.getvalue())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; why, its last words say
        answer = self._process.stdout.readline()
        if not answer:
            raise RepriseError(f"{self.file}: the suite did not run: {self._last_words()}")
        checks = [Check(**check) for check in json.loads(answer)]
        if len(checks) != self.wanted:
            raise RepriseError(f"{self.file}: {self.wanted} expectations, {len(checks)} results; the suite proves nothing")
        return checks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


def _main(file: Path) -> None:
    """The suite's own process: facts as Arrow streams on stdin, for each the results as a line of JSON on stdout."""
    logging.disable(logging.WARNING)
    for engine in ("pyspark", "sqlalchemy"):  # only pandas is used here; not loading these saves 3 of 10 seconds
        # None is how Python marks a module as not importable; the stubs know modules only.
        sys.modules[engine] = None  # type: ignore[assignment]
    import great_expectations as gx
    from great_expectations import expectations as known

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    suite = gx.ExpectationSuite(name=file.stem)
    for entry in _read(file):
        kind = getattr(known, _class_name(entry["type"]), None)
        if kind is None:
            raise SystemExit(f"Great Expectations has no '{entry['type']}'")
        suite.add_expectation(kind(**entry.get("kwargs", {})))
    while True:
        rows = pa.ipc.open_stream(sys.stdin.buffer).read_pandas()
        outcome = context.data_sources.pandas_default.read_dataframe(rows).validate(suite)
        sys.stdout.write(json.dumps([asdict(_check(result)) for result in outcome.results]) + "\n")
        sys.stdout.flush()


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


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
