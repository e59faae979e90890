"""What a fork server loads before it forks the commands of a campaign."""

from __future__ import annotations

import os
import sys

import spark_jobs.tasks  # noqa: F401  # for its imports
from spark_jobs.cep import matcher
from spark_jobs.cli import main
from spark_jobs.recovery import sets

matcher.warm_up()
sets.warm_up()


def command(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """Be `reprise` with these arguments."""
    os.setsid()
    out = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["reprise", *arguments]
    main()
