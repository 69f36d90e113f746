"""What released distributions are good for: post-processing, which costs nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats


def top_k(shares: npt.ArrayLike, k: int) -> npt.NDArray[np.int64]:
    """The k bins with the largest shares, largest first; of equal ones the first, shape (..., k).

    Args:
        shares: released distributions, shape (..., d).
        k: from 1 to d; raises ValueError for others.
    """
    released = np.asarray(shares, dtype=np.float64)
    if not 1 <= k <= released.shape[-1]:
        raise ValueError(f"k is {k}: give 1 to {released.shape[-1]}, the number of bins")
    order: npt.NDArray[np.int64] = np.argsort(-released, axis=-1, kind="stable")[..., :k]
    return order


def hbos(shares: npt.ArrayLike, bins: npt.ArrayLike, *, least: float | None = None) -> Floats:
    """Anomaly scores of events by the histogram of their feature, or of several features.

    HBOS (Goldstein and Dengel, 2012): log of 1 / height, heights relative to the highest bin; of
    several features the scores are summed, as if they were independent. Scores say how rare an
    event's bin was when the distribution was measured: look at its age.

    Args:
        shares: a released distribution, shape (d,), or one of each feature, shape (F, d).
        bins: bin of each event, shape (n,), or by feature, shape (F, n).
        least: share below which a bin counts as that rare: an empty bin of a noisy release is not
            infinitely rare. By default a tenth of an even share.

    Returns:
        Scores from 0 on, larger for rarer events, shape (n,). Raises ValueError for shapes that do
        not fit.
    """
    released = np.atleast_2d(np.asarray(shares, dtype=np.float64))
    events = np.atleast_2d(np.asarray(bins))
    if released.shape[0] != events.shape[0] or released.ndim != 2 or events.ndim != 2:
        raise ValueError(
            f"shares of shape {released.shape} do not fit bins of shape {events.shape}: give as "
            "many features of both"
        )
    floor = 0.1 / released.shape[1] if least is None else least
    heights = np.maximum(released, floor)
    scores = np.log(heights.max(axis=1, keepdims=True) / heights)
    total: Floats = np.take_along_axis(scores, events, axis=1).sum(axis=0)
    return total
