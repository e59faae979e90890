"""Upkeep of tables beside the work: what nobody waits for while batches are matched, on one thread, in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

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
        self._last: Future[Any] | None = None

    def do(self, work: Callable[[], Done]) -> Future[Done]:
        self._last = given = self._thread.submit(work)
        return given

    def checkpoint(self, handle: DeltaTable) -> None:
        """A Delta checkpoint, if the handle shows, by then, that it is time for one."""
        self.do(lambda: _checkpoint(handle.table_uri) if handle.version() % CHECKPOINT_EVERY == 0 else None)

    def wait(self) -> None:
        """Until all of it is done: tables may be moved or removed then."""
        if self._last is not None:
            wait([self._last])


def _checkpoint(table: str) -> None:
    # Without one the next reader has more commits to read; what is wrong with the table, who needs it will say.
    with suppress(DeltaError, OSError):
        found = DeltaTable(table)
        found.create_checkpoint()
        found.cleanup_metadata()
