"""The Kalman filters of the bank: their models of a stream, and their recursion.

Each member of the bank assumes another kind of stream: how fast the curve drifts and its slope
changes, and how large the white part is, all as multiples of s = r (1 - r / n), the variance of a
count of n users who each take part with probability r / n. A state contains the beliefs of all
members at the last observation. Forecasts of the present slot, and of a mean of the last slots,
follow from it in closed form, and so does the update of level and slope by an observation. The bank
(`filter_bank.py`) and revisions (`revisions.py`) use the same recursion.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Halves, Singles

# (variance of the level's step, of the slope's step, of the white part), in multiples of s.
PLAIN = [(drift, 0.0, white) for white in (0.0, 1.0) for drift in (1e-3, 1e-2, 1e-1, 1.0, 10.0)]
# Waves of days or weeks that no release follows make slots deviate by more than chance does.
WAVES = [(1e-2, 0.0, white) for white in (4.0, 16.0, 64.0)]
LEVELS = PLAIN + WAVES
TRENDS = [(0.0, bend, white) for white in (0.0, 1.0) for bend in (1e-6, 1e-5, 1e-4, 1e-3)]
DRIFT, BEND, WHITE = np.array(LEVELS + TRENDS).T[:, :, None]
TRENDING = BEND > 0
MEMBERS = len(DRIFT)
# Members with a slope come last.
SLOPED = slice(len(LEVELS), None)
# The prior before any release: all members are equally likely.
EVEN = np.ones(MEMBERS, np.float32)
# Log of the belief in each member before any release: fast drift is rare.
BELIEF = -np.log1p(DRIFT)
# Share of a jump that a trending member attributes to a change of slope since the last release.
SLOPE_OF_JUMP = 0.7

# What a release of one slot is a mean of.
LAST_SLOT = np.ones(1)
# Log-likelihoods are at least this, relative to the largest.
_LEAST_SCORE = -1e4
# Limit of beliefs, so that multiples of them are finite in single precision.
_MOST = 1e36
_TINY = 1e-300


class Forecast(NamedTuple):
    """What the bank expects of a slot, arrays of shape (d,)."""

    mean: Floats
    variance: Floats
    """Of the curve."""
    white: Floats
    """Variance of the slot's own deviation from the curve."""
    scale: Floats
    """s of each bin: the deviation has this variance where it is there."""
    several: Forecast | None = None
    """The forecasts that were made with it, if any: mean and variance of shape (slots, d)."""
    place: int = 0
    """Which of these it is."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """What all members together expect of the slots up to the next observation.

    Polynomials of n, the slots since the last one; arrays of shape (d,) unless another is named.
    """

    weights: Floats
    """Belief in each member in each bin, shape (members, d)."""
    beliefs: Floats
    """Over all bins, shape (members,)."""
    level: Floats
    slope: Floats
    """The mean is level + n slope."""
    variances: tuple[Floats, Floats, Floats, Floats]
    """What 1, n, n**2 and 0 + 1 + 4 + ... + (n - 1)**2 are multiplied with."""
    white: Floats
    """Variance of a slot's own deviation."""
    scale: Floats
    typical: float
    """Mean of the scale."""
    trend: float
    """Belief in members with a slope."""
    deviating: float
    """Belief in members with a white part."""
    ahead: dict[int, Forecast]
    """The forecasts that were made last, by slots since the last observation. At first this is the
    one of the observed slot."""


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
    prior: Singles = field(default_factory=lambda: EVEN)
    """Belief in each member before a bin's own releases, relative to an even one: (members,)."""
    elapsed: int = 1
    """Slots from the last observation, or the beginning, to the present one; 0 right after it."""
    mixture: Mixture | None = field(default=None, init=False)
    """For the slots after it, once they were requested: not saved."""


SCHEMA = state_codec.record_schema(
    "Bank", parts={"type": "array", "items": "bytes"}, elapsed="long"
)


_SINGLES = ("level", "level_var", "slope", "slope_var", "scale")
_HALVES = ("correlation", "scores")
# What all members have, and of which a state without waves takes theirs.
_EACH, _LIKE_WAVES = ("level", "level_var", "scores"), PLAIN.index((1e-2, 0.0, 1.0))


def record(state: BankState) -> dict[str, Any]:
    """Avro record of a state, under :data:`SCHEMA`."""
    parts = [getattr(state, name).astype("<f4").tobytes() for name in _SINGLES]
    parts += [getattr(state, name).astype("<f2").tobytes() for name in _HALVES]
    parts.append(state.prior.astype("<f4").tobytes())
    return {"parts": parts, "elapsed": state.elapsed}


