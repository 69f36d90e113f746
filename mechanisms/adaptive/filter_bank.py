"""A bank of Kalman filters: what is known of the counts from noisy releases.

Everything here is post-processing of releases: floats are fine, privacy does not depend on it.

A count is modelled as a smooth curve plus white deviations. Each member of the bank (`kalman.py`)
assumes another kind of stream. They are mixed by how well they predicted, bin by bin. What is
observed is a mean of the counts of the last slots: that of the last slot alone, or of all slots
since the last observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import kalman
from streamveil.mechanisms.adaptive.kalman import (
    BELIEF,
    BEND,
    DRIFT,
    LAST_SLOT,
    SLOPED,
    WHITE,
    BankState,
    Beliefs,
    Forecast,
    Mixture,
)
from streamveil.mechanisms.adaptive.pooling import pooled
from streamveil.mechanisms.core.arrays import Floats, Singles

# No more slots are foreseen at once.
SEVERAL = 16
# Weight of a prediction after the next release, relative to its weight before.
MEMORY = 0.96
# Standard deviations from which on tails are assumed to be exponential.
TAIL = 2.0
# An innovation of this many standard deviations is a jump; of the second number after an alarm.
JUMP, EXPECTED_JUMP = 4.5, 3.5
# Noise has heavier tails than the rest: its own number of standard deviations follows from how rare
# jumps are, plus one of these three numbers, and is at most `LARGEST_OF_NOISE`.
UNHEARD, EXPECTED, PARTNER = 2.3, -0.3, 1.0
LARGEST_OF_NOISE = 9.0
# Log of the slots to a jump, where nothing is known of that.
RARE = 8.0

# The smallest variance of a bin: slow members stay slow in bins with hardly any users.
LEAST_SCALE = 0.1
# Variance of a count before any release, in squares of the number of users, or of the errors of the
# first release where that number is assumed: so large that what is believed after the first release
# is that release, and no guess lowers or raises sums of bins.
ANYTHING = 10.0
# Variance of what events add to a graded part, in parts of the most that it can be with that mean:
# between a quarter, of exponential numbers in a range five times as wide as their mean, and all of
# it, of numbers that lie at the bounds.
GRADED = 0.5
# The least share of users who are not in a bin, where it is not known how many there are: between
# nearly none of a few and nearly all of many.
ABSENT = 0.5
# Possible numbers of users, as multiples of the assumed number; and by how much the prior
# log-likelihood falls for each factor of ten between a number and the assumed one.
GUESSES = 10.0 ** np.arange(-4.0, 8.1, 0.5)
_FAR_GUESS = 1.5
# A count of about one user does not double from slot to slot, as a drift of s would make it do, and
# noise hides it: releases do not distinguish members there, and fast ones, believed in for want of
# evidence, would make every plan too short. So the belief in a member is divided by the square of
# 1 + drift / (STILL s**3), which is hardly more than 1 for counts of some tens: for these there is
# evidence. A bend counts as the drift that does as much in 100 slots.
STILL = 0.01
BEND_AS_DRIFT = 100**2 / 3
# Nor can counts of about s come in waves that are deeper than they are large: the belief in a
# member whose slots deviate by more than chance makes them is divided by the square of 1 + white/s.
DEPTH = np.where(WHITE > 1, WHITE, 0.0)


@dataclass(frozen=True)
class Taken:
    """A release as the bank used it; arrays of shape (d,), except for the shares."""

    counts: Floats
    error: Floats
    """Variance of all its errors."""
    shares: Floats
    """What each of the last slots contributes to it."""
    opened: Floats
    """Variance by which a jump opened the level, 0 without one."""


@dataclass(frozen=True)
class Observed:
    """What is known after an observation, arrays of shape (d,)."""

    jumped: npt.NDArray[np.bool_]
    """Where the counts jumped."""
    mean: Floats
    """Of the present slot's own counts."""
    variance: Floats
    before: Floats
    """That variance without the observation."""
    observed: Floats
    expected: Floats
    """What was foreseen of it."""
    foreseen: Floats
    """Variance of what was foreseen."""
    noise: float | Floats
    """Variance of the noise on what was observed."""
    error: Floats
    """Variance of its other errors."""
    taken: Taken | None = None
    """The release as the bank used it; None if nothing was learnt from it."""
    slots: int = 1
    """Of how many slots the mean was observed."""


