"""A bank of Kalman filters: what is known of the counts from noisy releases.

Everything here is post-processing of releases: floats are fine, privacy does not depend on it.

A count is modelled as a smooth curve plus white deviations. Each member of the bank assumes another
kind of stream: how fast the curve drifts, how fast its slope changes, how large the white part is,
all as multiples of s = r (1 - r / n), the variance of a count of n users who each take part with
probability r / n. Members are mixed by how well they predicted, bin by bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# (variance of the level's step, of the slope's step, of the white part), in multiples of s.
LEVELS = [(drift, 0.0, white) for white in (0.0, 1.0) for drift in (1e-3, 1e-2, 1e-1, 1.0, 10.0)]
TRENDS = [(0.0, bend, white) for white in (0.0, 1.0) for bend in (1e-6, 1e-5, 1e-4, 1e-3)]
DRIFT, BEND, WHITE = np.array(LEVELS + TRENDS).T[:, :, None]
TRENDING = BEND > 0
MEMBERS = len(DRIFT)
# Log of the belief in each member before any release: fast drift is rare.
BELIEF = -np.log1p(DRIFT)

# Forgetting of what members predicted, by release.
MEMORY = 0.96
# Standard deviations from which on tails are taken for exponential.
TAIL = 2.0
# An innovation of so many standard deviations is a jump; noise has heavier tails than the rest.
JUMP = 4.5
JUMP_OF_NOISE = 9.0
# Share of a jump that a trending member takes for a change of slope since the last release.
SLOPE_OF_JUMP = 0.7

GAPS = np.array([*range(1, 13), 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 64])
# As many releases does a plan look ahead: a still stream takes longer to settle.
HORIZON = 200
_RATIOS = np.arange(-24, 25)


@dataclass
class BankState:
    """The members' beliefs, each array of shape (members, d), and what they are scaled by."""

    level: Floats
    slope: Floats
    level_var: Floats
    covariance: Floats
    slope_var: Floats
    scores: Floats
    """Discounted log-likelihood of each member in each bin."""
    scale: Floats
    """s of each bin, shape (d,)."""


@dataclass(frozen=True)
class Forecast:
    """What the bank expects of a slot, arrays of shape (d,)."""

    mean: Floats
    variance: Floats
    """Of the curve."""
    white: Floats
    """Variance of the slot's own deviation from the curve."""


class Bank:
    """Filters for counts of `users` users in `bins` bins.

    Members are believed by what they predicted: each release makes that count for `memory` times
    what it did before.
    """

    def __init__(self, users: float, bins: int, memory: float = MEMORY) -> None:
        self.users = max(users, 1.0)
        self.bins = bins
        self.memory = memory

    def start(self) -> BankState:
        """Before the first release: anything between nobody and everybody."""
        shape = (MEMBERS, self.bins)
        mean = np.full(self.bins, self.users / (2 * self.bins))
        prior = np.full(shape, self.users**2 / (2 * self.bins**1.5))
        scale = self.scale(mean)
        zeros = np.zeros(shape)
        return BankState(
            np.tile(mean, (MEMBERS, 1)),
            zeros,
            prior,
            zeros.copy(),
            50 * BEND * scale,
            BELIEF + zeros,
            scale,
        )

    def scale(self, mean: Floats) -> Floats:
        """Variance s of counts of this mean, not too small to divide by: shape (d,)."""
        counts = np.clip(mean, 0, self.users)
        scale: Floats = np.maximum(counts * (1 - counts / self.users), 0.5)
        return scale

    def advance(self, state: BankState) -> None:
        """Let one slot pass."""
        state.level += state.slope
        state.level_var += 2 * state.covariance + state.slope_var + DRIFT * state.scale
        state.covariance += state.slope_var
        state.slope_var += BEND * state.scale

    def weights(self, state: BankState) -> Floats:
        """Belief in each member in each bin, shape (members, d)."""
        return weights_of(state.scores)

    def forecast(self, state: BankState) -> Forecast:
        """Mix the members."""
        weights = self.weights(state)
        mean = (weights * state.level).sum(axis=0)
        spread = state.level_var + (state.level - mean) ** 2
        return Forecast(
            mean, (weights * spread).sum(axis=0), (weights * WHITE).sum(axis=0) * state.scale
        )

    def estimate(self, state: BankState, counts: Floats, error: Floats) -> tuple[Floats, Floats]:
        """The slot's own counts, from the curve and the release that was observed.

        Args:
            state: after :meth:`observe`.
            counts: the release, shape (d,).
            error: variance of all its errors, shape (d,).

        Returns:
            Mean and variance, both of shape (d,).
        """
        weights = self.weights(state)
        white = WHITE * state.scale
        seen = white / (white + error)
        each = state.level + seen * (counts - state.level)
        mean = (weights * each).sum(axis=0)
        variance = (1 - seen) ** 2 * state.level_var + seen * error + (each - mean) ** 2
        return mean, (weights * variance).sum(axis=0)

    def observe(
        self, state: BankState, counts: Floats, noise: float, error: Floats, gap: int
    ) -> npt.NDArray[np.bool_]:
        """Learn from a release.

        Args:
            state: changed in place.
            counts: released estimate of the slot's counts, shape (d,).
            noise: variance of its Laplace noise.
            error: variance of its other errors, shape (d,).
            gap: slots since the last release; 0 for the first one.

        Returns:
            Where the counts jumped, shape (d,).
        """
        before = self.forecast(state)
        surprise = (counts - before.mean) ** 2
        usual = before.variance + before.white + error
        jumped = surprise > JUMP**2 * usual + JUMP_OF_NOISE**2 * noise
        if jumped.any():
            opened = surprise[jumped]
            state.level_var[:, jumped] += opened
            state.scores[:, jumped] = BELIEF
            if gap:
                bent = SLOPE_OF_JUMP * TRENDING * opened
                state.covariance[:, jumped] += bent / gap
                state.slope_var[:, jumped] += bent / gap**2
        blurred = noise + error + WHITE * state.scale
        total = state.level_var + blurred
        missed = counts - state.level
        state.scores *= self.memory
        state.scores -= np.where(jumped, 0, surprisal(missed, total))
        gain = state.level_var / total
        slope_gain = state.covariance / total
        state.level += gain * missed
        state.slope += slope_gain * missed
        # Products, not differences: what is left may be much smaller than what is taken off.
        kept = blurred / total
        unsure = state.slope_var - slope_gain * state.covariance
        state.covariance *= kept
        state.level_var *= kept
        least = state.covariance**2 / np.maximum(state.level_var, 1e-300)
        state.slope_var = np.maximum(unsure, least)
        mean = (self.weights(state) * state.level).sum(axis=0)
        state.scale = self.scale(mean)
        return jumped


