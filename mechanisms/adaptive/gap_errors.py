"""What a gap costs: the error per slot that each member of the bank expects in the long run.

For a release of the gap's last slot (a point) and for one of all its slots together (a sum). Both
are iterated at the level of blocks, from one release to the next, to their fixed point.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streamveil.mechanisms.adaptive.kalman import BEND, DRIFT, WHITE
from streamveil.mechanisms.core.arrays import Floats

_UP_TO_64 = (*range(1, 13), 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 64)
GAPS = np.array([*_UP_TO_64, 80, 96, 128, 168, 240, 336, 504, 672])
POINT, SUM = 0, 1
# Iterations, one for each release. The starting values are close to the fixed point.
_RELEASES = 60
# log2 of (error of a release / variance of the curve's step).
_STEPS = np.arange(-30, 56, dtype=np.float64)
# log2 of (error of a release / s).
_RATIOS = np.arange(-24, 25)


def _of_levels(kind: int) -> Floats:
    """Mean variance between releases of a curve whose level drifts by 1 a slot.

    By gap and `_STEPS`: shape (gaps, steps).
    """
    gap, error = GAPS[:, None].astype(float), 2.0**_STEPS
    # Of the gap's own steps, Var(level) = gap, that of what is released, and their covariance.
    own = gap if kind == POINT else (gap + 1) * (2 * gap + 1) / (6 * gap)
    both = gap if kind == POINT else (gap + 1) / 2
    level = np.sqrt(gap * error) + 0.3 * gap
    for _ in range(_RELEASES):
        level = level + gap - (level + both) ** 2 / (level + own + error)
    return level + (gap - 1) / 2


def _of_trends(kind: int) -> Floats:
    """The same of a curve whose slope drifts by 1 a slot."""
    gap, error = GAPS[:, None].astype(float), 2.0**_STEPS
    density = error * gap
    level, both, slope = 2**0.5 * density**0.75, density**0.5, 2**0.5 * density**0.25
    squares = (gap - 1) * gap * (2 * gap - 1) / 6
    if kind == POINT:
        reach = gap
        own, with_level, with_slope = squares, squares, gap * (gap - 1) / 2
    else:
        reach = (gap + 1) / 2
        own, with_level, with_slope = _trend_moments()
    for _ in range(_RELEASES):
        seen_level = level + (reach + gap) * both + gap * reach * slope + with_level
        seen_slope = both + reach * slope + with_slope
        total = level + 2 * reach * both + reach**2 * slope + own + error
        level = level + 2 * gap * both + gap**2 * slope + squares
        both = both + gap * slope + gap * (gap - 1) / 2
        slope = slope + gap
        level = level - seen_level**2 / total
        both = both - seen_level * seen_slope / total
        slope = slope - seen_slope**2 / total
    one, two = (gap - 1) / 2, (gap - 1) * (2 * gap - 1) / 6
    three = gap * (gap - 1) ** 2 / 4
    return level + 2 * one * both + two * slope + (2 * three - 3 * two + one) / 6


def _trend_moments() -> tuple[Floats, Floats, Floats]:
    """Of the mean of a gap that only its own bends move: variance, covariance with level, slope."""
    rows = []
    for gap in GAPS.tolist():
        left = np.arange(gap, dtype=float)  # slots that are left after each bend, backwards
        effect = left * (left + 1) / 2 / gap
        rows.append([(effect**2).sum(), (effect * left).sum(), effect.sum()])
    own, with_level, with_slope = np.array(rows).T[:, :, None]
    return own, with_level, with_slope


@lru_cache(maxsize=1)
def _settled() -> Floats:
    """Mean variance of the curve between releases, in multiples of s.

    By kind, gap, log2 of (error of a release / s) and member: (2, gaps, ratios, members).
    """
    step = np.maximum(DRIFT, BEND)
    table = np.empty((2, len(GAPS), len(step), len(_RATIOS)))
    for kind in (POINT, SUM):
        curves = _of_levels(kind), _of_trends(kind)
        for place, gap in enumerate(GAPS.tolist()):
            white = WHITE if kind == POINT else WHITE / gap
            error = np.log2((2.0**_RATIOS + white) / step)
            for member, trending in enumerate(BEND[:, 0] > 0):
                curve = np.log2(curves[int(trending)][place])
                table[kind, place, member] = np.interp(error[member], _STEPS, curve)
    settled: Floats = np.ascontiguousarray((2**table * step).swapaxes(2, 3))
    return settled


def expected_error(kind: int, weights: Floats, ratios: Floats) -> tuple[Floats, Floats]:
    """Expected squared error of a count per slot for every gap, in multiples of s.

    It includes the slot's own deviation, less the part that a release shows.

    Args:
        kind: POINT or SUM.
        weights: belief in each member, shape (members,).
        ratios: error of a release / s for each gap and bin, shape (..., gaps, b).

    Returns:
        (errors, those of the curve alone), both of shape (..., gaps, b).
    """
    place = np.minimum(np.maximum(np.log2(ratios) - _RATIOS[0], 0.0), len(_RATIOS) - 1.001)
    low = place.astype(np.int64)
    share = place - low
    # Mixing members first leaves one row of ratios for each gap.
    rows = _settled()[kind].reshape(-1, len(weights))
    mixed = np.dot(rows, weights[:, None])[:, 0]
    low += np.arange(len(GAPS))[:, None] * len(_RATIOS)
    curve = mixed.take(low) * (1 - share) + mixed.take(low + 1) * share
    white = float((weights * WHITE[:, 0]).sum())
    if not white:
        return curve, curve
    gaps = GAPS[:, None]
    each = white if kind == POINT else white / gaps
    return curve + white - each**2 / (each + ratios + curve) / gaps, curve