class Bank:
    """Filters for counts of `users` users in `bins` bins.

    Members are believed by what they predicted: each release makes that count for `memory` times
    what it did before. `graded` is as in :class:`Population`: of parts to which events add more or
    less, counts vary less. So is `assumed`: then counts may be larger than `users`. If the bank
    `pools`, bins share a prior belief in members (`pooling.py`).
    """

    def __init__(
        self,
        users: float,
        bins: int,
        memory: float = MEMORY,
        graded: Sequence[bool] = (False,),
        *,
        assumed: bool = False,
        pools: bool = False,
    ) -> None:
        self.users = max(users, 1.0)
        self.pools = pools
        self.assumed = assumed
        self.bins = bins
        self.memory = memory
        self._graded = np.array(graded) if any(graded) else None

    def start(self) -> BankState:
        """Before the first release: any count from 0 to all users is possible."""
        mean, variance = self._prior(self.users)
        if not self.assumed:
            variance = ANYTHING * self.users**2
        return self._at(mean, variance, self.scale(np.full(self.bins, mean)))

    def _prior(self, users: float | Floats) -> tuple[Any, Any]:
        """Mean and variance of the count of a bin before any release, given a number of users."""
        return users / (2 * self.bins), users**2 / (2 * self.bins**1.5)

    def _at(self, mean: float, variance: float, scale: Floats) -> BankState:
        """Before the first release: levels around a mean."""
        zeros = np.zeros((kalman.MEMBERS, self.bins))
        prior = Beliefs(
            zeros + mean,
            zeros + variance,
            zeros[SLOPED],
            zeros[SLOPED],
            50 * BEND[SLOPED] * scale,
        )
        return kalman.kept(prior, BELIEF + zeros, scale)

    def weigh(self, state: BankState, counts: Floats, error: Floats) -> None:
        """Estimate from the first release how many users there are, if that is only assumed.

        Each number is believed in by how well it explains the release, and by how near the assumed
        one it is. The prior is then a mixture over all of them.

        Args:
            state: before the first release, changed in place.
            counts: the release, shape (d,).
            error: variance of its errors, shape (d,).
        """
        mean, variance = self._prior(self.users * GUESSES)
        spread = variance[:, None] + error
        scores = -surprisal(counts - mean[:, None], spread).sum(axis=1)
        scores -= _FAR_GUESS * np.abs(np.log10(GUESSES))
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        level = float(weights @ mean)
        doubt = float(weights @ (variance + (mean - level) ** 2))
        mean_now = level + doubt / (doubt + error) * (counts - level)
        # Explaining the release must not pull it: sums of bins would follow the guesses.
        doubt += ANYTHING * float(np.mean(error))
        learnt = vars(self._at(level, doubt, self.scale(mean_now)))
        vars(state).update(learnt | {"elapsed": state.elapsed, "mixture": None})

    def scale(self, mean: Floats) -> Floats:
        """Variance s of counts of this mean, not too small to divide by: shape (d,).

        Where the number of users is assumed, half of them or more are thought to be elsewhere.

        The square of what an event adds to a graded part is, on average, between its mean and the
        square of that.
        """
        counts = np.maximum(mean, 0.0)
        if self.assumed:
            absent = np.maximum(1 - counts / self.users, ABSENT)
        else:
            counts = np.minimum(counts, self.users)
            absent = 1 - counts / self.users
        scale: Floats = counts * absent
        if self._graded is not None:
            parts = counts.reshape(-1, len(self._graded))
            share = parts / np.maximum(parts.sum(axis=1, keepdims=True), LEAST_SCALE)
            scale = scale * np.where(self._graded, share + GRADED * (1 - share), 1.0).ravel()
        return np.maximum(scale, LEAST_SCALE)

    def mixture(self, state: BankState) -> Mixture:
        """The members as they are believed since the last observation: mixed once for all slots."""
        if state.mixture is None or state.mixture.scale is not state.scale:
            scores = state.scores.astype(np.float64)
            weights = _shares(_likelihoods(scores, state.scale), state.prior)
            state.mixture = kalman.mixed(state, weights)
        return state.mixture

    def forecast(self, state: BankState, slots_to_come: int = 1) -> Forecast:
        """What is expected of the present slot.

        Args:
            state: as it is in the slot.
            slots_to_come: until something will be observed, this slot included. Their forecasts are
                computed in one array when the second one is requested.
        """
        mixture = self.mixture(state)
        known = mixture.ahead
        if state.elapsed not in known:
            # A stream that is saved after every slot never requests a second one.
            number = 1 if 0 in known else min(max(slots_to_come, 1), SEVERAL)
            first = state.elapsed
            slots = np.arange(first, first + number, dtype=np.float64)[:, None]
            once, each, squared, squares = mixture.variances
            variance = once + slots * each + slots**2 * squared
            variance += (slots - 1) * slots * (2 * slots - 1) / 6 * squares
            mean = mixture.level + slots * mixture.slope
            several = Forecast(mean, variance, mixture.white, mixture.scale)
            known.clear()
            for place in range(number):
                each_of = mean[place], variance[place], mixture.white, mixture.scale
                known[first + place] = Forecast(*each_of, several, place)
        return known[state.elapsed]

    def of_level(self, level: Forecast) -> Forecast:
        """What a level makes the counts of the present slot: without a cycle they are the level."""
        return level

    def observe(
        self,
        state: BankState,
        counts: Floats,
        noise: float | Floats,
        error: Floats,
        shares: Floats = LAST_SLOT,
        *,
        alarmed: bool = False,
        rarity: float = RARE,
    ) -> Observed:
        """Learn from a release; what is believed is then believed of the present slot.

        Args:
            state: changed in place.
            counts: released estimate of a mean of the last slots' counts, shape (d,).
            noise: variance of its Laplace noise, one for all bins or of shape (d,).
            error: variance of its other errors, shape (d,).
            shares: what each slot contributes to it, up to the present one: they add up to 1, and
                there are at most `elapsed` of them, or one.
            alarmed: whether a jump has been heard of.
            rarity: log of the slots from one jump to the next.
        """
        now, forecast = kalman.present(state), self.forecast(state)
        window = kalman.window_of(state, shares, now)
        white = WHITE * state.scale
        own = float(shares[-1]) * white
        deviation = float(shares @ shares) * white
        scores = state.scores.astype(np.float64)
        weights = self.mixture(state).weights
        mean, variance = _mixed(weights, window.mean, window.variance + deviation)
        # No count falls below 0: what lies there is noise.
        surprise = (np.maximum(counts, 0.0) - mean) ** 2
        jumped = surprise > reach(self.bins, rarity, variance + error, noise, alarmed)
        if np.count_nonzero(jumped):
            jumped |= surprise > partner_reach(self.bins, variance + error, noise)
            # By more than there is in all bins together is noise far more often than a jump.
            largest = float(np.maximum(mean, 0.0).sum())
            jumped &= (surprise < largest**2) | (surprise > LARGEST_OF_NOISE**2 * noise)
        opened = np.where(jumped, surprise, 0.0)
        if np.count_nonzero(jumped):
            now, window = kalman.opened(now, window, opened, state.elapsed)
        missed = counts - window.mean
        blurred = noise + error + deviation
        total = window.variance + blurred
        scores = self.memory * scores - np.where(jumped, 0.0, surprisal(missed, total))
        after = kalman.learnt(now, window, missed, blurred, total)
        likelihoods = _likelihoods(scores, state.scale)
        prior = pooled(likelihoods, state.prior) if self.pools else state.prior
        weights = _shares(likelihoods, prior)
        # The slot's own deviation from the curve is in the release, too.
        each = after.level + own / total * missed
        unsure = now.level_var + white
        shown = unsure * (window.variance + deviation) - (window.with_level + own) ** 2
        left = (unsure * (noise + error) + np.maximum(shown, 0.0)) / total
        scale = self.scale((weights * after.level).sum(axis=0))
        learnt = vars(kalman.kept(after, scores, scale))
        vars(state).update(learnt | {"elapsed": 0, "mixture": None, "prior": prior})
        known = _mixed(weights, each, left)
        taken = Taken(counts, noise + error, shares, opened)
        before = forecast.variance + forecast.white
        return Observed(
            *(jumped, *known, before, counts, mean, variance, noise, error + 0 * counts, taken),
            slots=len(shares),
        )


