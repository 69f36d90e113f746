"""How far intervals must reach, learnt from how far releases were from what had been foreseen.

The filters state a variance for everything that they foresee. Whether it is the right one shows
when the next release comes: of the innovations, about 90 % should lie within 1.645 of their
standard deviations. That is so for normal errors, for Laplace noise and, nearly, for their sums;
how far the few others are away does not matter, so a jump does not widen what follows. Where more
of them lie outside, the variance of what is foreseen is multiplied by a factor. The noise is known
and has none.

Each bin has a factor of its own, as far as its releases show more than those of all bins together.
Variances that differ from bin to bin more than they usually do are taken with caution: they follow
a level that is itself uncertain. What is not known of a factor widens intervals, too.

Everything here is post-processing of releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.adaptive.kalman import Forecast
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Singles
from streamveil.mechanisms.core.tidy import NINETY_PERCENT

# Of sums of a normal error and Laplace noise, by the share of the variance that is the error's: how
# many lie outside, and how many more for each unit of the log of the error's variance.
_SHARES = np.linspace(0, 1, 11)
_OUTSIDE = np.array(
    [0.0976, 0.0962, 0.0953, 0.0950, 0.0954, 0.0963, 0.0973, 0.0984, 0.0993, 0.0998, 0.1000]
)
_SLOPES = np.array(
    [0.0000, 0.0107, 0.0238, 0.0396, 0.0574, 0.0763, 0.0955, 0.1146, 0.1335, 0.1519, 0.1696]
)
# Variance of whether one lies outside.
_SPREAD = 0.09
# Variances before any release: of the log of the common factor, of its slope over unusual logs of
# variances, and of the log of a bin's factor relative to the common one.
COMMON, OWN = np.array([0.25, 0.25]), 0.25
# They grow by so much with each release, but not beyond those.
COMMON_STEP, OWN_STEP = 0.002, 0.001
# Of the variance of the log of a factor, so much is added to it: errors are normal then with
# variances that are not known, and this is the second order of what holds 90 % of them.
ALLOWANCE = (NINETY_PERCENT**2 - 1) / 4
# The bank must be so certain that there is no white part: what it believes has this power. Sums
# average it out, so they hardly show whether there is one.
CERTAIN = 6
# Its variance is at least that of a count of this size: an interval around 0 that does not reach 1
# would miss all that is not 0.
LEAST_WHITE = 0.5
# Memory of usual variances, by release.
SLOW = 0.02
MOST_UNUSUAL = 2.0
_LEAST = 1e-9
# Counts of people come in waves of days and weeks, of which the first releases show little. So the
# standard error of what is foreseen is at least this part of the count, less by the second with
# each release that shows how far counts vary.
SWING, LESS = 0.3, 0.2
# Shares of slots in a release of which nothing was learnt.
NOTHING = np.zeros(1)


@dataclass
class Misfit:
    """Factors on the variance of what is foreseen, and how well they are known."""

    own: Singles
    """Log of the factor of each bin relative to the common one, shape (d,)."""
    own_variance: Singles
    """Shape (d,)."""
    usual: Singles
    """Log of the variance with which releases are usually foreseen, shape (d,)."""
    common: Floats
    """Log of the common factor, and its slope over unusual logs of variances, -1 to 0."""
    covariance: Floats
    """Of these, shape (2, 2)."""
    blur: Floats
    """Mean variance over bins of all that was in the last release but counts, shape (1,)."""
    releases: int = 0

    SCHEMA = state_codec.record_schema(
        "Misfit", parts={"type": "array", "items": "bytes"}, releases="long"
    )

    @classmethod
    def start(cls, bins: int) -> Misfit:
        """Before the first release."""
        zeros = np.zeros(bins, np.float32)
        own_variance = np.full(bins, OWN, np.float32)
        return cls(zeros, own_variance, zeros.copy(), np.zeros(2), np.diag(COMMON), np.zeros(1))

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        parts = [part.tobytes() for part in vars(self).values() if isinstance(part, np.ndarray)]
        return {"parts": parts, "releases": self.releases}

    @classmethod
    def read(cls, written: dict[str, Any], bins: int) -> Misfit:
        """The factors of a record. `bins` is the number of bins of the stream."""
        misfit = cls.start(bins)
        for (name, part), stored in zip(list(vars(misfit).items()), written["parts"], strict=False):
            vars(misfit)[name] = np.frombuffer(stored, part.dtype).reshape(part.shape).copy()
        misfit.releases = written["releases"]
        return misfit

    def of(self, forecast: Forecast, every: bool = False) -> Floats:
        """Stated variance of forecast counts, shape (d,), or (slots, d) for several slots.

        Args:
            forecast: what the bank expects.
            every: whether every slot is released.
        """
        factor = self.factor(forecast.variance)
        return factor * forecast.variance + _white(forecast, factor, self.blur if every else None)

    def after(self, seen: Observed, forecast: Forecast, every: bool = False) -> Floats:
        """Stated variance of the present slot's counts once its release is known.

        The stated variance of the slot's own deviation is larger than that of the filters. The
        deviation is part of the release, as far as the slot is. The filters attribute a part of the
        innovation to it, by their own variances. With the stated variances, that part is not the
        best one, so that more error remains.
        """
        factor = self.factor(seen.foreseen)
        blur = seen.noise + seen.error
        shares = seen.taken.shares if seen.taken else NOTHING
        more = _white(forecast, factor, blur if every else None) - factor * forecast.white
        # By the filters, that part squared is what the variance lost, over that of the surprise.
        # The rest is computed from the variance after the release: that before it may be 10**15
        # times as large.
        squared = np.maximum(seen.before - seen.variance, 0.0) / (seen.foreseen + blur)
        taken = np.sqrt(squared)
        left = factor * np.minimum(seen.before, seen.variance) + (1 - factor) * squared * blur
        left += (1 - 2 * taken * float(shares[-1]) + squared * float(shares @ shares)) * more
        # What was released may shift weights between filters: no less is left than they say, of
        # which a factor below 1 takes its part. After a jump nothing else is known.
        left = np.maximum(left, np.minimum(factor, 1.0) * seen.variance)
        # What is left of a usual wave is in what the release did not move.
        left = np.maximum(left, (1 - taken * float(shares[-1])) ** 2 * self.swing(seen.mean))
        return np.where(seen.jumped, seen.variance, left)

    def swing(self, mean: Floats) -> Floats:
        """Variance of usual waves around means, as far as releases have not shown another.

        Shape (d,). A slot that is foreseen has this at least.
        """
        swing = SWING * (1 - LESS) ** self.releases * mean
        variance: Floats = swing * swing
        return variance

    def learn(self, seen: Observed) -> None:
        """Learn from a release that was foreseen."""
        self.releases += 1
        stated = np.log(np.maximum(seen.foreseen, _LEAST))
        weight = max(SLOW, 1 / self.releases)
        self.usual = (self.usual + weight * (stated - self.usual)).astype(np.float32)
        unusual = self._unusual(seen.foreseen)
        log = self.common[0] + self.common[1] * unusual + self.own
        blur = seen.noise + seen.error
        self.blur[:] = blur.mean()
        foreseen = np.exp(log) * seen.foreseen
        total = foreseen + blur
        outside = np.abs(seen.observed - seen.expected) > NINETY_PERCENT * np.sqrt(total)
        excess = outside - np.interp(foreseen / total, _SHARES, _OUTSIDE)
        # Releases count alike, whatever variance was stated of them.
        typical = np.exp(self.common[0] + self.own + self.usual)
        lever = np.interp(typical / (typical + blur), _SHARES, _SLOPES)
        self._update(lever, unusual, excess)

    def _update(self, lever: Floats, unusual: Floats, excess: Floats) -> None:
        spread = _SPREAD + lever**2 * self.own_variance
        levers = np.array([lever, lever * unusual])
        weighted = levers / spread
        covariance = np.linalg.inv(np.linalg.inv(self.covariance) + weighted @ levers.T)
        step = covariance @ (weighted @ excess)
        self.common = self.common + step
        self.common[1] = min(max(self.common[1], -1.0), 0.0)
        known = covariance.diagonal()
        grown = np.sqrt(np.minimum(known + COMMON_STEP, COMMON) / known)
        self.covariance = covariance * grown * grown[:, None]
        gain = self.own_variance * lever / spread
        self.own = (self.own + gain * (excess - step @ levers)).astype(np.float32)
        variance = self.own_variance * (1 - gain * lever) + OWN_STEP
        self.own_variance = np.minimum(variance, OWN).astype(np.float32)

    def _unusual(self, variance: Floats) -> Floats:
        """How far the log of each variance is above its usual value, compared with all bins."""
        above = np.log(np.maximum(variance, _LEAST)) - self.usual
        above -= above.sum(axis=-1, keepdims=True) / above.shape[-1]
        unusual: Floats = np.minimum(np.maximum(above, -MOST_UNUSUAL), MOST_UNUSUAL)
        return unusual

    def factor(self, variance: Floats) -> Floats:
        """Factor from the filters' variance of a forecast to the stated one, shape (d,)."""
        unknown = self.own_variance + self.covariance[0, 0]
        log = self.common[0] + self.common[1] * self._unusual(variance) + self.own
        factor: Floats = np.exp(log + ALLOWANCE * unknown)
        return factor


def _white(forecast: Forecast, factor: Floats, blur: Floats | None) -> Floats:
    """Stated variance of a slot's own deviation from the curve, shape (d,).

    Releases of every slot show the deviation, as far as noise does not hide it; those of sums
    hardly do. As far as it is hidden, it is left out only if it is almost certainly absent.

    Args:
        forecast: of the slot.
        factor: on the variance of the curve, (d,).
        blur: variance of all that is in releases but counts, (d,) or (1,); None of sums.
    """
    absent = np.minimum(np.maximum(1 - forecast.white / forecast.scale, 0.0), 1.0)
    hidden = np.maximum(forecast.scale, LEAST_WHITE) * (1 - absent**CERTAIN)
    hidden = np.maximum(hidden, forecast.white)  # more than chance makes it, as in waves
    if blur is None:
        return np.asarray(hidden)
    shown = forecast.scale / (forecast.scale + blur)
    return np.asarray(hidden + shown * (factor * forecast.white - hidden))
