"""The conflict predictor: how many chunks may run ahead of the last commit, from how many had to run again (seed 002, II-B)."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Up to the first share of conflicts optimism grows, from the second on it falls. On two cores running ahead costs half of what
# running alone does: where every second chunk runs again, nothing is won.
FEW, MANY = 0.25, 0.5
# For how many rounds all chunks run alone before the next try; after each try in vain, twice as many.
PATIENCE, LONGEST_PATIENCE = 4, 64


@dataclass(frozen=True)
class Predictor:
    """Of the `limit` chunks of a round, `ahead` run side by side; where that is 1, two are tried after `rest` more rounds."""

    limit: int
    ahead: int
    rate: float = 0.0  # of conflicts, of those that were possible; what is older counts less and less
    rest: int = 0
    patience: int = PATIENCE

    @classmethod
    def beginning(cls, limit: int) -> Predictor:
        """Nothing is known of conflicts yet."""
        return cls(limit, limit)

    def after(self, ran: int, again: int) -> Predictor:
        """After a round of `ran` chunks, `again` of which had to run again. The first of a round cannot conflict."""
        if ran == 1:
            return self._alone()
        rate = (self.rate + again / (ran - 1)) / 2
        if rate <= FEW:
            return replace(self, ahead=min(2 * self.ahead, self.limit), rate=rate, patience=PATIENCE)
        if rate < MANY:
            return replace(self, rate=rate)
        if self.ahead > 3:
            return replace(self, ahead=self.ahead // 4 if self.ahead >= 8 else 2, rate=rate)
        return replace(self, ahead=1, rate=rate, rest=self.patience, patience=min(2 * self.patience, LONGEST_PATIENCE))

    def _alone(self) -> Predictor:
        """Alone nothing is learned of conflicts; only time passes, until somebody has to try again."""
        if self.ahead > 1 or self.limit == 1:  # there was just one left
            return self
        return replace(self, rest=self.rest - 1) if self.rest > 1 else replace(self, rest=0, ahead=2)
