"""The Python daemon of Spark's workers: loads what every task needs before it forks, so that no task pays for it
(FACTS.md: 175 ms of CPU per batch became 5)."""

from __future__ import annotations

from pyspark import daemon

import spark_jobs.stateful_tasks  # noqa: F401  # for its imports, which are those of all tasks
from spark_jobs.cep import matcher
from spark_jobs.recovery import sets
from spark_jobs.transactions import operators

if __name__ == "__main__":
    matcher.warm_up()
    sets.warm_up()
    operators.warm_up()
    daemon.manager()
