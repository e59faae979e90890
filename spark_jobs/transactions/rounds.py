"""Rounds of transactions: chunks run side by side against one state, and commit one after the other, in their order.

A chunk is a transaction whose timestamp is its place. It commits when all before it have, if what it learned of the state it
saw still holds; otherwise it runs again, alone, in the state that all before it have left. So the result is that of running
the chunks one after the other, whatever ran ahead. What others can see of a chunk happens at its commit, and only there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from spark_jobs.transactions.predictor import Predictor
from spark_jobs.transactions.state import Effect, State, committed

Result = TypeVar("Result")


class Executor(Protocol[Result]):
    """Who runs chunks; a chunk that is run leaves nothing behind that anybody could see."""

    def ahead(self, chunks: range, state: State) -> list[tuple[Effect, Result]]:
        """Run some chunks side by side, each against this state or an older one."""

    def alone(self, chunk: int, state: State) -> tuple[Effect, Result]:
        """Run one chunk against this very state."""

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
        mine = range(begin, min(begin + predictor.ahead, chunks))
        ran = executor.ahead(mine, state) if len(mine) > 1 else [executor.alone(begin, state)]
        again = 0
        for chunk, (effect, result) in zip(mine, ran, strict=True):
            following = committed(state, effect)
            if following is None:
                again += 1
                effect, result = executor.alone(chunk, state)
                following = committed(state, effect)
                assert following is not None, "what a chunk has just learned of a state holds in it"
            state = following
            executor.commit(chunk, result)
        predictor = predictor.after(len(mine), again)
        tally = Tally(mine.stop, tally.ahead + len(mine) - 1, tally.again + again, tally.rounds + 1)
        begin = mine.stop
    return state, predictor, tally
