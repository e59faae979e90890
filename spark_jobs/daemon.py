"""The Python daemon of Spark's workers: loads what every task needs before it forks, so that no task pays for it
(FACTS.md: 175 ms of CPU per batch became 5)."""

from __future__ import annotations

from pyspark import daemon

import spark_jobs.tasks  # noqa: F401  # for its imports
from spark_jobs.cep.matcher import warm_up

if __name__ == "__main__":
    warm_up()
    daemon.manager()
