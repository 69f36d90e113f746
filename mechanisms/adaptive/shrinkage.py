"""How much of an estimate to believe where counts are far below the noise.

Estimates that are mostly noise err more than zeros do. So they are multiplied by a share from 0 to
1, the one that would have brought earlier forecasts nearest to the releases that came after them:
their noise is new, so the comparison is fair. Nothing is known of it before there are forecasts;
until then the share is that of James and Stein, from the estimates and their variances. Where
counts stand out from the noise both are 1 or nearly so. Totals of bins, which are released beside
them, are no estimates of this kind: they are told as they are, and nothing is learnt from them.

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

# Forgetting of earlier forecasts, by release.
MEMORY = 0.98
# Of the share of James and Stein: as if it came from forecasts so many times as large as the noise.
PRIOR = 4.0
# From this share on, estimates are clear enough to be left as they are: forecasts lag behind.
CLEAR = 0.8
# From this share of James and Stein on they are what they are, whatever became of forecasts.
EVIDENT = 0.95
# Variance of a squared draw of Laplace noise, in squares of its variance.
KURTOSIS = 5.0
# The power of the share that variances are multiplied with: less than the 1 of normal counts, for
# what counts there are come in few bins and slots.
SLACK = 0.25
# With less than this share nothing would ever be learnt.
LEAST_LEARNT = 0.2
# Squares of forecasts, in parts of the noise, from which on they tell how large counts are.
TELLING = 50.0
# So many standard deviations of counts, as the share tells them, are the most that is plausible.
MOST = 6.0
_LEAST = 1e-9


@dataclass
class Shrinkage:
    """Forecasts beside the releases after them, in parts of the noise."""

    product: float = 0.0
    square: float = 0.0

    SCHEMA = state_codec.record_schema("Shrinkage", product="double", square="double")

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        return dict(vars(self))

    def learn(self, seen: Observed, totals: int = 0) -> None:
        """Learn from a release that was foreseen, of which the last bins are totals."""
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
        """What to multiply estimates with, from 0 to 1, given their variances, both (d,)."""
        ratio = float(variance.sum()) / max(float(mean @ mean), _LEAST)
        # One large draw of noise must not pass for counts.
        sure = max(1 - ratio * (1 + 3 * (KURTOSIS / len(mean)) ** 0.5), 0.0)
        if sure >= EVIDENT:
            return 1.0
        # Half a standard error less: what chance makes of it must not be worse than zeros.
        learnt = (self.product - self.square**0.5 / 2 + PRIOR * sure) / (self.square + PRIOR)
        return 1.0 if learnt >= CLEAR else min(max(learnt, 0.0), 1.0)

    def shrunk(
        self, mean: Floats, variance: Floats, error: Floats, totals: int = 0
    ) -> tuple[Floats, Floats, float]:
        """Estimates as they are to be told, all arrays of shape (d,).

        Args:
            mean: estimates.
            variance: of the counts about them.
            error: variance of the estimates alone, without that of what cannot be foreseen.
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
        # A count may be about the estimate or about nothing, and it is a whole number.
        apart = share * (1 - share) * np.minimum(counts**2 + counts, variance)
        # Chance may hide a larger share.
        largest = min(share + 2 * (self.square + PRIOR) ** -0.5, 1.0)
        return share * counts, largest**SLACK * variance + apart, share

    def _plausible(self, share: float, mean: Floats, variance: Floats) -> Floats:
        """Estimates from 0 to the most that counts may be, once forecasts tell how large they are.

        One that is larger is a draw of noise, or of a crowd that the next forecasts will tell of.
        """
        counts: Floats = np.maximum(mean, 0.0)
        if share < CLEAR and self.square > TELLING:
            most = MOST * np.sqrt(np.median(variance) * share / (1 - share))
            counts = np.minimum(counts, most)
        return counts
