"""Weighted release: users with less budget count less, and the sum is rescaled.

Every user of class k has the weight m_k / M, where m_k = floor(e_k / u) is an integer, e_k the
class's offer in units and u the unit of noise; the largest weight, M, belongs to the threshold. The
integer histogram sum_k m_k C_k gets discrete Laplace noise at u units for a step of 1, and
n / (sum_k n_k m_k) turns it into an estimate of the counts.

Loss: a user of class k moves the integer histogram by m_k times the sensitivity in L1, which costs
exactly m_k * u * sensitivity <= e_k units. The scaling is public: post-processing.

If value and class are independent, the estimate is unbiased and its error is the noise plus
`dispersion` times the variance s of a count. Otherwise its bias grows as the spread of the weights,
the square root of `dispersion`: if users with more budget are more often in bin j, a weighted
release misses the count of that bin.

The bias is learnt from audits, which is post-processing of releases. It is modelled as
beta_j * s_j * spread, with s_j the variance of a count. An audit is a release with equal weights.
Its difference to a weighted release of the same slot shows beta. A few hypotheses on the size of
beta, one of which is that it is 0, are tracked side by side and mixed by how well they predict the
audits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.filter_bank import surprisal
from streamveil.mechanisms.core.arrays import Floats, Halves
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.protocol import Crowd
from streamveil.mechanisms.randomness.noise import (
    SlotNoise,
    digest,
    discrete_laplace,
    laplace_variance,
)

# Weights are rationals with this many steps: 2**-16 of the budget is lost to rounding.
STEP_BITS = 16
# Thresholds tried among the distinct offers.
MOST_CANDIDATES = 24

# Standard deviation of beta under each hypothesis: a beta of 1 at a weight spread of 0.5 is a bias
# of half the count. Under the second one it is chance alone, in a bin whose users stay the same.
SIZES = np.array([0.0, 0.0, 0.06, 0.2, 0.6])[:, None]
CHANCE = np.array([0.0, 1.0, 0.0, 0.0, 0.0])[:, None]
# Log of the belief in each before any audit.
BELIEF = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
# If noise is larger than chance, audits hardly show whether users stay the same. So for stated
# errors, the hypothesis that they do has at least this share of belief.
STAYING = 0.25
_STAYING = (CHANCE > 0) * STAYING
# Variance of beta's step from audit to audit, in parts of its own.
STEP = 0.01
# A mean of beta is at most this many standard deviations from 0, by the hypothesis for the present
# count. An audit of a count of 1 says little when the count is 100. And without the limit, a bias
# that is added to a count would make the bias itself larger.
FAR = 3.0
# For the same reason, a release is never assumed to be too small by more than the first part of a
# count, nor too large by more than the second.
MISSED, TOO_MANY = 0.75, 1.0
# A bias is never foreseen better than this: it is not quite proportional to s and the spread.
MISFIT = 0.1
# A guess of how many users there are may be wrong by these factors.
WRONG_BY = np.array([0.1, 10.0])
# Weights are chosen as if the error of a wrong guess were this many standard deviations.
CAUTION = 2.0
# No beta is larger.
_LARGEST = 1e4
# Weights of this dispersion or less are equal.
_EQUAL = 1e-9
# What the misfit grows to for weights that are spread much less than an audit's.
MISFIT_OF_OTHERS = 0.5


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
        """Weights for offers (K,) in units; per unit of sensitivity, the threshold caps them."""
        each = offers // population.sensitivity
        unit = max(1, threshold >> STEP_BITS)
        return cls(np.minimum(each, threshold) // unit, unit, population)

    @cached_property
    def spent(self) -> Units:
        """Units that the release costs a user of each class, shape (K,)."""
        return self.weights * (self.unit * self.population.sensitivity)

    @cached_property
    def people(self) -> float:
        """Number of users, over the quantum."""
        return float(self.population.sizes.sum()) / self.population.quantum

    @cached_property
    def factor(self) -> float:
        """From the integer histogram to estimated counts, in quanta."""
        sizes, quantum = self.population.sizes, self.population.quantum
        return float(sizes.sum() / (sizes * self.weights).sum(dtype=np.float64) / quantum)

    @cached_property
    def heaviest(self) -> int:
        """Units that it costs a user with the largest weight."""
        return int(self.spent.max())

    @property
    def epsilon(self) -> float:
        """Budget of a user with the largest weight."""
        return float(to_epsilon(self.spent.max()))

    @cached_property
    def noise_variance(self) -> float:
        """Variance of the noise on an estimated count."""
        return self.factor**2 * laplace_variance(self.unit)

    @cached_property
    def dispersion(self) -> float:
        """Spread of the weights, n sum n_k m_k**2 / (sum n_k m_k)**2 - 1: 0 when all are equal."""
        sizes = self.population.sizes.astype(np.float64)
        spread = sizes.sum() * (sizes * self.weights.astype(np.float64) ** 2).sum()
        return float(max(spread / (sizes * self.weights).sum() ** 2 - 1, 0.0))

    def release(self, counts: npt.NDArray[np.int64], noise: SlotNoise, purpose: str) -> Floats:
        """Estimated counts of all users, shape (d,), of counts (K, d)."""
        noisy = self.add_noise(self.weights @ counts, noise, purpose)
        return noisy.astype(np.float64) * self.factor

    def add_noise(
        self, statistic: npt.NDArray[np.int64], noise: SlotNoise, purpose: str, *shaping: bytes
    ) -> npt.NDArray[np.int64]:
        """Add discrete Laplace noise to integers that the histogram moves by at most as much.

        The words belong to this weighting and to `shaping`, the public figures that entered the
        statistic: other weights or figures get independent noise.
        """
        shape = digest(self.population.shape_of(self.weights), b"%d" % self.unit, *shaping, size=16)
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
    """Shape (c,); empty if no class has budget."""
    noise: Floats
    """Variance of the noise, shape (c,)."""
    dispersion: Floats
    """Shape (c,)."""
    nearness: Floats
    """How near the dispersion is to the largest one, from 0 to 1: shape (c,)."""
    known: dict[tuple[float, Risk, int], int] = field(default_factory=dict)
    """The last result of :meth:`best`."""

    @classmethod
    def of(cls, offers: Units, population: Crowd) -> Choices:
        """Look at all candidates."""
        thresholds = candidates(offers[population.sizes > 0])
        sizes = population.sizes.astype(np.float64)
        caps = to_epsilon(thresholds)[:, None]
        shares = np.minimum(to_epsilon(offers) / np.maximum(caps, 1e-300), 1.0)
        total = shares @ sizes
        factor = sizes.sum() / total
        noise = 2 * (factor / caps[:, 0] / population.quantum) ** 2
        dispersion = np.maximum(sizes.sum() * (shares**2 @ sizes) / total**2 - 1, 0.0)
        nearness = dispersion / max(float(dispersion.max(initial=0.0)), 1e-12)
        return cls(thresholds, noise, dispersion, nearness)

    def errors(self, scale: float, risk: Risk, slots: int = 1) -> Floats:
        """Expected squared error of a count at each threshold, shape (c,).

        Args:
            scale: variance s of a count, for which dispersion counts.
            risk: of bias, which is harder to forecast for weights that are less spread than an
                audit's.
            slots: number of slots that give equally to a release of their mean.
        """
        bias = risk.here + risk.elsewhere * (1 - self.nearness)
        squared: Floats = self.noise / slots**2 + self.dispersion * (scale / slots + bias)
        return squared

    def best(self, scale: float, risk: Risk, slots: int = 1) -> int:
        """The threshold of the least of :meth:`errors`."""
        threshold = self.known.get((scale, risk, slots))
        if threshold is None:
            threshold = int(self.thresholds[self.errors(scale, risk, slots).argmin()])
            self.known.clear()
            self.known[scale, risk, slots] = threshold
        return threshold


def guessed_bias(offers: Units, crowd: Crowd) -> float:
    """Variance of beta because the size of a class is a guess: 0 if all sizes are known.

    A release is scaled by the mean weight of users. If a class is larger or smaller than assumed,
    all counts are wrong by the same factor.

    Args:
        offers: what users of each class may spend, shape (K,).
        crowd: of these classes.
    """
    k = crowd.guessed
    if k is None:
        return 0.0
    # Of each offer, not of each ledger: how many ledgers make it must not change a last digit.
    distinct, place = np.unique(offers, return_inverse=True)
    members = np.bincount(place, crowd.sizes)
    everybody = max(float(members.sum()), 1.0)
    sizes, guess, largest = members / everybody, crowd.guessed_users / everybody, 0.0
    wrong = 1 + (WRONG_BY - 1) * guess  # all users, relative to their assumed number
    for threshold in candidates(distinct[members > 0]).tolist():
        weights = np.minimum(distinct / threshold, 1.0)
        mean = float(weights @ sizes)
        spread = float(weights**2 @ sizes) / mean**2 - 1
        if spread > _EQUAL:
            really = (mean + (WRONG_BY - 1) * weights[place[k]] * guess) / wrong
            largest = max(largest, float(((really / mean - 1) ** 2).mean()) / spread)
    return largest


@dataclass
class CorrelationState:
    """Belief of each hypothesis in beta, as short as it is written; shape (hypotheses, d)."""

    mean: Halves
    deviation: Halves
    """Standard deviation."""
    scores: Floats
    """Log-likelihood of each hypothesis, shape (hypotheses,)."""
    mixed: tuple[Mixed, ...] = field(default=(), init=False)
    """All hypotheses together, for the last three scales that were requested, such as those before
    and after a release: not saved."""

    @classmethod
    def of(cls, mean: Floats, variance: Floats, scores: Floats) -> CorrelationState:
        """Round beliefs, here and nowhere else: bytes of a state lose nothing."""
        near = np.clip(mean, -_LARGEST, _LARGEST).astype(np.float16)
        return cls(near, np.sqrt(variance).astype(np.float16), scores)

    def at(self, scale: Floats, unknown: float = 0.0) -> tuple[Floats, Floats]:
        """Mean and variance of beta under each hypothesis, for bins of this s: (hypotheses, d)."""
        possible = _possible(scale, unknown)
        far = FAR * np.sqrt(possible)
        variance = np.minimum(self.deviation.astype(np.float64) ** 2, possible)
        mean = np.minimum(np.maximum(self.mean.astype(np.float64), -far), far)
        return mean, variance


class Risk(NamedTuple):
    """Expected squared bias of a count, for weights of dispersion 1."""

    here: float
    """If they are spread as in an audit."""
    elsewhere: float
    """What comes on top of it for weights that are hardly spread."""


NO_RISK = Risk(0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Mixed:
    """What is believed of beta in bins of some scale, arrays of shape (d,)."""

    scale: Floats
    unknown: float
    """The variance of beta that a guess of how many users there are makes."""
    mean: Floats
    variance: Floats
    stated: Floats
    """The variance for stated errors: see `STAYING`."""
    risk: Risk
    typical: float
    """Square root of the mean square of `mean`."""
    doubts: dict[tuple[float, float], Floats] = field(default_factory=dict)
    """The last result of :meth:`Correlation.doubt`."""
    biases: dict[tuple[float, float], tuple[Floats, Floats]] = field(default_factory=dict)
    """The last result of :meth:`Correlation.bias`."""

    @classmethod
    def of(cls, state: CorrelationState, scale: Floats, unknown: float = 0.0) -> Mixed:
        """Mix the hypotheses."""
        means, variances = state.at(scale, unknown)
        weights = _shares(state.scores)
        mean = (weights * means).sum(axis=0)
        each = variances + (means - mean) ** 2
        variance = (weights * each).sum(axis=0)
        stated = ((_STAYING + (1 - STAYING) * weights) * each).sum(axis=0)
        squared, bins = (mean * scale) ** 2, len(scale)
        here = variance * scale**2 + MISFIT**2 * squared
        risky = float(here.sum())
        if unknown:  # a wrong guess is in all bins alike, and so in their sum
            risky = CAUTION**2 * float(np.sqrt(here).sum()) ** 2
        risk = Risk(risky / bins, float(MISFIT_OF_OTHERS**2 * (squared.sum() / bins)))
        typical = float(np.sqrt((mean**2).sum() / bins))
        return cls(scale, unknown, mean, variance, stated, risk, typical)


class Correlation:
    """Bias of releases whose weights have at most the dispersion `reference`.

    `unknown` is the variance of beta under all hypotheses alike: see :func:`guessed_bias`.
    """

    def __init__(self, bins: int, reference: float, unknown: float = 0.0) -> None:
        self.bins = bins
        self.unknown = unknown
        self.reference = max(reference, 1e-12)

    def start(self, scale: Floats) -> CorrelationState:
        """Before the first audit."""
        variance = _possible(scale, self.unknown)
        return CorrelationState.of(np.zeros_like(variance), variance, BELIEF.copy())

    def belief(self, state: CorrelationState, scale: Floats) -> Mixed:
        """Of each bin, and the squared bias to expect: mixed once for a scale of shape (d,).

        If requirements change, `unknown` may change too. A resumed run must not differ from one
        that was not interrupted.
        """
        for known in state.mixed:
            if known.scale is scale and known.unknown == self.unknown:
                return known
        made = Mixed.of(state, scale, self.unknown)
        state.mixed = (made, *state.mixed[:2])
        return made

    def bias(
        self, state: CorrelationState, scale: Floats, dispersion: float
    ) -> tuple[Floats, Floats]:
        """Mean and variance of a release's bias in each bin, both of shape (d,).

        Args:
            state: belief.
            scale: s of each bin, shape (d,).
            dispersion: of the release's weights.
        """
        belief, key = self.belief(state, scale), (dispersion, self.reference)
        if key not in belief.biases:
            lever = scale * dispersion**0.5
            expected = np.maximum(belief.mean * lever, -MISSED * scale)
            squared = belief.variance + self._misfit(dispersion) * belief.mean**2
            belief.biases.clear()
            belief.biases[key] = np.minimum(expected, TOO_MANY * scale), squared * lever**2
        return belief.biases[key]

    def doubt(self, state: CorrelationState, scale: Floats, dispersion: float) -> Floats:
        """Stated variance of the bias that :meth:`bias` expects, shape (d,)."""
        belief, key = self.belief(state, scale), (dispersion, self.reference)
        if key not in belief.doubts:
            squared = belief.stated + self._misfit(dispersion) * belief.mean**2
            belief.doubts.clear()
            belief.doubts[key] = squared * scale**2 * dispersion
        return belief.doubts[key]

    def _misfit(self, dispersion: float) -> float:
        """Expected squared error of a forecast bias, as a fraction of the squared bias."""
        apart = max(0.0, 1 - dispersion / self.reference)
        return MISFIT**2 + MISFIT_OF_OTHERS**2 * apart

    def learn(
        self,
        state: CorrelationState,
        missed: Floats,
        scale: Floats,
        dispersion: float,
        error: Floats,
    ) -> None:
        """Learn from an audit.

        Args:
            state: changed in place.
            missed: weighted release minus audit, shape (d,).
            scale: s of each bin, shape (d,).
            dispersion: of the release's weights.
            error: variance of `missed` without the bias, shape (d,).
        """
        lever = scale * np.sqrt(dispersion)
        before, variance = state.at(scale, self.unknown)
        variance = variance + STEP * _possible(scale, self.unknown)
        surprise = missed - before * lever
        total = variance * lever**2 + error
        # The last bin of a complete histogram is no news once the others are known.
        news = (len(missed) - 1) / len(missed) if len(missed) > 1 else 1.0
        scores = state.scores - news * surprisal(surprise, total).sum(axis=1)
        gain = variance * lever / total
        mean = before + gain * surprise
        learnt = CorrelationState.of(mean, variance * error / total, scores)
        vars(state).update(vars(learnt) | {"mixed": ()})


def _possible(scale: Floats, unknown: float) -> Floats:
    """Variance of beta under each hypothesis, for bins of this s: (hypotheses, d)."""
    variance: Floats = SIZES**2 + unknown + CHANCE / scale
    return variance


def _shares(scores: Floats) -> Floats:
    """Beliefs of these logs, shape (hypotheses, 1)."""
    weights = np.exp(scores - scores.max())[:, None]
    shares: Floats = weights / weights.sum()
    return shares
