"""How far value and class go together: the bias of weighted releases, learnt from audits.

If users with more budget are more often in bin j, a weighted release misses the count of that bin.
The bias is modelled as beta_j * s_j * spread, with s_j the variance of a count and the spread of
the weights the square root of their dispersion. An audit, a release that weighs everybody alike,
beside a weighted release of the same slot shows beta. A few hypotheses on its size, none at all
among them, are tracked side by side and mixed by how well they predict the audits.

Everything here is post-processing of releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.filter_bank import surprisal

Floats = npt.NDArray[np.float64]

# Standard deviation of beta under each hypothesis: a beta of 1 at a weight spread of 0.5 is a bias
# of half the count. Under the second one it is chance alone, in a bin whose users stay the same.
SIZES = np.array([0.0, 0.0, 0.06, 0.2, 0.6])[:, None]
CHANCE = np.array([0.0, 1.0, 0.0, 0.0, 0.0])[:, None]
# Log of the belief in each before any audit.
BELIEF = np.array([2.0, 2.0, 0.0, 0.0, 0.0])
# Variance of beta's step from audit to audit, in parts of its own.
STEP = 0.01
# A bias is never foreseen better than this: it is not quite proportional to s and the spread.
MISFIT = 0.1
# What the misfit grows to for weights that are spread much less than an audit's.
MISFIT_OF_OTHERS = 0.5


@dataclass
class CorrelationState:
    """Belief of each hypothesis, arrays of shape (hypotheses, d) but for the scores."""

    mean: Floats
    variance: Floats
    scores: Floats
    """Log-likelihood of each hypothesis, shape (hypotheses,)."""


class Risk(NamedTuple):
    """Expected squared bias of a count, for weights of dispersion 1."""

    here: float
    """If they are spread as in an audit."""
    elsewhere: float
    """What comes on top of it for weights that are hardly spread."""


class Correlation:
    """Bias of releases whose weights have at most the dispersion `reference`."""

    def __init__(self, bins: int, reference: float) -> None:
        self.bins = bins
        self.reference = max(reference, 1e-12)

    def start(self, scale: Floats) -> CorrelationState:
        """Before the first audit."""
        variance = SIZES**2 + CHANCE / scale
        return CorrelationState(np.zeros_like(variance), variance, BELIEF.copy())

    def belief(self, state: CorrelationState) -> tuple[Floats, Floats]:
        """Mean and variance of beta in each bin, both of shape (d,)."""
        weights = np.exp(state.scores - state.scores.max())[:, None]
        weights /= weights.sum()
        mean = (weights * state.mean).sum(axis=0)
        variance = (weights * (state.variance + (state.mean - mean) ** 2)).sum(axis=0)
        return mean, variance

    def bias(
        self, state: CorrelationState, scale: Floats, dispersion: float
    ) -> tuple[Floats, Floats]:
        """Mean and variance of a release's bias in each bin, both of shape (d,).

        Args:
            state: belief.
            scale: s of each bin, shape (d,).
            dispersion: of the release's weights.
        """
        mean, variance = self.belief(state)
        apart = max(0.0, 1 - dispersion / self.reference)
        misfit = MISFIT**2 + MISFIT_OF_OTHERS**2 * apart
        lever = scale * np.sqrt(dispersion)
        return mean * lever, (variance + misfit * mean**2) * lever**2

    def risk(self, state: CorrelationState, scale: Floats) -> Risk:
        """Squared bias to expect of a count, averaged over bins."""
        mean, variance = self.belief(state)
        squared = (mean * scale) ** 2
        here = variance * scale**2 + MISFIT**2 * squared
        return Risk(float(here.mean()), float(MISFIT_OF_OTHERS**2 * squared.mean()))

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
        variance = state.variance + STEP * (SIZES**2 + CHANCE / scale)
        surprise = missed - state.mean * lever
        total = variance * lever**2 + error
        # The last bin of a complete histogram is no news once the others are known.
        news = (len(missed) - 1) / len(missed) if len(missed) > 1 else 1.0
        state.scores -= news * surprisal(surprise, total).sum(axis=1)
        gain = variance * lever / total
        state.mean = state.mean + gain * surprise
        state.variance = variance * (1 - gain * lever)
