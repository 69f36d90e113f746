"""The share of events that devices report, where they report one event of a window.

It is not reported; it follows from how many events are reported. Let users be asked T times in a
block, with x events of these on average. If all come equally often, at random, an event is reported
k turns after its block began with probability exp(-x k / T); if how often they come is spread as an
exponential distribution is, with (1 + x k / T)**-2. In every slot turns are spread over blocks
evenly, and no block began before the stream. So of x events a share g(u) is reported, a fraction u
<= 1 of a block after the beginning:

    g(u) = (1 - exp(-x u)) / x + (1 - u) exp(-x u),    u / (1 + x u) + (1 - u) / (1 + x u)**2.

How likely each x is, under both, is kept on a grid, from what reports tell of all events together;
older ones have less weight. Before there are any, x is taken for about 1, which is what `turns` are
to be chosen for. The share and its variance are those of the grid, so that it is doubted which of
the two it is for as long as they cannot be distinguished.

Guarantee: post-processing of reports, which costs nothing.
Source: our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats

_EVENTS = np.geomspace(0.01, 30, 96)
_BEFORE = -0.5 * (np.log(_EVENTS / 0.25) / 0.8) ** 2


def shares(elapsed: float) -> Floats:
    """Share that is reported by how users come and how often, shape (2, 96).

    Args:
        elapsed: blocks since the stream began; from 1 on all is as it will be.
    """
    u = min(elapsed, 1.0)
    alike = -np.expm1(-_EVENTS * u) / _EVENTS + (1 - u) * np.exp(-_EVENTS * u)
    late = 1 / (1 + _EVENTS * u)
    return np.stack([alike, u * late + (1 - u) * late**2])


@dataclass(eq=False)
class ReportedShare:
    """What is known of it: a function of reports alone, so public.

    Args:
        turns: T, how often users are asked in a block, on average.
        block: slots of a block, on average.
    """

    turns: float
    block: float

    def __post_init__(self) -> None:
        """Nothing reported yet."""
        self.likely = np.zeros((2, len(_EVENTS)))
        """Logarithm of how likely each is, shape (2, 96)."""

    def learn(self, reported: float, variance: float, elapsed: int) -> None:
        """Learn from a slot.

        Args:
            reported: share of users who reported any event, as estimated from reports.
            variance: of that.
            elapsed: slots since the stream began.
        """
        expected = shares(elapsed / self.block) * _EVENTS / self.turns
        self.likely *= 1 - 1 / (4 * self.block)
        self.likely -= (reported - expected) ** 2 / (2 * variance)
        self.likely -= self.likely.max()

    def estimate(self, elapsed: int) -> tuple[float, float]:
        """The share in a slot, above 0 and at most 1, and its relative variance."""
        weights = np.exp(self.likely + _BEFORE)
        weights /= weights.sum()
        there = 1 / shares(elapsed / self.block)
        mean = max(float((weights * there).sum()), 1.0)  # rounding
        variance = float((weights * (there - mean) ** 2).sum())
        return 1 / mean, variance / mean**2
