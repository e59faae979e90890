"""`python -m spark_jobs` is `reprise`."""

from spark_jobs.cli import main

main()
