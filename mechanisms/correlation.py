"""How far value and class go together: the bias of weighted releases, learnt from audits.

A weighted release misses the counts by b_j * w, where w is the spread of its weights (the square
root of its dispersion) and b_j = beta_j * s_j, s_j the variance of the count of bin j. An audit, a
release that weighs everybody alike, shows it. A few hypotheses on the size of beta, none among
them, are tracked side by side and mixed by how well they predict the audits.

Everything here is post-processing of releases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Standard deviation of beta under each hypothesis. A beta of 1 at a weight spread of 0.5 is a bias
# of half the count.
SIZES = np.array([0.0, 0.06, 0.2, 0.6])[:, None]
# Log of the belief, before any audit, that there is no correlation, over any other hypothesis.
NONE_AT_FIRST = 3.0
# Variance of beta's step from audit to audit, in parts of its own.
STEP = 0.01


@dataclass
class CorrelationState:
    """Belief of each hypothesis, arrays of shape (hypotheses, d) but for the scores."""

    mean: Floats
    variance: Floats
    scores: Floats
    """Log-likelihood of each hypothesis, shape (hypotheses,)."""


def start(bins: int) -> CorrelationState:
    """Before the first audit."""
    scores = np.zeros(len(SIZES))
    scores[0] = NONE_AT_FIRST
    ones = np.ones((1, bins))
    return CorrelationState(0 * SIZES * ones, SIZES**2 * ones, scores)


def belief(state: CorrelationState) -> tuple[Floats, Floats]:
    """Mean and variance of beta in each bin, both of shape (d,)."""
    weights = np.exp(state.scores - state.scores.max())[:, None]
    weights /= weights.sum()
    mean = (weights * state.mean).sum(axis=0)
    variance = (weights * (state.variance + (state.mean - mean) ** 2)).sum(axis=0)
    return mean, variance


def observe(state: CorrelationState, missed: Floats, lever: Floats, error: Floats) -> None:
    """Learn from an audit.

    Args:
        state: changed in place.
        missed: release minus audit, shape (d,).
        lever: what beta is multiplied by in it, shape (d,).
        error: variance of `missed` without it, shape (d,).
    """
    variance = state.variance + STEP * SIZES**2
    surprise = missed - state.mean * lever
    total = variance * lever**2 + error
    # The last bin of a complete histogram is no news once the others are known.
    news = (len(missed) - 1) / len(missed) if len(missed) > 1 else 1.0
    state.scores -= news * (surprise**2 / total + np.log(total)).sum(axis=1) / 2
    gain = variance * lever / total
    state.mean = state.mean + gain * surprise
    state.variance = variance * (1 - gain * lever)
