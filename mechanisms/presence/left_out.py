"""How much is left out of each bin, of all classes together: counts of what counts, scaled.

A release adds up classes. So it is scaled by what is left out of all of them for each event that
counts (their odds): the mean over classes, weighted by events. Classes cannot be scaled one by one,
for of a bin nobody knows which class its events are of. But the layers above what counts are asked
for by bin, and there the mixture of classes in a bin is seen, and so are heavy users who prefer it.

Let a bin's odds be those of all bins times 1 + r. Of r nothing is known but that it is about 0 and
has a variance s, and s is learnt from all bins (empirical Bayes): what is measured of r is drawn to
0 by as much as its noise is larger than s, and what is left of s is doubt. Where there is little
evidence a bin has the odds that all have, and all of the doubt. What lies above the layers is taken
to lie in the same bins as they do, with as much doubt again.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.presence.kept_share import BY_BIN, KEPT, KeptShare

SPREAD = 0.7
"""By how much the odds of bins differ, before anything is known."""
WORTH = 2
"""Bins that are measured without noise and tell as much of that."""
ROUNDS = 5


class LeftOut(NamedTuple):
    """Events left out for each that counts, by bin, and the variances of that: shape (d,)."""

    odds: Floats
    variances: Floats
    all: float
    """Of all bins together."""
    variance: float
    """Of that."""

    @classmethod
    def of(cls, known: Mapping[int, KeptShare], sizes: npt.ArrayLike, kept: Floats) -> LeftOut:
        """What is left out of all classes together.

        Args:
            known: of each class that is limited.
            sizes: public number of users of every class, shape (K,).
            kept: released events of each bin over a while, shape (d,).
        """
        weights, spread = _weights(known, np.asarray(sizes, np.float64))
        found = {k: one.odds() for k, one in known.items()}
        odds = np.zeros(len(weights))
        odds[list(found)] = [one.all for one in found.values()]
        mean = float(weights @ odds)
        variance = float((odds - mean) ** 2 @ spread)
        variance += sum(float(weights[k]) ** 2 * one.variance for k, one in found.items())
        more, doubt = np.zeros((2, len(kept)))
        if mean and len(kept) > 1:
            more, doubt = _by_bin(known, weights * odds / mean, kept)
        return cls(mean * (1 + more), (1 + more) ** 2 * variance + mean**2 * doubt, mean, variance)

    @property
    def factor(self) -> tuple[float, float]:
        """What scales figures of all bins alike to all there was, and its largest variance."""
        return 1 + self.all, float(self.variances.max())

    @classmethod
    def alike(cls, odds: float, variance: float, bins: int) -> LeftOut:
        """The same of all bins."""
        return cls(np.full(bins, odds), np.full(bins, variance), odds, variance)

    def made_up(self, counts: npt.ArrayLike, variances: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Counts of what counts as counts of all there was, and their variances: shape (d,)."""
        counts, there = np.asarray(counts, np.float64), 1 + self.odds
        return counts * there, np.asarray(variances) * there**2 + counts**2 * self.variances


def _weights(known: Mapping[int, KeptShare], sizes: Floats) -> tuple[Floats, Floats]:
    """Share of the events that count which every class has, and its variance: shape (K,).

    Of each class what was measured is drawn to what it has if users of all classes have as many.
    """
    measured, noise = np.zeros(len(sizes)), np.full(len(sizes), np.inf)
    for k, one in known.items():
        if one.slots:
            measured[k], noise[k] = one.sums[KEPT] / one.slots, one.variances[KEPT] / one.slots**2
    users = sizes / max(float(sizes.sum()), 1.0)
    seen = np.isfinite(noise)
    each = measured[seen].sum() / max(float(sizes[seen].sum()), 1.0)
    if len(sizes) == 1 or each <= 0:
        return users, np.zeros(len(sizes)) if len(sizes) == 1 else users**2
    likely = each * sizes
    trust = np.where(seen, likely**2 / np.where(seen, likely**2 + noise, 1), 0.0)
    events = np.maximum(likely + trust * (measured - likely), 0)
    total = max(float(events.sum()), 1e-9)
    return events / total, (1 - trust) * (likely / total) ** 2


def _by_bin(known: Mapping[int, KeptShare], weights: Floats, kept: Floats) -> tuple[Floats, Floats]:
    """By how much odds of bins differ from those of all, and its variance: shape (d,).

    Args:
        known: of each class that is limited.
        weights: share of what is left out which every class has, shape (K,).
        kept: released events of each bin, shape (d,).
    """
    kept = np.maximum(kept, 0)
    shares = kept / max(float(kept.sum()), 1e-9)
    classes = [k for k, one in known.items() if weights[k]]
    differ, noise = np.zeros((len(classes), len(kept))), np.full((len(classes), len(kept)), np.inf)
    beside = np.zeros((len(classes), 1))
    for row, k in enumerate(classes):
        one, odds = known[k], known[k].odds()
        beside[row] = odds.rest / odds.all
        expected = odds.near * one.sums[KEPT] * shares
        some = expected > 0
        if one.query.bins > 1 and one.is_clear and some.any():
            bins = one.sums[BY_BIN:]
            differ[row, some] = bins[some] / expected[some] - bins.sum() / expected.sum()
            noise[row, some] = one.variances[BY_BIN] / expected[some] ** 2
    spread = _spread(differ, noise)
    trust = spread / (spread + noise)
    more = trust * differ
    more = np.maximum(more - (more @ shares)[:, None], -1)  # all together stay what they are
    mine = weights[classes][:, None]
    doubt = mine**2 * spread * (1 - trust + beside**2)
    return (mine * more).sum(axis=0), doubt.sum(axis=0)


def _spread(differ: Floats, noise: Floats) -> float:
    """Variance of what bins differ by, of all of them and of what is likely.

    Each tells as much of it as its own noise, and that variance, leave; so it is found in rounds.
    It is at least as large as the error with which it is known.
    """
    seen = np.isfinite(noise)
    found = differ[seen] ** 2 - noise[seen]
    likely, before = SPREAD**2, WORTH / (2 * SPREAD**4)
    spread = likely
    for _ in range(ROUNDS):
        weights = 1 / (2 * (noise[seen] + spread) ** 2)
        total = before + float(weights.sum())
        mean = (before * likely + float(weights @ found)) / total
        spread = max(mean, total**-0.5)
    return spread
