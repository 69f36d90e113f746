"""From noisy counts to a released distribution: what is hardly more than noise stays as it was.

All of it is post-processing of noisy counts and of earlier releases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.infinite.held_distribution import simplex

# (noisy counts, variance of their noise, old shares, total) -> new shares
Shrinkage = Callable[[Floats, float, Floats, int], Floats]


def plain(noisy: Floats, variance: float, old: Floats, total: int) -> Floats:
    """The nearest distribution, whatever was released before."""
    size = _size(noisy, variance, total)
    return simplex(noisy / size) if size > 0 else old


def james_stein(noisy: Floats, variance: float, old: Floats, total: int) -> Floats:
    """Each bin goes the same part of its way from the old release, by James and Stein."""
    size = _size(noisy, variance, total)
    if size <= 0:
        return old
    apart = noisy - size * old
    squared = float(apart @ apart)
    part = max(0.0, 1 - (noisy.size - 2) * variance / squared) if squared > 0 else 0.0
    return simplex(old + part * apart / size) if part > 0 else old


def bayes(noisy: Floats, variance: float, old: Floats, total: int) -> Floats:
    """Bins are taken to have moved alike, or by their old shares: by the root, or in proportion.

    Empirical Bayes: what of the distance is not noise is how far all bins moved; of the three ways
    to divide it the likeliest counts, and each bin goes the expected part of its way.
    """
    size = _size(noisy, variance, total)
    if size <= 0:
        return old
    apart = noisy - size * old
    moved = float(apart @ apart) - noisy.size * variance
    if moved <= 0:
        return old
    levers = (old + 0.1 / noisy.size) ** np.array([[0.0], [1.0], [2.0]])
    prior = moved * levers / levers.sum(axis=1, keepdims=True)
    spread = prior + variance
    unlikely = np.sum(np.log(spread) + apart**2 / spread, axis=1)
    part = (prior / spread)[np.argmin(unlikely)]
    return simplex(old + part * apart / size)


SHRINKAGES: Mapping[str, Shrinkage] = {
    "none": plain,
    "james-stein": james_stein,
    "bayes": bayes,
}


def _size(noisy: Floats, variance: float, total: int) -> float:
    """The total of the noisy counts; the one known from before while noise is most of it."""
    size = float(noisy.sum())
    return size if size > 3 * np.sqrt(noisy.size * variance) else float(total)
