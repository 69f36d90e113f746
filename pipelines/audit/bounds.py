"""Lower bounds of a privacy loss from guesses whose outcomes are known.

A canary is in the input or not, by a fair coin of its own. Of a mechanism that is (pure)
c-differentially private to it, whoever guesses from all that is released, and from the coins of
earlier canaries, is right with probability exp(c) / (1 + exp(c)) at most, whatever is released. So
the number of right guesses is stochastically below a sum of independent coins, however the canaries
were released together: one run audits as many users as it has canaries.

Sources: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run" (2023), Theorem 5.2
with delta = 0, where c may be a function of what is released; Hoeffding, "On the distribution of
the number of successes in independent trials" (1956), Theorem 4, for coins of unequal odds.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from streamveil.mechanisms.core.arrays import Floats

# Larger multiples of a claim are not distinguished.
MOST = 64.0


def times_at_least(right: int, losses: Floats, flakiness: float) -> float:
    """So many times their claimed losses the canaries lose at least, or the guesses were luck.

    Args:
        right: how many guesses were right.
        losses: claimed loss of each canary that was guessed, epsilon above 0, shape (n,).
        flakiness: probability, at most, that luck alone gives a bound above the truth.
    """
    n = losses.size
    if not right:
        return 0.0
    # Hoeffding's bound holds one guess above the mean and beyond.
    least = min(float(scipy.stats.beta.ppf(flakiness, right, n - right + 1)), (right - 1) / n)
    return times_of(least, losses)


def times_of(share: float, losses: Floats) -> float:
    """So many times the claimed losses allow this share of right guesses at most."""
    if share <= 0.5 or not losses.size:
        return 0.0
    if mean_right(MOST, losses) <= share:
        return MOST
    return float(scipy.optimize.brentq(lambda x: mean_right(x, losses) - share, 0.0, MOST))


def mean_right(times: float, losses: Floats) -> float:
    """The largest share of right guesses that so many times these losses allow."""
    return float(np.mean(1 / (1 + np.exp(-times * losses))))


def visible_from(reached: float, losses: Floats, flakiness: float) -> float:
    """The smallest violation that as many guesses would prove, four times in five.

    Args:
        reached: how many times the claimed losses guesses show where the claim is kept, as a point
            estimate: 1 at most.
        losses: as of :func:`times_at_least`.
        flakiness: as of :func:`times_at_least`.

    Returns:
        How many times as much as claimed the mechanism would have to lose; infinite if no multiple
        up to `MOST` would be seen. The truth is taken to be what was claimed.
    """

    def proven(violation: float) -> float:
        share = mean_right(violation * reached, losses)
        spread = math.sqrt(share * (1 - share) / losses.size)
        right = math.floor((share - 0.85 * spread) * losses.size)
        return times_at_least(right, losses, flakiness) - 1.0

    if reached <= 0 or not losses.size or proven(MOST) <= 0:
        return math.inf
    return float(scipy.optimize.brentq(proven, 1e-3, MOST, xtol=1e-3))
