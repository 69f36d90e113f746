"""A bank of Kalman filters: what is known of the counts from noisy releases.

Everything here is post-processing of releases: floats are fine, privacy does not depend on it.

A count is modelled as a smooth curve plus white deviations. Each member of the bank assumes another
kind of stream: how fast the curve drifts, how fast its slope changes, how large the white part is,
all as multiples of s = r (1 - r / n), the variance of a count of n users who each take part with
probability r / n. Members are mixed by how well they predicted, bin by bin.

What is observed is a mean of the counts of the last slots: that of the last slot alone, or of all
slots since the last observation. A state is what was believed at the last observation; later slots
are foreseen from it in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]

# (variance of the level's step, of the slope's step, of the white part), in multiples of s.
LEVELS = [(drift, 0.0, white) for white in (0.0, 1.0) for drift in (1e-3, 1e-2, 1e-1, 1.0, 10.0)]
TRENDS = [(0.0, bend, white) for white in (0.0, 1.0) for bend in (1e-6, 1e-5, 1e-4, 1e-3)]
DRIFT, BEND, WHITE = np.array(LEVELS + TRENDS).T[:, :, None]
TRENDING = BEND > 0
MEMBERS = len(DRIFT)
# Members with a slope come last.
SLOPED = slice(len(LEVELS), None)
# Log of the belief in each member before any release: fast drift is rare.
BELIEF = -np.log1p(DRIFT)

# Forgetting of what members predicted, by release.
MEMORY = 0.96
# Standard deviations from which on tails are taken for exponential.
TAIL = 2.0
# An innovation of so many standard deviations is a jump; fewer where an alarm told of one.
JUMP, EXPECTED_JUMP = 4.5, 3.5
# Noise has heavier tails than the rest: its own number of standard deviations follows from how rare
# jumps are, with so many more, or less, and is no larger than this.
UNHEARD, EXPECTED, PARTNER = 2.3, -0.3, 1.0
LARGEST_OF_NOISE = 9.0
# Log of the slots to a jump, where nothing is known of that.
RARE = 8.0
# Share of a jump that a trending member takes for a change of slope since the last release.
SLOPE_OF_JUMP = 0.7

# What a release of one slot is a mean of.
LAST_SLOT = np.ones(1)
# The least log-likelihood beside the largest that is told apart.
_LEAST_SCORE = -1e4
# No belief is further from 0: there are single-precision figures for it, and for a multiple.
_MOST = 1e36
_TINY = 1e-300


@dataclass
class BankState:
    """What the members believed at the last observation.

    Figures are kept as short as they are written. Shape (members, d), or (sloped members, d) where
    a slope is concerned.
    """

    level: Singles
    level_var: Singles
    slope: Singles
    slope_var: Singles
    correlation: Halves
    """Of level and slope."""
    scores: Halves
    """Discounted log-likelihood of each member in each bin, 0 for the best."""
    scale: Floats
    """s of each bin, in single precision all the same, shape (d,)."""
    elapsed: int = 1
    """Slots from the last observation, or the beginning, to the present one; 0 right after it."""


SCHEMA = state_codec.record_schema(
    "Bank", parts={"type": "array", "items": "bytes"}, elapsed="long"
)


_SINGLES = ("level", "level_var", "slope", "slope_var", "scale")
_HALVES = ("correlation", "scores")


def record(state: BankState) -> dict[str, Any]:
    """Avro record of a state, under :data:`SCHEMA`."""
    parts = [getattr(state, name).astype("<f4").tobytes() for name in _SINGLES]
    parts += [getattr(state, name).astype("<f2").tobytes() for name in _HALVES]
    return {"parts": parts, "elapsed": state.elapsed}


def read(state: BankState, written: dict[str, Any]) -> None:
    """Read a record into a fresh state of the same bins.

    Raises ConfigurationError for another number of bins.
    """
    kinds = [(name, "<f4") for name in _SINGLES] + [(name, "<f2") for name in _HALVES]
    stored = {
        name: np.frombuffer(part, kind)
        for (name, kind), part in zip(kinds, written["parts"], strict=True)
    }
    state_codec.check_length(stored["scale"], state.scale.size, "bins")
    for name, part in stored.items():
        former = getattr(state, name)
        setattr(state, name, part.astype(former.dtype).reshape(former.shape))
    state.elapsed = written["elapsed"]


def read_former(state: BankState, parts: list[bytes]) -> None:
    """Read what versions before sums wrote: all members alike, 64-bit, of the present slot."""
    level, slope, level_var, covariance, slope_var, scores, scale = (
        np.frombuffer(part, np.float64) for part in parts
    )
    state_codec.check_length(scale, state.scale.size, "bins")
    each = (part.reshape(MEMBERS, -1) for part in (level, level_var))
    sloped = (part.reshape(MEMBERS, -1)[SLOPED] for part in (slope, covariance, slope_var))
    beliefs = Beliefs(*each, *sloped)
    vars(state).update(vars(_kept(beliefs, scores.reshape(MEMBERS, -1), scale)))


@dataclass(frozen=True)
class Beliefs:
    """What the members believe of a slot, shapes as in :class:`BankState`."""

    level: Floats
    level_var: Floats
    slope: Floats
    covariance: Floats
    slope_var: Floats


@dataclass(frozen=True)
class Forecast:
    """What the bank expects of a slot, arrays of shape (d,)."""

    mean: Floats
    variance: Floats
    """Of the curve."""
    white: Floats
    """Variance of the slot's own deviation from the curve."""
    scale: Floats
    """s of each bin: the deviation has this variance where it is there."""


