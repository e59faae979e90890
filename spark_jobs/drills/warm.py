"""What a fork server loads before it forks the commands of a campaign, and the suites of those that ingest."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import IO, NoReturn

# For what they import; commands do so when they need it.
import spark_jobs.tasks  # noqa: F401
from spark_jobs.cep import matcher
from spark_jobs.cli import main
from spark_jobs.recovery import sets
from spark_jobs.verify import expectations

matcher.warm_up()
sets.warm_up()
expectations.load()


def command(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """Be `reprise` with these arguments."""
    os.setsid()
    out = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["reprise", *arguments]
    expectations.start = Forked
    main()


class Forked:
    """The process of suites, as a copy of this one: Great Expectations is loaded already."""

    def __init__(self, files: list[Path], errors: IO[bytes]) -> None:
        asked, ask = os.pipe()
        answered, answer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            for theirs in (ask, answered):  # or it would not notice the end of who asks
                os.close(theirs)
            _serve(files, asked, answer, errors.fileno())
        os.close(asked)
        os.close(answer)
        self.stdin: IO[bytes] | None = os.fdopen(ask, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(answered, "rb")
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, 9)

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def _serve(files: list[Path], asked: int, answer: int, errors: int) -> NoReturn:
    """Like a program of its own; nothing of the process it is a copy of may run in it."""
    code = 1
    try:
        for number, place in enumerate((asked, answer, errors)):
            os.dup2(place, number)
        sys.stdin = os.fdopen(0)
        expectations.serve(files)
        code = 0
    except SystemExit as said:
        os.write(2, f"{said}\n".encode())
    except BaseException:  # whatever it is, these are its last words
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
