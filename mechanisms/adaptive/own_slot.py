"""What a release of one slot tells of that slot, whatever a factor or a cycle had predicted of it.

Doubt about the factor of a slot is doubt about the forecast, not about the release: a precise
release is followed.

Everything here is post-processing of releases.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.core.arrays import Floats

# On a holiday all bins are further off than foreseen. To judge that, so many bins more are taken to
# be as foreseen, and no bin to be further off than so many standard deviations.
AS_FORESEEN, FURTHEST = 2.0, 7.0
_LEAST = 1e-9


def of_the_slot(
    seen: Observed, opened: Floats | float = 0.0, shared: Floats | float = 0.0
) -> Observed:
    """The estimate of the slot's own counts.

    Args:
        seen: with the variances of the slot's own counts as they were foreseen.
        opened: variance by which a jump opened them, shape (d,).
        shared: covariance of the errors of forecast and release, shape (d,).
    """
    before = seen.foreseen + opened
    blur = seen.noise + seen.error
    missed = seen.observed - seen.expected
    before = _unusual(missed, before, blur) * before
    shared = np.minimum(shared, np.minimum(before, blur) / 2)
    total = np.maximum(before + blur - 2 * shared, _LEAST)
    mean = seen.expected + (before - shared) / total * missed
    return replace(seen, mean=mean, variance=(before * blur - shared**2) / total)


def _unusual(missed: Floats, before: Floats, blur: Floats) -> float:
    """Factor of at least 1 on the forecast's variance, where all bins miss it, as on a holiday.

    Args:
        missed: by what was foreseen, shape (d,).
        before: its variance, shape (d,).
        blur: variance of the errors of the release, shape (d,).
    """
    total = np.maximum(before + blur, _LEAST)
    weight = before / total
    surprise = np.minimum(missed**2 / total, FURTHEST**2)
    found = float(weight @ (surprise - blur / total)) + AS_FORESEEN
    return max(found / (float(weight @ weight) + AS_FORESEEN), 1.0)