@dataclass(frozen=True)
class Taken:
    """What a bank took a release for; arrays of shape (d,) but for the shares."""

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
    """What the release was taken for; None where nothing was learnt of it."""


@dataclass(frozen=True)
class _Window:
    """What members believe of the mean of the last slots' curve, and how it goes with the present.

    Shapes as in :class:`BankState`; covariances with level and slope of the present slot.
    """

    mean: Floats
    variance: Floats
    with_level: Floats
    with_slope: Floats
    reach: float
    """Mean slots from the last observation."""


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
        zeros = np.zeros((MEMBERS, self.bins))
        mean = np.full(self.bins, self.users / (2 * self.bins))
        scale = self.scale(mean)
        prior = Beliefs(
            zeros + mean,
            zeros + self.users**2 / (2 * self.bins**1.5),
            zeros[SLOPED],
            zeros[SLOPED],
            50 * BEND[SLOPED] * scale,
        )
        return _kept(prior, BELIEF + zeros, scale)

    def scale(self, mean: Floats) -> Floats:
        """Variance s of counts of this mean, not too small to divide by: shape (d,)."""
        counts = np.clip(mean, 0, self.users)
        scale: Floats = np.maximum(counts * (1 - counts / self.users), 0.5)
        return scale

    def weights(self, state: BankState) -> Floats:
        """Belief in each member in each bin, shape (members, d)."""
        return _shares(state.scores.astype(np.float64))

    def beliefs(self, state: BankState) -> Floats:
        """Belief in each member over all bins, shape (members,)."""
        beliefs: Floats = self.weights(state) @ state.scale / state.scale.sum()
        return beliefs

    def forecast(self, state: BankState) -> Forecast:
        """Mix the members' beliefs of the present slot."""
        weights, now = self.weights(state), present(state)
        mean, variance = _mixed(weights, now.level, now.level_var)
        scale = state.scale.astype(np.float64)
        return Forecast(mean, variance, (weights * WHITE).sum(axis=0) * scale, scale)

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
        now, window = present(state), _window(state, shares)
        white = WHITE * state.scale
        own = float(shares[-1]) * white
        deviation = float(shares @ shares) * white
        scores = state.scores.astype(np.float64)
        weights = _shares(scores)
        mean, variance = _mixed(weights, window.mean, window.variance + deviation)
        _, before = _mixed(weights, now.level, now.level_var + white)
        surprise = (counts - mean) ** 2
        jumped = surprise > reach(self.bins, rarity, variance + error, noise, alarmed)
        if jumped.any():
            jumped |= surprise > partner_reach(self.bins, variance + error, noise)
        opened = np.where(jumped, surprise, 0.0)
        if jumped.any():
            now, window = _opened(now, window, opened, state.elapsed)
        missed = counts - window.mean
        blurred = noise + error + deviation
        total = window.variance + blurred
        scores = self.memory * scores - np.where(jumped, 0.0, surprisal(missed, total))
        after = _learnt(now, window, missed, blurred, total)
        weights = _shares(scores)
        # The slot's own deviation from the curve is in the release, too.
        each = after.level + own / total * missed
        unsure = now.level_var + white
        shown = unsure * (window.variance + deviation) - (window.with_level + own) ** 2
        left = (unsure * (noise + error) + np.maximum(shown, 0.0)) / total
        scale = self.scale((weights * after.level).sum(axis=0))
        vars(state).update(vars(_kept(after, scores, scale)) | {"elapsed": 0})
        known = _mixed(weights, each, left)
        taken = Taken(counts, noise + error, shares, opened)
        return Observed(
            jumped, *known, before, counts, mean, variance, noise, error + 0 * counts, taken
        )


