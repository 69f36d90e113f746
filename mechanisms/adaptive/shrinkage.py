"""Shrinkage of estimates where counts are far below the noise.

Estimates that are mostly noise have larger errors than zeros. So they are multiplied by a share
from 0 to 1: the one that would have brought earlier forecasts nearest to the releases after them,
whose noise is independent of the forecasts. Before there are forecasts, the share is that of James
and Stein, from the estimates and their variances. Where counts stand out from the noise, both are 1
or nearly so. Totals that are released with the bins are not shrunk, and nothing is learnt from
them.

Everything here is post-processing of releases.
Source: C. Stein, "Inadmissibility of the usual estimator for the mean of a multivariate normal
distribution" (1956); W. James and C. Stein, "Estimation with quadratic loss" (1961).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats

# Weight of a forecast after the next release, relative to its weight before.
MEMORY = 0.98
# Weight of the share of James and Stein: the sum of squared forecasts over noise that it stands
# for.
PRIOR = 4.0
# From this share on, estimates are clear enough to be left as they are: forecasts lag behind.
CLEAR = 0.8
# From this share of James and Stein on they are not shrunk, however good forecasts were.
EVIDENT = 0.95
# Variance of a squared draw of Laplace noise, in squares of its variance.
KURTOSIS = 5.0
# Variances are multiplied by this power of the share. It is less than the 1 of normal counts,
# because sparse counts are in few bins and slots.
SLACK = 0.25
# With less than this share nothing would ever be learnt.
LEAST_LEARNT = 0.2
# Sum of squared forecasts over noise, from which on forecasts show how large counts are.
TELLING = 50.0
# The largest plausible count, in standard deviations of counts, which follow from the share.
MOST = 6.0
_LEAST = 1e-9


@dataclass
class Shrinkage:
    """Sums over forecasts and the releases after them, relative to the noise."""

    product: float = 0.0
    square: float = 0.0

    SCHEMA = state_codec.record_schema("Shrinkage", product="double", square="double")

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        return dict(vars(self))

    def learn(self, seen: Observed, totals: int = 0) -> None:
        """Learn from a release with a forecast. The last `totals` bins are totals."""
        bins = len(seen.observed) - totals
        expected, foreseen = seen.expected[:bins], seen.foreseen[:bins]
        share = max(self.share(expected, foreseen), LEAST_LEARNT)
        forecast = self._plausible(share, expected, foreseen)
        weighed = forecast / (
            np.broadcast_to(seen.noise + seen.error, seen.foreseen.shape)[:bins] + foreseen
        )
        self.product = MEMORY * self.product + float(weighed @ seen.observed[:bins])
        self.square = MEMORY * self.square + float(weighed @ forecast)

    def share(self, mean: Floats, variance: Floats) -> float:
        """The factor for estimates, from 0 to 1, given their variances, both (d,)."""
        ratio = float(variance.sum()) / max(float(mean @ mean), _LEAST)
        # One large draw of noise must not pass for counts.
        sure = max(1 - ratio * (1 + 3 * (KURTOSIS / len(mean)) ** 0.5), 0.0)
        if sure >= EVIDENT:
            return 1.0
        # Half a standard error less, so that an error of the share is hardly worse than zeros.
        learnt = (self.product - self.square**0.5 / 2 + PRIOR * sure) / (self.square + PRIOR)
        return 1.0 if learnt >= CLEAR else min(max(learnt, 0.0), 1.0)

    def shrunk(
        self, mean: Floats, variance: Floats, error: Floats, totals: int = 0
    ) -> tuple[Floats, Floats, float]:
        """Shrunk estimates; all arrays have shape (d,).

        Args:
            mean: estimates.
            variance: of the counts about them.
            error: variance of the estimates alone, without the deviations of single slots.
            totals: how many of the last bins are totals.

        Returns:
            (counts, their variances, the share that was believed).
        """
        if totals:
            bins = len(mean) - totals
            counts, variances, share = self.shrunk(mean[:bins], variance[:bins], error[:bins])
            return np.append(counts, mean[bins:]), np.append(variances, variance[bins:]), share
        share = self.share(mean, error)
        counts = self._plausible(share, mean, variance)
        if share == 1.0:
            return counts, variance.copy(), share
        # A count may be near the estimate or near 0, and it is an integer.
        apart = share * (1 - share) * np.minimum(counts**2 + counts, variance)
        # Chance may hide a larger share.
        largest = min(share + 2 * (self.square + PRIOR) ** -0.5, 1.0)
        return share * counts, largest**SLACK * variance + apart, share

    def _plausible(self, share: float, mean: Floats, variance: Floats) -> Floats:
        """Estimates from 0 to the largest plausible count, once forecasts show what that is.

        A larger one is noise, or a rise of the count, which later forecasts will show.
        """
        counts: Floats = np.maximum(mean, 0.0)
        if share < CLEAR and self.square > TELLING:
            most = MOST * np.sqrt(np.median(variance) * share / (1 - share))
            counts = np.minimum(counts, most)
        return counts
