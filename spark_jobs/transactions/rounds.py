"""Rounds of transactions: chunks run side by side against one state, and commit one after the other, in their order.

A chunk is a transaction whose timestamp is its place. It commits when all before it have, if what it learned of the state it
saw still holds; otherwise it runs again, alone, in the state that all before it have left. So the result is that of running
the chunks one after the other, whatever ran ahead. What others can see of a chunk happens at its commit, and only there.

Reading events needs no state, so all chunks of a round are read side by side: the predictor limits only how many of them also
run ahead. Where it does, conflicts are expected, and what was read is kept: who runs later, or again, reads nothing again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from spark_jobs.transactions.predictor import Predictor
from spark_jobs.transactions.state import Effect, State, committed

Result = TypeVar("Result")


class Executor(Protocol[Result]):
    """Who runs chunks; a chunk that is run leaves nothing behind that anybody could see."""

    def ahead(self, chunks: range, running: int, state: State) -> list[tuple[Effect, Result] | None]:
        """Read some chunks side by side, and run the first ones of them, each against this state or an older one."""

    def alone(self, chunk: int, state: State) -> tuple[Effect, Result]:
        """Run one chunk, read or not, against this very state."""

    def commit(self, chunk: int, result: Result) -> None:
        """What a chunk found is final: the place for effects that cannot be taken back."""


@dataclass(frozen=True)
class Tally:
    """What it took."""

    chunks: int = 0
    ahead: int = 0  # of them, how many ran before those before them were committed
    again: int = 0  # of those, how many ran a second time
    rounds: int = 0

    @property
    def conflicts(self) -> float:
        """The share of chunks in conflict, of those that could be."""
        return self.again / self.ahead if self.ahead else 0.0


def transact(executor: Executor[Result], chunks: int, state: State, predictor: Predictor) -> tuple[State, Predictor, Tally]:
    """Run chunks 0 .. chunks - 1; the state after the last of them."""
    tally, begin = Tally(), 0
    while begin < chunks:
        mine = range(begin, min(begin + predictor.limit, chunks))
        running, again = min(predictor.ahead, len(mine)), 0
        done = executor.ahead(mine, running, state) if len(mine) > 1 else [None]
        for chunk, ran in zip(mine, done, strict=True):
            following = committed(state, ran[0]) if ran else None
            if ran is None or following is None:
                again += ran is not None
                ran = executor.alone(chunk, state)
                following = committed(state, ran[0])
                assert following is not None, "what a chunk has just learned of a state holds in it"
            state = following
            executor.commit(chunk, ran[1])
        predictor = predictor.after(running, again)
        tally = Tally(mine.stop, tally.ahead + running - 1, tally.again + again, tally.rounds + 1)
        begin = mine.stop
    return state, predictor, tally