def read(state: BankState, written: dict[str, Any]) -> None:
    """Read a record into a fresh state of the same bins.

    Raises ConfigurationError for another number of bins.
    """
    kinds = [(name, "<f4") for name in _SINGLES] + [(name, "<f2") for name in _HALVES]
    stored = {
        name: np.frombuffer(part, kind)
        for (name, kind), part in zip(kinds, written["parts"], strict=False)
    }
    if len(written["parts"]) > len(kinds):  # versions before had no prior
        state.prior = np.frombuffer(written["parts"][-1], "<f4").astype(np.float32)
    state_codec.check_length(stored["scale"], state.scale.size, "bins")
    for name, part in stored.items():
        former = getattr(state, name)
        each = _with_waves(part, state.scale.size) if name in _EACH else part
        setattr(state, name, each.astype(former.dtype).reshape(former.shape))
    state.elapsed = written["elapsed"]


def _with_waves(part: npt.NDArray[Any], bins: int) -> npt.NDArray[Any]:
    """What all members believe, shape (members, bins), also of a state from before `WAVES`."""
    rows = part.reshape(-1, bins)
    if len(rows) == MEMBERS:
        return rows
    return np.insert(rows, len(PLAIN), rows[[_LIKE_WAVES] * len(WAVES)], axis=0)


def read_former(state: BankState, parts: list[bytes]) -> None:
    """Read what versions before sums wrote: all members alike, 64-bit, of the present slot."""
    level, slope, level_var, covariance, slope_var, scores, scale = (
        np.frombuffer(part, np.float64) for part in parts
    )
    state_codec.check_length(scale, state.scale.size, "bins")
    bins = state.scale.size
    each = (_with_waves(part, bins) for part in (level, level_var))
    sloped = (_with_waves(part, bins)[SLOPED] for part in (slope, covariance, slope_var))
    beliefs = Beliefs(*each, *sloped)
    vars(state).update(vars(kept(beliefs, _with_waves(scores, bins), scale)))


@dataclass(frozen=True)
class Beliefs:
    """What the members believe of a slot, shapes as in :class:`BankState`."""

    level: Floats
    level_var: Floats
    slope: Floats
    covariance: Floats
    slope_var: Floats


@dataclass(frozen=True)
class Window:
    """Mean of the curve over the last slots, by member, and its covariance with the present slot.

    Shapes as in :class:`BankState`; covariances with level and slope of the present slot.
    """

    mean: Floats
    variance: Floats
    with_level: Floats
    with_slope: Floats
    reach: float
    """Mean slots from the last observation."""


def present(state: BankState) -> Beliefs:
    """What is believed of the present slot."""
    slots, scale = state.elapsed, state.scale
    bend = BEND[SLOPED] * scale
    level, level_var = state.level.astype(np.float64), state.level_var.astype(np.float64)
    slope, covariance, slope_var = slopes(state)
    level[SLOPED] += slots * slope
    level_var += slots * DRIFT * scale
    level_var[SLOPED] += slots * (2 * covariance + slots * slope_var)
    level_var[SLOPED] += (slots - 1) * slots * (2 * slots - 1) / 6 * bend
    covariance += slots * slope_var + slots * (slots - 1) / 2 * bend
    return Beliefs(level, level_var, slope, covariance, slope_var + slots * bend)


def mixed(state: BankState, weights: Floats) -> Mixture:
    """The members' forecasts of all later slots, mixed by these weights, shape (members, d)."""
    slope, covariance, slope_var = slopes(state)
    sloped, scale = weights[SLOPED], state.scale
    mean, trend = (weights * state.level).sum(axis=0), (sloped * slope).sum(axis=0)
    apart = state.level - mean
    turned = np.zeros_like(apart)
    turned[SLOPED] = slope
    turned -= trend
    beliefs = weights @ scale / scale.sum()
    variance = (weights * (state.level_var + apart**2)).sum(axis=0)
    white = (weights * WHITE).sum(axis=0) * scale
    return Mixture(
        weights,
        beliefs,
        mean,
        trend,
        (
            variance,
            (weights * (DRIFT * scale + 2 * apart * turned)).sum(axis=0)
            + 2 * (sloped * covariance).sum(axis=0),
            (weights * turned**2).sum(axis=0) + (sloped * slope_var).sum(axis=0),
            (sloped * BEND[SLOPED]).sum(axis=0) * scale,
        ),
        white,
        scale,
        float(scale.sum() / len(scale)),
        float(beliefs @ TRENDING[:, 0]),
        float(beliefs @ WHITE[:, 0]),
        {0: Forecast(mean, variance, white, scale)},
    )