def reach(
    bins: int, rarity: float, variance: Floats, noise: float | Floats, alarmed: bool = False
) -> Floats:
    """Squares of the deviations from which on they are jumps: see :meth:`Bank.observe`."""
    # Of very many bins one is far off by chance: as likely as one of two here.
    more = float(np.log(max(bins / 2, 1.0)))
    far = min(JUMP, (EXPECTED_JUMP**2 + 2 * more) ** 0.5) if alarmed else JUMP
    of_noise = (rarity + more) / 2**0.5 + (EXPECTED if alarmed else UNHEARD)
    found: Floats = far**2 * variance + min(of_noise, LARGEST_OF_NOISE) ** 2 * noise
    return found


def partner_reach(bins: int, variance: Floats, noise: float | Floats) -> Floats:
    """The same where another bin jumped: what one gains others lose, but not each of many."""
    of_noise = float(np.log(max(bins - 1, 1))) / 2**0.5 + PARTNER
    found: Floats = EXPECTED_JUMP**2 * variance + min(of_noise, LARGEST_OF_NOISE) ** 2 * noise
    return found


def present(state: BankState) -> Beliefs:
    """What is believed of the present slot."""
    slots, scale = state.elapsed, state.scale
    bend = BEND[SLOPED] * scale
    level, level_var = state.level.astype(np.float64), state.level_var.astype(np.float64)
    slope, covariance, slope_var = _slopes(state)
    level[SLOPED] += slots * slope
    level_var += slots * DRIFT * scale
    level_var[SLOPED] += slots * (2 * covariance + slots * slope_var)
    level_var[SLOPED] += (slots - 1) * slots * (2 * slots - 1) / 6 * bend
    covariance += slots * slope_var + slots * (slots - 1) / 2 * bend
    return Beliefs(level, level_var, slope, covariance, slope_var + slots * bend)


def _slopes(state: BankState) -> tuple[Floats, Floats, Floats]:
    """Slope, its covariance with the level and its variance, at the last observation."""
    slope, slope_var = state.slope.astype(np.float64), state.slope_var.astype(np.float64)
    together = np.sqrt(slope_var * state.level_var[SLOPED].astype(np.float64))
    return slope, state.correlation.astype(np.float64) * together, slope_var


