"""The named phases of the protocols: where a fault can strike. Light enough to be imported by a DAG file."""

from __future__ import annotations

# Every step of the protocols, in order.
INGEST_PHASES = ("ingest.staged", "ingest.checked", "ingest.written", "ingest.listed", "ingest.committed")
DETECT_PHASES = (
    "detect.started",  # the savepoint is loaded, nothing of the batch is read
    "detect.matched",  # the shards have reported
    "detect.sequenced",  # the common order is cut into slices, which fixes every number
    "detect.written",  # the files of complex events are there, no table names them
    "detect.saved",  # the savepoint is written, the batch has not happened yet: the middle of the commit
    "detect.published",  # the batch has happened, nobody was told
    "detect.finished",  # history knows
)
TASK_PHASES = (
    "match.read",  # inside the task of one shard: its events are read
    "match.written",  # its matches are in a scratch file, the driver does not know yet
)
TRIM_PHASES = (
    "trim.written",  # what is left of the files that go is written anew, no table names it
    "trim.committed",  # the table names it, and not the others any more
)
PHASES = (*INGEST_PHASES, *DETECT_PHASES, *TASK_PHASES, *TRIM_PHASES)
# The phases after it: what has happened does not happen again, so each is reached once.
COMMITTED = ("ingest.committed", "detect.published", "detect.finished", "trim.committed")
# The phases right before the commit that counts.
COMMITTING = ("detect.saved", "ingest.listed")
