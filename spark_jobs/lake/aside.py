"""Upkeep of tables beside the work: what nobody waits for while batches are matched, on one thread, in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import PostCommitHookProperties

from spark_jobs.lake.tables import CHECKPOINT_EVERY

Done = TypeVar("Done")

# A commit that leaves the Delta checkpoint to us: inside of it, it takes five times as long as the commit.
CHECKPOINTED_LATER = PostCommitHookProperties(create_checkpoint=False)


class Aside:
    """One thread, started by the first work there is."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "aside")
        self._started = False

    def do(self, work: Callable[[], Done]) -> Future[Done]:
        self._started = True
        return self._thread.submit(work)

    def checkpoint(self, handle: DeltaTable) -> None:
        """Work for `do`: a Delta checkpoint, if the handle shows that it is time for one."""
        if handle.version() % CHECKPOINT_EVERY:
            return
        # Without one the next reader has more commits to read; what is wrong with the table, who needs it will say.
        with suppress(DeltaError, OSError):
            found = DeltaTable(handle.table_uri)  # the handle is its owner's
            found.create_checkpoint()
            found.cleanup_metadata()

    def wait(self) -> None:
        """Until all that was given is done: tables may be moved or removed then."""
        if self._started:
            self.do(lambda: None).result()