def slopes(state: BankState) -> tuple[Floats, Floats, Floats]:
    """Slope, its covariance with the level and its variance, at the last observation."""
    slope, slope_var = state.slope.astype(np.float64), state.slope_var.astype(np.float64)
    together = np.sqrt(slope_var * state.level_var[SLOPED].astype(np.float64))
    return slope, state.correlation.astype(np.float64) * together, slope_var


def window_of(state: BankState, shares: Floats, now: Beliefs) -> Window:
    """What is believed of the mean of the last slots with these shares, given :func:`present`."""
    slots, scale = state.elapsed, state.scale
    if len(shares) == 1:
        return Window(now.level, now.level_var, now.level_var, now.covariance, slots)
    each = np.concatenate([np.zeros(slots - len(shares)), shares])
    # What a step of the level, or of the slope, in each slot adds to the mean.
    by_step = np.cumsum(each[::-1])[::-1]
    by_bend = np.cumsum(by_step[::-1])[::-1] - by_step
    to_go = np.arange(slots)[::-1]
    reach = float(by_step.sum())
    bend = BEND[SLOPED] * scale
    drift = DRIFT * scale
    mean, variance = state.level.astype(np.float64), state.level_var.astype(np.float64)
    slope, covariance, slope_var = slopes(state)
    with_level = variance + reach * drift
    with_level[SLOPED] += (slots + reach) * covariance + slots * reach * slope_var
    with_level[SLOPED] += float(by_bend @ to_go) * bend
    variance += float(by_step @ by_step) * drift
    variance[SLOPED] += reach * (2 * covariance + reach * slope_var)
    variance[SLOPED] += float(by_bend @ by_bend) * bend
    mean[SLOPED] += reach * slope
    with_slope = covariance + reach * slope_var + float(by_bend.sum()) * bend
    return Window(mean, variance, with_level, with_slope, reach)


def opened(now: Beliefs, window: Window, squared: Floats, slots: int) -> tuple[Beliefs, Window]:
    """Beliefs before a jump of these squared sizes, (d,), somewhere since the last observation."""
    bent = SLOPE_OF_JUMP * squared / slots if slots else 0 * squared
    part = window.reach / slots if slots else 0.0
    beliefs = replace(
        now,
        level_var=now.level_var + squared,
        covariance=now.covariance + bent,
        slope_var=now.slope_var + bent / max(slots, 1),
    )
    return beliefs, replace(
        window,
        variance=window.variance + squared,
        with_level=window.with_level + squared,
        with_slope=window.with_slope + part * bent,
    )


def learnt(now: Beliefs, window: Window, missed: Floats, blurred: Floats, total: Floats) -> Beliefs:
    """Beliefs after an observation, whose innovation is `missed`."""
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


def kept(beliefs: Beliefs, scores: Floats, scale: Floats) -> BankState:
    """The state of beliefs, rounded here and nowhere else: bytes of it lose nothing."""
    likely = np.maximum(scores - scores.max(axis=0), _LEAST_SCORE)
    together = np.sqrt(beliefs.slope_var * beliefs.level_var[SLOPED])
    correlation = np.maximum(beliefs.covariance / np.maximum(together, _TINY), -1.0)
    return BankState(
        single(beliefs.level),
        single(beliefs.level_var),
        single(beliefs.slope),
        single(beliefs.slope_var),
        np.minimum(correlation, 1.0).astype(np.float16),
        likely.astype(np.float16),
        rounded(scale),
    )


def multiplied(state: BankState, by: Floats) -> BankState:
    """The state after counts were multiplied by these factors, shape (d,)."""
    return replace(
        state,
        level=single(state.level * by),
        level_var=single(state.level_var * by**2),
        slope=single(state.slope * by),
        slope_var=single(state.slope_var * by**2),
        scale=rounded(state.scale * by),
    )


def rounded(scale: Floats) -> Floats:
    """The scale as states keep it."""
    return scale.astype(np.float32).astype(np.float64)


def single(part: npt.NDArray[np.floating[Any]]) -> Singles:
    """Numbers in the precision of states, limited so that multiples stay finite."""
    return np.minimum(np.maximum(part, -_MOST), _MOST).astype(np.float32)
