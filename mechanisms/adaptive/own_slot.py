"""The estimate of a slot from its own release and from its forecast by a factor or a cycle.

Doubt about the factor of a slot is doubt about the forecast, not about the release. So a precise
release is followed.

Everything here is post-processing of releases.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.core.arrays import Floats

# On a holiday all bins are further from their forecasts than expected. To judge that, `AS_FORESEEN`
# more bins are assumed to be as expected, and innovations are cut off at `FURTHEST` standard
# deviations.
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
    excess = float(weight @ (surprise - blur / total)) + AS_FORESEEN
    return max(excess / (float(weight @ weight) + AS_FORESEEN), 1.0)