def weights_of(scores: Floats) -> Floats:
    """Belief in each member in each bin, of their scores, both of shape (members, d)."""
    weights = np.exp(scores - scores.max(axis=0))
    shares: Floats = weights / weights.sum(axis=0)
    return shares


def surprisal(missed: Floats, variance: Floats) -> Floats:
    """Minus the log-likelihood of an innovation, up to a constant.

    Gaussian near 0, Laplace further out: one large draw of noise must not settle anything.
    """
    away = np.abs(missed) / np.sqrt(variance)
    far = np.maximum(away - TAIL, 0.0)
    loss: Floats = (away - far) ** 2 / 2 + TAIL * far + np.log(variance) / 2
    return loss


@lru_cache(maxsize=1)
def _steady() -> Floats:
    """Mean variance of the curve between releases, in multiples of s, after `HORIZON` of them.

    By gap, member and log2 of (error of a release / s): shape (gaps, members, ratios).
    """
    gap = GAPS[:, None, None].astype(float)
    drift, bend, white = (part[None] for part in (DRIFT, BEND, WHITE))
    error = 2.0 ** _RATIOS[None, None, :] + white
    level_step = drift * gap + bend * (gap - 1) * gap * (2 * gap - 1) / 6
    both_step = bend * gap * (gap - 1) / 2
    slope_step = bend * gap
    level, both, slope = error + level_step, 0 * error, 10 * bend + 0 * error
    for _ in range(HORIZON):
        level = level + 2 * gap * both + gap**2 * slope + level_step
        both = both + gap * slope + both_step
        slope = slope + slope_step
        total = level + error
        slope = slope - both**2 / total
        both = both * error / total
        level = level * error / total
    one, two = (gap - 1) / 2, (gap - 1) * (2 * gap - 1) / 6
    three = gap * (gap - 1) ** 2 / 4
    settled: Floats = (
        level + one * (2 * both + drift) + two * slope + bend * (2 * three - 3 * two + one) / 6
    )
    return settled


def expected_error(weights: Floats, ratios: Floats) -> tuple[Floats, Floats]:
    """Expected squared error of a count per slot for every gap, in multiples of s.

    The slot's own deviation counts too, less what a release tells of it.

    Args:
        weights: belief in each member, shape (members,).
        ratios: error of a release / s for each gap and bin, shape (gaps, b).

    Returns:
        (errors, those of the curve alone), both of shape (gaps, b).
    """
    place = np.clip(np.log2(ratios) - _RATIOS[0], 0, len(_RATIOS) - 1.001)
    low = place.astype(np.int64)
    share = place - low
    # Mixing members first leaves one row of ratios for each gap.
    mixed = np.tensordot(_steady(), weights, (1, 0))
    gaps = np.arange(len(GAPS))[:, None]
    curve = mixed[gaps, low] * (1 - share) + mixed[gaps, low + 1] * share
    white = float((weights * WHITE[:, 0]).sum())
    seen = white**2 / (white + ratios + curve) if white > 0 else 0.0
    return curve + white - seen / GAPS[:, None], curve