def reach(
    bins: int, rarity: float, variance: Floats, noise: float | Floats, alarmed: bool = False
) -> Floats:
    """Squares of the deviations from which on they are jumps: see :meth:`Bank.observe`."""
    # Of very many bins one is far off by chance: as likely as one of two here.
    more = float(np.log(max(bins / 2, 1.0)))
    far = min(JUMP, (EXPECTED_JUMP**2 + 2 * more) ** 0.5) if alarmed else JUMP
    of_noise = (rarity + more) / 2**0.5 + (EXPECTED if alarmed else UNHEARD)
    squared: Floats = far**2 * variance + min(of_noise, LARGEST_OF_NOISE) ** 2 * noise
    return squared


def partner_reach(bins: int, variance: Floats, noise: float | Floats) -> Floats:
    """The same where another bin jumped: what one gains others lose, but not each of many."""
    of_noise = float(np.log(max(bins - 1, 1))) / 2**0.5 + PARTNER
    squared: Floats = EXPECTED_JUMP**2 * variance + min(of_noise, LARGEST_OF_NOISE) ** 2 * noise
    return squared


def _likelihoods(scores: Floats, scale: Floats) -> Floats:
    """How likely each member is in each bin, on a scale of the bin's own: (members, d)."""
    speed = (DRIFT + BEND_AS_DRIFT * BEND) / STILL
    likely = np.exp(scores - scores.max(axis=0))
    likelihoods: Floats = likely / (1 + speed / scale**3 + DEPTH / scale) ** 2
    return likelihoods


def _shares(likelihoods: Floats, prior: Singles) -> Floats:
    """Belief in each member in each bin, shape (members, d)."""
    weights = likelihoods * prior[:, None]
    shares: Floats = weights / weights.sum(axis=0)
    return shares


def _mixed(weights: Floats, each: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of a mixture of members, both of shape (d,)."""
    mean = (weights * each).sum(axis=0)
    return mean, (weights * (variance + (each - mean) ** 2)).sum(axis=0)


def surprisal(missed: Floats, variance: Floats) -> Floats:
    """Minus the log-likelihood of an innovation, up to a constant.

    Gaussian near 0, Laplace further out: one large draw of noise must not settle anything.
    """
    away = np.abs(missed) / np.sqrt(variance)
    far = np.maximum(away - TAIL, 0.0)
    loss: Floats = (away - far) ** 2 / 2 + TAIL * far + np.log(variance) / 2
    return loss