def _window(state: BankState, shares: Floats) -> _Window:
    """What is believed of the mean of the last slots with these shares."""
    slots, scale = state.elapsed, state.scale
    if len(shares) == 1:
        now = present(state)
        return _Window(now.level, now.level_var, now.level_var, now.covariance, slots)
    each = np.concatenate([np.zeros(slots - len(shares)), shares])
    # What a step of the level, or of the slope, in each slot adds to the mean.
    by_step = np.cumsum(each[::-1])[::-1]
    by_bend = np.cumsum(by_step[::-1])[::-1] - by_step
    to_go = np.arange(slots)[::-1]
    reach = float(by_step.sum())
    bend = BEND[SLOPED] * scale
    drift = DRIFT * scale
    mean, variance = state.level.astype(np.float64), state.level_var.astype(np.float64)
    slope, covariance, slope_var = _slopes(state)
    with_level = variance + reach * drift
    with_level[SLOPED] += (slots + reach) * covariance + slots * reach * slope_var
    with_level[SLOPED] += float(by_bend @ to_go) * bend
    variance += float(by_step @ by_step) * drift
    variance[SLOPED] += reach * (2 * covariance + reach * slope_var)
    variance[SLOPED] += float(by_bend @ by_bend) * bend
    mean[SLOPED] += reach * slope
    with_slope = covariance + reach * slope_var + float(by_bend.sum()) * bend
    return _Window(mean, variance, with_level, with_slope, reach)


def _opened(now: Beliefs, window: _Window, opened: Floats, slots: int) -> tuple[Beliefs, _Window]:
    """Beliefs before a jump of these squared sizes, (d,), somewhere since the last observation."""
    bent = SLOPE_OF_JUMP * opened / slots if slots else 0 * opened
    part = window.reach / slots if slots else 0.0
    beliefs = replace(
        now,
        level_var=now.level_var + opened,
        covariance=now.covariance + bent,
        slope_var=now.slope_var + bent / max(slots, 1),
    )
    return beliefs, replace(
        window,
        variance=window.variance + opened,
        with_level=window.with_level + opened,
        with_slope=window.with_slope + part * bent,
    )


def _learnt(
    now: Beliefs, window: _Window, missed: Floats, blurred: Floats, total: Floats
) -> Beliefs:
    """Beliefs after an observation that missed by so much."""
    by_level, by_slope = window.with_level, window.with_slope
    # Products, not differences: what is left may be much smaller than what is taken off.
    apart = np.maximum(now.level_var * window.variance - by_level**2, 0.0)
    level_var = (now.level_var * blurred + apart) / total
    missed_sloped, blurred_sloped, total_sloped = missed[SLOPED], blurred[SLOPED], total[SLOPED]
    twisted = now.covariance * window.variance[SLOPED] - by_level[SLOPED] * by_slope
    covariance = (now.covariance * blurred_sloped + twisted) / total_sloped
    least = covariance**2 / np.maximum(level_var[SLOPED], _TINY)
    return Beliefs(
        now.level + by_level / total * missed,
        level_var,
        now.slope + by_slope / total_sloped * missed_sloped,
        covariance,
        np.maximum(now.slope_var - by_slope**2 / total_sloped, least),
    )


def _kept(beliefs: Beliefs, scores: Floats, scale: Floats) -> BankState:
    """The state of beliefs, rounded here and nowhere else: bytes of it lose nothing."""
    likely = np.maximum(scores - scores.max(axis=0), _LEAST_SCORE)
    together = np.sqrt(beliefs.slope_var * beliefs.level_var[SLOPED])
    correlation = np.clip(beliefs.covariance / np.maximum(together, _TINY), -1, 1)
    return BankState(
        _single(beliefs.level),
        _single(beliefs.level_var),
        _single(beliefs.slope),
        _single(beliefs.slope_var),
        correlation.astype(np.float16),
        likely.astype(np.float16),
        rounded(scale),
    )


def rounded(scale: Floats) -> Floats:
    """The scale as states keep it."""
    return scale.astype(np.float32).astype(np.float64)


def _single(part: Floats) -> Singles:
    return np.clip(part, -_MOST, _MOST).astype(np.float32)


def _shares(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(axis=0))
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
