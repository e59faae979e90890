"""Great Expectations, made to fail closed: suites as YAML files, run over small tables of facts.

A suite sees one row per landing partition or per operator, never the raw log: the facts are computed by our own tasks
in their one pass over the data, so a suite costs the same for a thousand events and for a billion, and no job per
expectation. What Great Expectations would let pass in silence (an expectation it does not know, an empty suite, no
facts at all) is an error here (FACTS.md, "It fails open").
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, Self

import pyarrow as pa
import yaml

from schemas import validations
from spark_jobs.errors import RepriseError

if TYPE_CHECKING:  # the suites' own process has no use for deltalake
    from spark_jobs.lake.tables import Lake

SUITES = Path(__file__).resolve().parents[2] / "expectations"
KEPT = "_expectations"  # the folder of a lake that holds results and Data Docs


@dataclass(frozen=True)
class Check:
    """One expectation and whether it was met."""

    expectation: str
    met: bool
    detail: str


@dataclass(frozen=True)
class _Definition:
    """A suite as its file says it. Results name the rows they complain about by the columns `identified_by`."""

    name: str
    expectations: list[dict[str, Any]]
    identified_by: list[str]


class Server(Protocol):
    """The process of suites, as `Suite` uses it."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def kill(self) -> None:
        """End it."""

    def wait(self) -> int:
        """Its exit code, when it has ended."""


