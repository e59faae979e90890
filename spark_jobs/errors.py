"""Errors as an interface: what happened, what it means for the data, what to do next."""

from __future__ import annotations


class RepriseError(Exception):
    """A mistake or a condition a user can act on; the command line prints it without a stack trace."""

    exit_code = 2


class PipelineError(RepriseError):
    """A pipeline file that cannot be used; the message names file and line."""


class ExpressionError(RepriseError):
    """A predicate, measure or pattern that is not understood; `column` counts characters from 1."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


class IngestRefused(RepriseError):
    """Nothing of this ingest was committed to the event log."""

    exit_code = 1


class FencedAttempt(RepriseError):
    """Another attempt has already published this batch; this one wrote nothing that counts."""

    exit_code = 3


class CommitStateUnknown(RepriseError):
    """The answer to a commit was lost. Read the table again before deciding; never retry blindly."""

    exit_code = 1


class CommitDamaged(RepriseError):
    """A commit in the log of a table was changed after it was made."""

    exit_code = 1


class SparkFailed(RepriseError):
    """Spark went away, or a task failed as often as it may. What was published stands."""

    exit_code = 1


class SavepointDamaged(RepriseError):
    """A savepoint cannot be used: a row is missing, cut off or changed. Recovery falls back to an older one."""

    exit_code = 1


class TrimmedEventNeeded(RepriseError):
    """Events that a consumer still needs were trimmed from its input; the message names the consumer."""

    exit_code = 1


def suggest(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?`, or the list of what is known when nothing is close."""
    import difflib

    close = [other for other in known if other.lower() == word.lower()] or difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known here: {', '.join(sorted(known))}" if known else ""
