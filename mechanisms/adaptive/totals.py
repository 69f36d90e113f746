"""What bins add up to: estimates that are shrunk or cut off at 0 are brought to an unbiased total.

To multiply estimates of many small bins by a share lowers the error of each, and the sum of all by
that share; to cut them off at 0 raises the sum. So their total is that of the estimates as the
filters have them, which are linear in what was released and have no bias: errors of many bins
average out in it. What is missing to it is spread over the bins, in proportion to their variances.

Shrinkage is right for most bins and too low for the largest ones, whose errors are then no matter
of chance. So an interval always reaches as high as that of the estimate that was not shrunk.

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
    """What the cells of a histogram are: bins, of one or more parts each, and totals of them."""

    parts: int = 1
    """Cells in a row that belong to one bin: totals are those of each part."""
    totals: int = 0
    """Cells at the end that are measured sums of the others, such as the top of a tree."""
    ratios: bool = False
    """Whether ratios of parts are asked for, and no sums."""


class Shrunk(NamedTuple):
    """Estimates to publish, arrays of shape (d,)."""

    mean: Floats
    variance: Floats
    share: float
    """That was believed of them."""


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
        if weighed <= 0:  # what is left is certain: all of it is scaled
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
        error: variance of the estimates alone, without that of what cannot be foreseen.
    """
    found, variances, share = shrinkage.shrunk(mean, variance, error, layout.totals)
    if layout.ratios:
        return Shrunk(found, variances, share)
    bins = len(mean) - layout.totals
    for part in range(layout.parts):
        own = slice(part, bins, layout.parts)
        doubt = error[own]
        found[own] = with_total(found[own], doubt, max(float(mean[own].sum()), 0.0))
        if share < 1:
            variances[own] += ((1 - share) * doubt) ** 2 / max(float(doubt.sum()), _TINY)
    lowered = np.maximum(mean - found, 0.0)[:bins]
    reach = lowered / NINETY_PERCENT + np.sqrt(variance[:bins])
    variances[:bins] = np.maximum(variances[:bins], reach**2)
    return Shrunk(found, variances, share)
