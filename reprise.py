"""Row patterns over Spark DataFrames, in SQL or in Python.

    from reprise import match, pattern

    match(tx, "SELECT * FROM tx MATCH_RECOGNIZE (PARTITION BY card ORDER BY ts "
              "MEASURES COUNT(S.*) AS probes, L.amount AS loss "
              "PATTERN (S{3,} -> L) WITHIN INTERVAL '10' MINUTES "
              "DEFINE S AS amount < 5, L AS amount > 100)")

    (pattern("S{3,} -> L").by("card").order_by("ts").within("10 min")
        .define(S="amount < 5", L="amount > 100")
        .measures(probes="COUNT(S.*)", loss="L.amount")
        .match(tx))

Both give the same DataFrame. docs/LANGUAGE.md defines patterns, DEFINE, MEASURES and windows; mistakes are raised as
`RepriseError`, with their place in the text, before any data is read.
"""

from __future__ import annotations

from spark_jobs.builder import Builder, pattern
from spark_jobs.dataframe import match
from spark_jobs.errors import RepriseError

__all__ = ["Builder", "RepriseError", "match", "pattern"]
