"""The Python daemon of Spark's workers: loads what every task needs before it forks, so that no task pays for it
(FACTS.md: 175 ms of CPU per batch became 5)."""

from __future__ import annotations

import gc

from pyspark import daemon

import spark_jobs.stateful_tasks  # noqa: F401  # for its imports, which are those of all tasks
from spark_jobs.cep import matcher
from spark_jobs.recovery import sets
from spark_jobs.transactions import operators

if __name__ == "__main__":
    matcher.warm_up()
    sets.warm_up()
    operators.warm_up()
    # Spark's workers collect garbage after each task. What was loaded is none: to look through all of it took 95 ms every time.
    gc.collect()
    gc.freeze()
    daemon.manager()
