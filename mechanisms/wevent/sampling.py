"""The sampling mechanism (SM): one noise scale for users with different budgets.

A user whose budget e is below the threshold th is kept with probability
p = (exp(e) - 1) / (exp(th) - 1), everybody else always; then noise for th is added. That costs a
user exactly min(e, th). Users of one class share e, so keeping each of them with probability p is
thinning the class's counts: no user needs to be looked at.

With sensitivity D above 1 (several contributions, or replacement), every unit of change is paid
for apart: budgets are divided by D, each contribution is thinned by itself, and a user's total is
at most D * floor(e / D) <= e by group privacy.

Source: Jorgensen, Yu, Cormode, "Conservative or liberal? Personalized differential privacy"
(2015), Definition 8 and Theorem 1; Du et al., Section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Units, to_epsilon, to_units
from streamveil.mechanisms.protocol import Crowd
from streamveil.mechanisms.randomness.noise import (
    RandomWords,
    SlotNoise,
    discrete_laplace,
    laplace_variance,
    probability_threshold,
    thin,
)
from streamveil.mechanisms.wevent.obs import keep_probability, optimal_budget_selection


@dataclass(frozen=True)
class Sampling:
    """SM at the threshold that OBS chooses for given budgets."""

    threshold: int
    """Budget of the noise per unit of sensitivity, in units; 0 when nobody has any budget."""
    error: float
    """Expected squared error of a count by OBS; infinite when the threshold is 0."""
    keep: npt.NDArray[np.float64]
    """Probability that a contribution of each class is kept, shape (K,)."""
    population: Crowd

    @classmethod
    def choose(cls, budgets: Units, population: Crowd) -> Sampling:
        """Choose the threshold for per-slot budgets of shape (K,), in units."""
        each = to_epsilon(budgets // population.sensitivity)
        threshold, error = optimal_budget_selection(each, population.sizes)
        keep = keep_probability(each, threshold) if threshold > 0 else np.zeros(each.shape)
        return cls(to_units(threshold), error, keep, population)

    @classmethod
    def at(cls, threshold: int, budgets: Units, population: Crowd) -> Sampling:
        """SM at a threshold above 0, in units, that OBS had no part in: its error is unknown."""
        each = to_epsilon(budgets // population.sensitivity)
        keep = keep_probability(each, float(to_epsilon(threshold)))
        return cls(threshold, float("nan"), keep, population)

    @property
    def epsilon(self) -> float:
        """Threshold budget of a user: the per-unit threshold times the sensitivity."""
        return float(to_epsilon(self.threshold * self.population.sensitivity))

    def sample(self, counts: npt.NDArray[np.int64], words: RandomWords) -> npt.NDArray[np.int64]:
        """Thin counts of shape (K, d) and add the classes up: shape (d,)."""
        certain, some, thresholds = self._kept
        kept: npt.NDArray[np.int64] = thin(counts[some], thresholds, words).sum(axis=0)
        return kept + counts[certain].sum(axis=0)

    @cached_property
    def _kept(self) -> tuple[Integers, Integers, list[int]]:
        """Classes that are kept whole, those that are thinned, and the thresholds of these."""
        some = np.flatnonzero((self.keep > 0) & (self.keep < 1))
        thresholds = [probability_threshold(p) for p in self.keep[some].tolist()]
        return np.flatnonzero(self.keep >= 1), some, thresholds

    def publish(
        self, counts: npt.NDArray[np.int64], noise: SlotNoise
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Private counts and their expected standard error, shape (d,), of counts (K, d)."""
        sampled = self.sample(counts, noise.words("publication sample"))
        released = sampled + self.noise(sampled.size, noise.words("publication noise"))
        return released, self.standard_error(released)

    def noise(self, size: int, words: RandomWords) -> npt.NDArray[np.int64]:
        """Discrete Laplace noise for counts that one unit of change moves by at most 1."""
        return discrete_laplace(self.threshold, size, words)

    def standard_error(self, released: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Expected standard error of each released count, from public figures: shape (d,).

        Noise, plus the variance and bias of sampling if classes were equally busy: a count c is
        estimated as released / (share of users kept).
        """
        noise = laplace_variance(self.threshold)
        weights = self.population.sizes / max(int(self.population.sizes.sum()), 1)
        kept = float((weights * self.keep).sum())
        busy = np.maximum(released, 0) / kept if kept > 0 else np.zeros(released.shape)
        variance = busy * float((weights * self.keep * (1 - self.keep)).sum())
        errors: npt.NDArray[np.float64] = np.sqrt(noise + variance + (busy * (1 - kept)) ** 2)
        return errors
