"""The sum of bins: shrunk and non-negative estimates are adjusted to an unbiased total.

If estimates of many small bins are multiplied by a share, the error of each becomes smaller, but
their sum becomes too small by that share. If negative estimates are replaced by 0, the sum becomes
too large. So the total is the sum of the filters' estimates. These are linear in the releases and
have no bias, and errors of many bins average out in the sum. The difference to it is spread over
the bins, in proportion to their variances.

Shrunk estimates are right for most bins, but too low for the largest ones. So the upper end of an
interval is never below that of the estimate that was not shrunk.

Everything here is post-processing of releases.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamveil.mechanisms.adaptive.shrinkage import Shrinkage
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.tidy import NINETY_PERCENT

_TINY = 1e-300


class Layout(NamedTuple):
    """The cells of a histogram: bins of one or more parts each, and totals of bins."""

    parts: int = 1
    """Cells in a row that belong to one bin: totals are those of each part."""
    totals: int = 0
    """Cells at the end that are measured sums of the others, such as the top of a tree."""
    ratios: bool = False
    """Whether only ratios of parts are requested, and no sums."""


class Shrunk(NamedTuple):
    """Estimates to publish, arrays of shape (d,)."""

    mean: Floats
    variance: Floats
    share: float
    """By which estimates were multiplied."""


def with_total(counts: Floats, weights: Floats, total: float) -> Floats:
    """Counts from 0 on that add up to a total, moved in proportion to their weights.

    Source: Michelot, "A finite algorithm for finding the projection of a point onto the canonical
    simplex" (1986), with weights.

    Args:
        counts: none negative, shape (d,).
        weights: by which they are moved, such as their variances, none negative, shape (d,).
        total: what they are to add up to, 0 or more.
    """
    weights = weights if weights.sum() > 0 else np.ones_like(weights)
    positive = np.ones(len(counts), np.bool_)
    while True:
        missing = total - float(counts[positive].sum())
        weighed = float(weights[positive].sum())
        if weighed <= 0:  # the remaining counts are certain, so all of them are scaled
            left = counts * positive
            return np.asarray(left * (total / max(float(left.sum()), _TINY)))
        moved = counts + missing * weights / weighed
        negative = positive & (moved < 0)
        if not np.count_nonzero(negative):
            return np.where(positive, moved, 0.0)
        positive &= ~negative


def published(
    shrinkage: Shrinkage, layout: Layout, mean: Floats, variance: Floats, error: Floats
) -> Shrunk:
    """Estimates as they are published: shrunk, from 0 on, and with a total that is not biased.

    Args:
        shrinkage: what earlier forecasts showed.
        layout: of the cells.
        mean: estimates, shape (d,).
        variance: of the counts about them, shape (d,).
        error: variance of the estimates alone, without the deviations of single slots.
    """
    counts, variances, share = shrinkage.shrunk(mean, variance, error, layout.totals)
    if layout.ratios:
        return Shrunk(counts, variances, share)
    bins = len(mean) - layout.totals
    for part in range(layout.parts):
        own = slice(part, bins, layout.parts)
        doubt = error[own]
        counts[own] = with_total(counts[own], doubt, max(float(mean[own].sum()), 0.0))
        if share < 1:
            variances[own] += ((1 - share) * doubt) ** 2 / max(float(doubt.sum()), _TINY)
    lowered = np.maximum(mean - counts, 0.0)[:bins]
    reach = lowered / NINETY_PERCENT + np.sqrt(variance[:bins])
    variances[:bins] = np.maximum(variances[:bins], reach**2)
    return Shrunk(counts, variances, share)
