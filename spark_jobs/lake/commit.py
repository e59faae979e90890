"""The commit protocol: compare-and-swap on a table version, so that exactly one attempt publishes a step.

A `Claim` is taken once, at the start of an attempt: the table handle is loaded and the last committed step of
this application read from it. Publishing goes through that same handle with no retries, so any commit made by
somebody else in between is noticed (FACTS.md, "Delta through deltalake"). If the other commit was a step of
the same application, this attempt is a zombie and is fenced; if it was something else in the same table, the
claim is renewed and tried again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from spark_jobs.errors import CommitStateUnknown, FencedAttempt
from spark_jobs.lake.aside import CHECKPOINTED_LATER, Aside
from spark_jobs.lake.tables import CHECKPOINT_EVERY

# Carries a commit to the table; a drill's may lose it, or the answer to it.
Send = Callable[[Callable[[], None]], None]
# Brings a handle up to date.
Renew = Callable[[DeltaTable], DeltaTable]


def straight(commit: Callable[[], None]) -> None:
    commit()


def reopened(handle: DeltaTable) -> DeltaTable:
    """Another handle: who keeps the old one still sees what it showed."""
    return DeltaTable(handle.table_uri)


def renewed(handle: DeltaTable) -> DeltaTable:
    """The same handle, for who shares it with nobody: reading new commits takes a millisecond, opening a table 5 to 30."""
    handle.update_incremental()
    if handle.version() % CHECKPOINT_EVERY == 1:
        # In place, because others hold it too. One that was opened before a Delta checkpoint never comes to rest on it: after
        # 60 more commits each takes three times as long (deltalake 1.6.6).
        handle.__init__(handle.table_uri)  # type: ignore[misc]
    return handle


@dataclass
class Claim:
    """The right to publish step `step + 1` of `app`, until somebody else does."""

    handle: DeltaTable
    app: str
    step: int
    attempt: int  # the attempt that published `step`; 0 if none has
    renew: Renew = reopened
    send: Send = straight
    # What need not be waited for after a commit is done there: looking at the table again, and Delta's checkpoints.
    aside: Aside | None = None
    _looking: Future[bool] | None = None

    def publish(
        self,
        files: Sequence[AddAction],
        schema: pa.Schema,
        attempt: int,
        partition_by: Sequence[str] = (),
        also: Mapping[str, int] | None = None,
    ) -> None:
        """Make the next step happen: add `files`, carrying (app, step) and the attempt it belongs to.

        `also` are further numbers that have to stand or fall with this commit.
        """
        self.settle()
        step = self.step + 1
        metadata = {"reprise.app": self.app, "reprise.step": str(step), "reprise.attempt": str(attempt)}
        numbers = {self.app: step, _attempt_of(self.app): attempt, **(also or {})}
        transactions = [Transaction(app, number) for app, number in numbers.items()]
        while True:
            properties = CommitProperties(custom_metadata=metadata, app_transactions=transactions, max_commit_retries=0)
            commit = partial(
                self.handle.create_write_transaction,
                list(files), "append", schema, list(partition_by), commit_properties=properties,
                post_commithook_properties=CHECKPOINTED_LATER if self.aside else None,
            )  # fmt: skip
            try:
                self.send(commit)
                break
            except CommitFailedError:
                if self._renewed(step, attempt):
                    break
            except (DeltaError, OSError) as error:
                # The answer is lost, not necessarily the commit: look before deciding.
                if self._renewed(step, attempt):
                    break
                raise CommitStateUnknown(
                    f"{self.app}: the commit of step {step} failed with '{error}' and is not in the table. "
                    "Nothing was published; start again to go on from the last savepoint."
                ) from error
        self.step, self.attempt = step, attempt
        # Bring the handle up to date and make sure that it shows no step beyond ours: the next publish trusts it.
        if self.aside is None:
            self._renewed(step, attempt)
        else:
            self._looking = self.aside.do(partial(self._renewed, step, attempt))
            self.aside.do(partial(self.aside.checkpoint, self.handle))

    def settle(self) -> None:
        """Until the handle is what the last commit has left behind; an attempt that has lost its place learns it here."""
        if self._looking is not None:
            looking, self._looking = self._looking, None
            looking.result()

    def _renewed(self, step: int, attempt: int) -> bool:
        """Look at the table again. True if our own commit stands in it, False if the step is still free."""
        now = claim(self.renew(self.handle), self.app)
        if now.step > step or (now.step == step and now.attempt != attempt):
            raise FencedAttempt(
                f"{self.app}: attempt {attempt} lost its place to attempt {now.attempt}, which stands at step "
                f"{now.step}. Nothing this attempt still held counts, and there is nothing to repair."
            )
        self.handle = now.handle
        return now.step == step


def claim(handle: DeltaTable, app: str, renew: Renew = reopened, send: Send = straight) -> Claim:
    """Where `app` stands in this table version."""
    step, attempt = (handle.transaction_version(name) or 0 for name in (app, _attempt_of(app)))
    return Claim(handle, app, step, attempt, renew, send)


def add_file(table: str, path: str, rows: int, **partition: str) -> AddAction:
    """A Parquet file that a task or the driver has written below `table`, ready to be published.

    No minima and maxima: where they are given for some columns only, deltalake's Arrow reader takes the others
    for empty and drops the file from any filter on them, without a word (deltalake 1.6.6).
    """
    stat = os.stat(os.path.join(table, path))
    return AddAction(path, stat.st_size, dict(partition), int(stat.st_mtime * 1000), True, json.dumps({"numRecords": rows}))


def _attempt_of(app: str) -> str:
    return f"{app}#attempt"
