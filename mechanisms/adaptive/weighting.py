"""Weighted release: users with less budget count less, and the sum is rescaled.

Every user of class k has the weight m_k / M, where m_k = floor(e_k / u) is an integer, e_k the
class's offer in units and u the unit of noise; the largest weight, M, belongs to the threshold. The
integer histogram sum_k m_k C_k gets discrete Laplace noise at u units for a step of 1, and
n / (sum_k n_k m_k) turns it into an estimate of the counts.

Loss: a user of class k moves the integer histogram by m_k times the sensitivity in L1, which costs
exactly m_k * u * sensitivity <= e_k units. The scaling is public: post-processing.

If value and class are independent, the estimate is unbiased and its error is the noise plus
`dispersion` times the variance s of a count. Otherwise its bias grows as the spread of the weights,
the square root of `dispersion`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.weight_bias import Risk
from streamveil.mechanisms.core.units import Units, to_epsilon
from streamveil.mechanisms.protocol import Crowd
from streamveil.mechanisms.randomness.noise import (
    SlotNoise,
    digest,
    discrete_laplace,
    laplace_variance,
)

Floats = npt.NDArray[np.float64]

# Weights are rationals with this many steps: 2**-16 of the budget is lost to rounding.
STEP_BITS = 16
# Thresholds tried among the distinct offers.
MOST_CANDIDATES = 24


@dataclass(frozen=True)
class Weighting:
    """Integer weights for one release; see the module."""

    weights: npt.NDArray[np.int64]
    """m_k of each class, shape (K,)."""
    unit: int
    """Units of budget that a step of 1 in the integer histogram costs."""
    population: Crowd

    @classmethod
    def at(cls, threshold: int, offers: Units, population: Crowd) -> Weighting:
        """Weights for offers (K,) in units per unit of sensitivity, capped at the threshold."""
        unit = max(1, threshold >> STEP_BITS)
        return cls(np.minimum(offers, threshold) // unit, unit, population)

    @property
    def spent(self) -> Units:
        """Units that the release costs a user of each class, shape (K,)."""
        return self.weights * (self.unit * self.population.sensitivity)

    @property
    def factor(self) -> float:
        """From the integer histogram to estimated counts."""
        sizes = self.population.sizes
        return float(sizes.sum() / (sizes * self.weights).sum(dtype=np.float64))

    @property
    def epsilon(self) -> float:
        """Budget of a user with the largest weight."""
        return float(to_epsilon(self.spent.max()))

    @property
    def noise_variance(self) -> float:
        """Variance of the noise on an estimated count."""
        return self.factor**2 * laplace_variance(self.unit)

    @property
    def dispersion(self) -> float:
        """Spread of the weights, n sum n_k m_k**2 / (sum n_k m_k)**2 - 1: 0 when all are equal."""
        sizes = self.population.sizes.astype(np.float64)
        spread = sizes.sum() * (sizes * self.weights.astype(np.float64) ** 2).sum()
        return float(max(spread / (sizes * self.weights).sum() ** 2 - 1, 0.0))

    def histogram(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The private integer histogram of counts (K, d): shape (d,)."""
        table: npt.NDArray[np.int64] = self.weights @ counts
        return table

    def release(self, counts: npt.NDArray[np.int64], noise: SlotNoise, purpose: str) -> Floats:
        """Estimated counts of all users, shape (d,)."""
        noisy = self.add_noise(self.histogram(counts), noise, purpose)
        return noisy.astype(np.float64) * self.factor

    def add_noise(
        self, statistic: npt.NDArray[np.int64], noise: SlotNoise, purpose: str, *shaping: bytes
    ) -> npt.NDArray[np.int64]:
        """Add discrete Laplace noise to integers that the histogram moves by at most as much.

        The words belong to this weighting and to `shaping`, the public figures that entered the
        statistic: other weights or figures get independent noise.
        """
        shape = digest(self.weights.tobytes(), b"%d" % self.unit, *shaping, size=16)
        words = noise.words(f"{purpose} {shape.hex()}")
        return statistic + discrete_laplace(self.unit, statistic.size, words)


def candidates(offers: Units) -> Units:
    """Thresholds worth trying: the distinct offers above 0, or evenly spread ones of very many."""
    distinct = np.unique(offers[offers > 0])
    if len(distinct) <= MOST_CANDIDATES:
        return distinct
    return distinct[np.linspace(0, len(distinct) - 1, MOST_CANDIDATES).astype(np.int64)]


@dataclass(frozen=True)
class Choices:
    """The error of a release at each candidate threshold, for offers of shape (K,)."""

    thresholds: Units
    """Shape (c,); empty when nobody has any budget."""
    noise: Floats
    """Variance of the noise, shape (c,)."""
    dispersion: Floats
    """Shape (c,)."""

    @classmethod
    def of(cls, offers: Units, population: Crowd) -> Choices:
        """Look at all candidates."""
        thresholds = candidates(offers[population.sizes > 0])
        sizes = population.sizes.astype(np.float64)
        caps = to_epsilon(thresholds)[:, None]
        shares = np.minimum(to_epsilon(offers) / np.maximum(caps, 1e-300), 1.0)
        total = shares @ sizes
        factor = sizes.sum() / total
        noise = 2 * (factor / caps[:, 0]) ** 2
        dispersion = sizes.sum() * (shares**2 @ sizes) / total**2 - 1
        return cls(thresholds, noise, np.maximum(dispersion, 0.0))

    def errors(self, scale: float, risk: Risk) -> Floats:
        """Expected squared error of a count at each threshold, shape (c,).

        Args:
            scale: variance s of a count, for which dispersion counts.
            risk: of bias, which weights that are spread less than most are harder to foresee in.
        """
        nearness = self.dispersion / max(float(self.dispersion.max(initial=0.0)), 1e-12)
        bias = risk.here + risk.elsewhere * (1 - nearness)
        found: Floats = self.noise + self.dispersion * (scale + bias)
        return found
