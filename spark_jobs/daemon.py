"""The Python daemon of Spark's workers: imports what every task needs before it forks (FACTS.md: 175 ms of
CPU per batch became 5)."""

from __future__ import annotations

import spark_jobs.tasks  # noqa: F401  # imported for its imports
from pyspark import daemon

if __name__ == "__main__":
    daemon.manager()