def _program(files: list[Path], errors: IO[bytes]) -> Server:
    """Python anew."""
    # Nothing is reported to anybody. 1.24.1 has no analytics left to switch off; versions that have them ask this.
    environment = {**os.environ, "GX_ANALYTICS_ENABLED": "false"}
    return subprocess.Popen(
        [sys.executable, "-m", "spark_jobs.verify.expectations", *map(str, files)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment,
    )  # fmt: skip


# How the process starts; who has loaded Great Expectations already puts something quicker here.
start: Callable[[list[Path], IO[bytes]], Server] = _program


class Suite:
    """One or several suites in a process of their own, started early: loading Great Expectations takes ten seconds of
    CPU, which a job spends better on its own work."""

    def __init__(self, *files: Path) -> None:
        self._wanted = {file.stem: len(_read(file).expectations) for file in files}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self._process = start(list(files), self._errors)

    def check(self, rows: pa.Table, *, of: str | None = None, lake: Lake | None = None, subject: str = "") -> list[Check]:
        """All expectations of the suite `of` (the only one, if it is) over `rows`, as often as asked.

        With a lake, the results are kept there under the name of the subject, met or not, before this returns. Whatever
        kept an expectation from being judged is an error, not a pass.
        """
        (name,) = [of] if of else self._wanted
        if not rows.num_rows:
            raise RepriseError(f"suite '{name}': there are no facts to judge, and no facts meet every expectation")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        answer = self._ask({"check": name}, sink.getvalue())
        checks = [Check(**check) for check in answer["checks"]]
        if lake is not None:
            _keep(lake, name, subject, checks, answer["result"])
            self.build_docs(lake)
        if len(checks) != self._wanted[name]:
            raise RepriseError(
                f"suite '{name}': {self._wanted[name]} expectations, {len(checks)} results; the suite proves nothing"
            )
        return checks

    def build_docs(self, lake: Lake) -> Path:
        """Data Docs of the results kept in the lake; what is built already stays."""
        self._ask({"docs": str(lake.root / KEPT)})
        return docs_index(lake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(BrokenPipeError):  # what was asked and never read
                if end is not None:
                    end.close()

    def _ask(self, question: dict[str, str], facts: bytes | pa.Buffer = b"") -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.write(facts)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; why, its last words say
        answer = self._process.stdout.readline()
        if not answer.endswith(b"\n"):
            raise RepriseError(f"{self._what()}: the suite did not run: {self._last_words()}")
        said: dict[str, Any] = json.loads(answer)
        return said

    def _what(self) -> str:
        return f"expectations ({', '.join(self._wanted)})" if self._wanted else "expectations"

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"no reason given, exit code {code}"


def build_docs(lake: Lake) -> Path:
    """The Data Docs of a lake, in a process for this alone; returns their index."""
    if not lake.root.is_dir():
        raise RepriseError(f"lake {lake.root} does not exist")
    with Suite() as process:
        return process.build_docs(lake)


def docs_index(lake: Lake) -> Path:
    """Where the Data Docs of a lake begin; the file exists as soon as a suite has run."""
    return lake.root / KEPT / "docs" / "index.html"


def judge_verdicts(suite: Suite, lake: Lake, subject: str, facts: pa.Table) -> list[Check]:
    """Do the verdicts agree with themselves? One row per operator; the columns are those of expectations/verdicts.yaml."""
    return suite.check(facts, of="verdicts", lake=lake, subject=subject)


def what_failed(checks: list[Check]) -> str:
    """The expectations that were not met, as part of a sentence; empty if all were."""
    failed = [check for check in checks if not check.met]
    if not failed:
        return ""
    examples = "; ".join(f"{check.expectation}: {check.detail}" for check in failed[:3])
    return f"{len(failed)} of {len(checks)} expectation(s) failed: {examples}"


def _file_name(suite: str) -> str:
    """A suite may be called anything a file can; its pages are links."""
    return re.sub(r"[^\w.-]", "_", suite)


def _keep(lake: Lake, suite: str, subject: str, checks: list[Check], result: dict[str, Any]) -> None:
    """The full result as a file, then its rows; a file without rows is what a crash in between leaves, and harmless."""
    at = dt.datetime.now(dt.UTC)
    run = f"{at:%Y%m%dT%H%M%S.%fZ}-{uuid.uuid4().hex[:8]}"  # sorts by time, and no two runs share it
    result["meta"] |= {"run_id": {"run_name": subject, "run_time": at.isoformat()}, "checks": [*map(asdict, checks)]}
    file = lake.root / KEPT / "results" / _file_name(suite) / f"{run}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1), encoding="utf-8")
    partial.rename(file)
    rows = [{"at": at, "run": run, "suite": suite, "subject": subject, **asdict(check)} for check in checks]
    lake.append("validations", pa.Table.from_pylist(rows, validations.SCHEMA))


def _read(file: Path) -> _Definition:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        wanted, identified_by = list(document["expectations"] or []), list(document.get("identified_by") or [])
        strange = [*_strange(document, "expectations", "identified_by")]
        strange += [key for entry in wanted for key in _strange(entry, "type", "kwargs", "description")]
    except FileNotFoundError:
        raise RepriseError(f"{file}: no such suite") from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise RepriseError(f"{file}: not a suite; it needs a list 'expectations': {error}") from None
    if not wanted:
        raise RepriseError(f"{file}: the suite is empty and would pass anything")
    if strange:
        raise RepriseError(f"{file}: nobody would look at '{strange[0]}'; an expectation has type, kwargs and description")
    return _Definition(file.stem, wanted, identified_by)


def _strange(entry: dict[str, Any], *known: str) -> list[str]:
    return [key for key in entry if key not in known]


# --- The suites' own process: all below runs in it alone ---


def load() -> None:
    """Load Great Expectations, which knows only pandas then: not loading the others saves 3 of 10 seconds."""
    for engine in ("pyspark", "sqlalchemy"):
        # None is how Python marks a module as not importable; the stubs know modules only.
        sys.modules[engine] = None  # type: ignore[assignment]
    for name in ("scipy.stats", "altair"):  # one expectation of sixty needs them, and they take a third of the time
        sys.modules.setdefault(name, _Later(name))
    import great_expectations  # noqa: F401
    from tqdm.std import TqdmDefaultWriteLock

    TqdmDefaultWriteLock.mp_lock = None  # its progress bars, which nobody sees, would start another process to share a lock


class _Later(ModuleType):
    """A module that is loaded when something of it is used. (`importlib.util.LazyLoader` loads when it is imported twice.)"""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        del sys.modules[self.__name__]
        self.__dict__.update(vars(importlib.import_module(self.__name__)))
        return self.__dict__[name]


def serve(files: list[Path]) -> None:
    """Questions as lines of JSON on stdin, facts behind them as Arrow streams; for each question a line of JSON on stdout."""
    # What a library prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    load()
    judges = {definition.name: _judge(definition) for definition in map(_read, files)}
    while question := sys.stdin.buffer.readline():
        asked = json.loads(question)
        if "docs" in asked:
            from spark_jobs.verify.docs import build

            build(Path(asked["docs"]))
            answer: dict[str, Any] = {}
        else:
            answer = judges[asked["check"]](sys.stdin.buffer)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _judge(definition: _Definition) -> Callable[[BinaryIO], dict[str, Any]]:
    """A function that reads facts and answers with the checks and the full result."""
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    suite = gx.ExpectationSuite(name=definition.name)
    for entry in definition.expectations:
        suite.add_expectation(_expectation(entry))
    form = {"result_format": "SUMMARY", "unexpected_index_column_names": definition.identified_by}
    if not definition.identified_by:
        del form["unexpected_index_column_names"]

    def judge(facts: BinaryIO) -> dict[str, Any]:
        rows = pa.ipc.open_stream(facts).read_pandas()
        batch = context.data_sources.pandas_default.read_dataframe(rows)
        outcome: Any = batch.validate(suite, result_format=form)
        kept = outcome.to_json_dict()
        return {"checks": [asdict(_check(result)) for result in kept["results"]], "result": kept}

    return judge


def _expectation(entry: dict[str, Any]) -> Any:
    from great_expectations import expectations as known

    # By name whatever its case: expect_column_kl_divergence_... is ExpectColumnKLDivergence...
    names = {name.lower(): name for name in dir(known) if name.startswith("Expect")}
    kind = getattr(known, names.get(str(entry["type"]).replace("_", ""), ""), None)
    if kind is None:
        raise SystemExit(f"Great Expectations has no '{entry['type']}'")
    try:
        return kind(**entry.get("kwargs", {}), description=entry.get("description"))
    except (TypeError, ValueError) as error:  # pydantic's errors have a line per mistake
        raise SystemExit(f"{entry['type']}: {' '.join(str(error).split())}") from None


def _check(result: dict[str, Any]) -> Check:
    name = _name(result["expectation_config"])
    if messages := _exceptions(result["exception_info"] or {}):
        return Check(name, False, messages[0][:200])
    return Check(name, bool(result["success"]), _detail(result["result"])[:200])


def _name(config: dict[str, Any]) -> str:
    """As in the file: type, column or columns, and for which rows."""
    asked = config["kwargs"]
    columns = [asked[key] for key in ("column", "column_A", "column_B") if key in asked] or asked.get("column_list", ["table"])
    name = f"{config['type']}({', '.join(columns)})"
    condition = asked.get("row_condition")
    if isinstance(condition, dict):  # Great Expectations keeps the text of a pandas condition in a wrapping
        condition = condition.get("pass_through_filter", condition)
    return f"{name} where {condition}" if condition else name


def _detail(result: dict[str, Any]) -> str:
    """What was observed, or how many rows are wrong and the first of them, by name where the suite gives them one."""
    if result.get("observed_value") is not None:
        return f"observed {result['observed_value']}"
    count = result.get("unexpected_count", 0)
    wrong = result.get("partial_unexpected_index_list") or result.get("partial_unexpected_list") or []
    rows = [", ".join(f"{k} {v}" for k, v in row.items()) if isinstance(row, dict) else str(row) for row in wrong[:3]]
    return f"{count} unexpected: {'; '.join(rows)}" if count else "none unexpected"


def _exceptions(info: dict[str, Any]) -> list[str]:
    """Great Expectations gives one exception, or one per metric that raised one."""
    entries = [info] if "raised_exception" in info else [entry for entry in info.values() if isinstance(entry, dict)]
    return [str(entry.get("exception_message")) for entry in entries if entry.get("raised_exception")]


if __name__ == "__main__":
    serve([Path(file) for file in sys.argv[1:]])
