"""How tasks are run: on Spark, or inline in this process. Both take and return JSON texts, one per task.

Tasks do their own I/O, so nothing but these small texts crosses between driver, JVM and workers.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from spark_jobs.errors import RepriseError, SparkFailed, TrimmedEventNeeded
from spark_jobs.lake.tables import Lake

Task = Callable[[dict[str, Any]], dict[str, Any]]

INLINE = "inline"
TASK_TRIES = 4
_JVM_ENDS = 60.0  # seconds; it takes a tenth of one, and some where it leaves an archive of its classes
_ERROR = "reprise.error"
# What a driver can do something about keeps its type on the way.
_ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (TrimmedEventNeeded, FileNotFoundError)}

# A socket's path may have 107 bytes, and Spark's names for one take up to 46; below a longer folder TCP on loopback serves.
_LONGEST_SOCKET_FOLDER = 60

CLASS_ARCHIVE = Path(__file__).resolve().parents[1] / ".local" / "spark-classes.jsa"
# No performance data in the system's folder. JVMs only schedule, so they are tuned for a quick start, not for peak speed.
_JVM = "-XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# Columns of a batch are a few large pieces that come and go. By default both allocators, Arrow's and the C library's, give them
# back at once, and the kernel clears every page of them again: on virtual machines that takes up to half of the time.
_KEEP_PAGES = {
    "MIMALLOC_PURGE_DELAY": "-1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


class Runner(Protocol):
    """Runs one task per payload and returns the results in the same order."""

    def ready(self) -> None:
        """Wait until tasks can run at once."""

    def run(self, task: Task, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]: ...

    def here(self, task: Task, payload: dict[str, Any]) -> dict[str, Any]:
        """One task in this process, where it takes less time than a Spark job takes to start."""
        return task(payload)


class InlineRunner(Runner):
    """Tasks one after the other in this process: for tiny logs and for tests that kill hundreds of drivers."""

    def ready(self) -> None:
        """There is nothing to wait for."""

    def run(self, task: Task, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_answer(_over_the_wire(task)(json.dumps(payload))) for payload in payloads]


class SparkRunner(Runner):
    """One Spark task per payload. The RDD way in: no query planner, so a micro-batch costs 70 ms, not 170.

    The JVM starts in the background, so that the driver can load what it needs meanwhile.
    """

    def __init__(self, master: str, lake: Lake, name: str) -> None:
        self._master, self._log = master, _log_file(lake, name)
        self._starting = ThreadPoolExecutor(1, "spark")
        self._context = self._starting.submit(_started, master, lake, name)

    def ready(self) -> None:
        self.context()

    def run(self, task: Task, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        if not payloads:
            return []
        texts = [json.dumps(payload) for payload in payloads]
        context = self.context()
        try:
            answers = context.parallelize(texts, len(texts)).map(_over_the_wire(task)).collect()
        except Exception as error:  # py4j's errors have no common type with those of a broken connection
            raise SparkFailed(
                f"Spark did not finish its tasks: {_reason(error)}. Nothing of this batch was published; start again to go on "
                f"from the last savepoint. Spark's own messages are in {self._log}"
            ) from error
        return [_answer(text) for text in answers]

    def context(self) -> Any:
        """The SparkContext, waited for."""
        try:
            return self._context.result()
        except Exception as error:
            raise RepriseError(
                f"Spark did not start with master '{self._master}': {_reason(error)}. Nothing was changed. "
                f"Check the master's URL, and that Java 17 or newer is installed; Spark's own messages are in {self._log}"
            ) from error

    def stop(self) -> None:
        self._starting.shutdown()
        if self._context.exception() is None:
            _end(self._context.result())


@contextmanager
def open_runner(master: str, lake: Lake, name: str) -> Iterator[Runner]:
    """A runner for `master`: a Spark master URL, or `inline`. Spark's own messages go to a file in the lake."""
    if master == INLINE:
        yield InlineRunner()
        return
    runner = SparkRunner(master, lake, name)
    try:
        yield runner
    finally:
        runner.stop()


def _over_the_wire(task: Task) -> Callable[[str], str]:
    """Text in, text out. An error a user can act on travels as an answer, not as a stack trace of three languages."""

    def run(text: str) -> str:
        try:
            return json.dumps(task(json.loads(text)))
        except (RepriseError, FileNotFoundError) as error:
            return json.dumps({_ERROR: str(error), "type": type(error).__name__})

    return run


def _answer(text: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text)
    if _ERROR in answer:
        raise _ERRORS.get(answer["type"], RepriseError)(answer[_ERROR])
    return answer


def _reason(error: Exception) -> str:
    """The line that says it: of a Java stack trace, the last cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:300]


def _with_tries(master: str) -> str:
    """In local mode Spark takes the number of tries from the master's URL, and one if it is not there."""
    return re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{TASK_TRIES}]", master)


def _log_file(lake: Lake, name: str) -> Path:
    return lake.root / "_logs" / f"spark-{name}.log"


def make_class_archive(lake: Lake) -> None:
    """Let a Spark application leave its loaded classes behind; later ones start in half the time."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    CLASS_ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    _end(_started("local[2]", lake, "warm-up", make_archive=True))


def _end(context: Any) -> None:
    """Its JVM too: PySpark keeps one for the next context of the process, which would get this one's settings, not its own."""
    gateway, pyspark = context._gateway, type(context)
    with suppress(Exception):  # a JVM that was killed needs no stopping
        context.stop()
    if gateway.proc is None:  # it has started us, not we it
        return
    with suppress(Exception):
        gateway.shutdown()
    with suppress(BrokenPipeError):
        gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_JVM_ENDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    pyspark._gateway = pyspark._jvm = pyspark._active_spark_context = None


def _class_archive(make: bool) -> str:
    if make:
        return f"-XX:ArchiveClassesAtExit={CLASS_ARCHIVE}"
    # A JVM that finds the archive unfit (another version, other options) goes on without it.
    return (
        f"-XX:SharedArchiveFile={CLASS_ARCHIVE} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
        if CLASS_ARCHIVE.exists()
        else ""
    )


def _started(master: str, lake: Lake, name: str, make_archive: bool = False) -> Any:
    """A Spark context whose Python workers are warm."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:-UsePerfData")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    temp = str(lake.scratch("spark"))
    # Where executors on other machines have to find this one, Spark's own variable says its name.
    host = os.environ.get("SPARK_LOCAL_HOSTNAME", "127.0.0.1")
    settings = {
        "spark.app.name": name,
        "spark.master": _with_tries(master),
        "spark.ui.enabled": "false",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.local.dir": temp,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={temp} {_JVM} {_class_archive(make_archive)}",
        # Where executors find no such file, on other machines, they start without it.
        "spark.executor.extraJavaOptions": f"{_JVM} {_class_archive(make=False)}",
        "spark.python.daemon.module": "spark_jobs.daemon",
        "spark.python.unix.domain.socket.enabled": str(len(temp) <= _LONGEST_SOCKET_FOLDER).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        # A task that fails for a reason in the data answers and is not run again; one that was killed is, and only that one.
        "spark.task.maxFailures": str(TASK_TRIES),
    }
    conf = SparkConf().setAll(list(settings.items()))
    log = _log_file(lake, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as noise:
        # pyspark ships this function without annotations, hence the ignore.
        gateway = launch_gateway(conf, popen_kwargs={"stdout": noise, "stderr": noise})  # type: ignore[no-untyped-call]
    context = SparkContext(conf=conf, gateway=gateway, environment=dict(_KEEP_PAGES))
    context.parallelize([0], 1).map(str).collect()
    return context
