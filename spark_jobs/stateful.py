"""Detection by operators with shared state: a batch is cut into chunks, which run ahead of each other as ordered transactions.

The state is part of the savepoint, so nothing is ever replayed. How a batch is cut, what ran ahead and what ran again leaves
the output as it is (transactions/rounds.py); nothing of it is published before the batch is.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_jobs.cep.sequencer import Seed
from spark_jobs.detect import Detection
from spark_jobs.feeds import LogFeed, Reach
from spark_jobs.recovery.resume import Gap, Remade
from spark_jobs.recovery.savepoint import Kept, Savepoint, ShardSavepoint, advance
from spark_jobs.recovery.sets import EMPTY
from spark_jobs.runner import Runner
from spark_jobs.stateful_tasks import transact_task
from spark_jobs.tasks import read_arrow, write_arrow
from spark_jobs.transactions.operators import LARGEST_CHUNK
from spark_jobs.transactions.predictor import Predictor
from spark_jobs.transactions.rounds import transact
from spark_jobs.transactions.state import Effect, State

# Chunks per core that may run ahead: one that takes longer than the others leaves less of a round unused.
AHEAD_PER_CORE = 4
# A smaller chunk takes less time than the Spark job that runs it.
SMALLEST_CHUNK = 50_000


class StatefulDetection(Detection):
    """One attempt at one version of an operator with shared state."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.by_windows, self.shards, self.filters_keys = False, 1, False
        self.stateful = self.graph.pipeline.stateful[self.operator.name]
        # What it has learned of conflicts is worth something in the next batch, and nothing depends on it.
        self.predictor = Predictor.beginning(AHEAD_PER_CORE * self.settings.shards)

    def _matched(self, savepoint: Savepoint, reach: Reach) -> list[dict[str, Any]]:
        """What all chunks together have found, as one shard."""
        found = self._reading(savepoint, lambda: self._transacted(savepoint, reach))
        self._check_all_read(savepoint, reach, found["read"])
        return [found]

    def _transacted(self, savepoint: Savepoint, reach: Reach) -> dict[str, Any]:
        stored = [shard.states for shard in savepoint.shards]
        state = State.unpacked(stored[0]) if stored else self.stateful.beginning()
        chunks = Chunks(self.runner, self._chunk_payloads(savepoint, reach), f"{self.scratch}/{self.operator.name}")
        state, self.predictor, tally = transact(chunks, len(chunks.payloads), state, self.predictor)
        self._record("transactions", "chunks", savepoint.batch + 1, **asdict(tally))
        return {**chunks.together(self.settings.shards), "states": base64.b64encode(state.packed()).decode()}

    def _chunk_payloads(self, savepoint: Savepoint, reach: Reach) -> list[dict[str, Any]]:
        assert isinstance(self.feed, LogFeed)
        size = chunk_size(reach.read - savepoint.read, self.predictor.limit)
        files = self.feed.log.shard_files(0, 1, None, reach.read)
        payloads = []
        for after in range(savepoint.read, reach.read, size):
            end = min(after + size, reach.read)
            payloads.append({
                "pipeline": self.text,
                "operator": self.operator.name,
                "files": [file for file in files if file["last_sn"] > after and file["first_sn"] <= end],
                "after": after,
                "end": end,
                "shard": 0,
                "batch": savepoint.batch + 1,
                "faults": self.attempt.for_tasks(),
            })
        return payloads

    def _stamps(self, savepoint: Savepoint, shards: list[dict[str, Any]], reach: Reach) -> list[dict[str, Any]]:
        (found,) = shards
        return super()._stamps(savepoint, found["chunks"], reach)

    def _following(
        self, savepoint: Savepoint, seed: Seed, shards: list[dict[str, Any]], reach: Reach, seconds: float
    ) -> Savepoint:
        (found,) = shards
        kept = ShardSavepoint(0, 1, (Kept(reach.read, EMPTY),), states=base64.b64decode(found["states"]))
        return advance(self.operator, savepoint, seed, [kept], reach.at, reach.read, reach.ends)

    def _remade(self, gap: Gap) -> Remade:
        """Go from an older state to the commit again; what is found on the way was published, and is only counted."""
        self._check_base(gap)
        self.runner.ready()
        reach = self.feed.until(gap.base, gap.committed.at)
        found = self._matched(gap.base, reach)
        self._check_found(gap, found)
        following = self._following(gap.base, gap.committed.seed, found, reach, 0.0)
        return Remade(replace(following, batch=gap.committed.batch), tuple(result["read"] for result in found))


def chunk_size(events: int, ahead: int) -> int:
    """One round, if that makes chunks of a good size."""
    return min(max(-(-events // ahead), SMALLEST_CHUNK), LARGEST_CHUNK)


@dataclass
class Chunks:
    """The chunks of a batch, run by Spark's tasks where they run ahead, and by this process where one runs alone.

    What tasks leave behind are scratch files; which of them count is known when their chunk is committed.
    """

    runner: Runner
    payloads: list[dict[str, Any]]
    scratch: str
    committed: list[dict[str, Any]] = field(default_factory=list)
    read: dict[int, str] = field(default_factory=dict)  # the events of chunks that are not committed yet
    runs: int = 0

    def ahead(self, chunks: range, running: int, state: State) -> list[tuple[Effect, dict[str, Any]] | None]:
        told = self._told(chunks, state)
        if running < len(chunks):  # where all may run, hardly any will run again: keeping them would cost more than it saves
            for payload in told:
                payload["keep"] = f"{payload['out']}-events"
            self.read |= {chunk: payload["keep"] for chunk, payload in zip(chunks, told, strict=True)}
        for payload in told[running:]:
            payload["state"] = None
        done = self.runner.run(transact_task, told)
        return [_ran(result) if result["effect"] else None for result in done]

    def alone(self, chunk: int, state: State) -> tuple[Effect, dict[str, Any]]:
        """Here, where it takes less time than a Spark job takes to start; but faults that are armed for workers need one."""
        (told,) = self._told(range(chunk, chunk + 1), state)
        told["kept"] = self.read.get(chunk)
        if told["faults"]:
            return _ran(self.runner.run(transact_task, [told])[0])
        return _ran(self.runner.here(transact_task, told))

    def commit(self, chunk: int, result: dict[str, Any]) -> None:
        self.committed.append(result)
        if chunk in self.read:
            Path(self.read.pop(chunk)).unlink()

    def _told(self, chunks: range, state: State) -> list[dict[str, Any]]:
        """A run has files of its own: those of another may still be mapped."""
        self.runs += 1
        path = f"{self.scratch}-state-{self.runs}"
        write_arrow(path, state.table())
        return [{**self.payloads[k], "state": path, "out": f"{self.scratch}-{k}-{self.runs}"} for k in chunks]

    def together(self, cores: int) -> dict[str, Any]:
        done = self.committed
        return {
            "chunks": done,
            "matches": sum(result["matches"] for result in done),
            "read": sum(result["read"] for result in done),
            "replayed": 0,
            # They ran side by side: so each second of them was waited for by its share only.
            "seconds": {stage: sum(result["seconds"][stage] for result in done) / cores for stage in done[0]["seconds"]},
        }


def _ran(result: dict[str, Any]) -> tuple[Effect, dict[str, Any]]:
    return Effect.of(read_arrow(result["effect"])), result
