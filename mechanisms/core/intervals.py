"""Between which numbers a true count is likely to be, by the released one and its error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Half the width of an interval that holds 90 % of a normal distribution, in standard errors.
NINETY_PERCENT = 1.645


def interval(counts: npt.NDArray[np.int64], stderr: Floats) -> tuple[Floats, Floats]:
    """The lower and the upper end of each count's interval, nominally of 90 %.

    Args:
        counts: as released, shape (bins,).
        stderr: expected standard errors, shape (bins,).

    Returns:
        Two arrays of shape (bins,), NaN where the standard error is not finite: nothing is known.
    """
    half: Floats = np.where(np.isfinite(stderr), NINETY_PERCENT * stderr, np.nan)
    middle = counts.astype(np.float64)
    return middle - half, middle + half
