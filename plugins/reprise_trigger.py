"""JobTrigger: waits for a job without holding a worker's slot, and keeps its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from spark_jobs.leased import BEAT_SECONDS, Job


class JobTrigger(BaseTrigger):
    """Fires when the job of a folder has ended, with its exit code; None if whoever watched it is gone.

    A trigger that is cancelled renews the lease no more: unless another one does, because it was the triggerer that ended and
    not the task, the job ends too.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "reprise_trigger.JobTrigger", {"folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        job = Job(Path(self.folder))
        while not await asyncio.to_thread(self._look, job):
            await asyncio.sleep(BEAT_SECONDS)
        yield TriggerEvent({"code": job.ended()})

    def _look(self, job: Job) -> bool:
        """Is there nothing more to wait for? The folder may be a slow one."""
        job.renew()
        done = job.ended() is not None or job.lost()
        for line in job.news():
            self.log.info(line)
        return done
