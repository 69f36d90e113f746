"""How far a slot has moved from the last publication, privately.

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.randomness.noise import SlotNoise
from streamveil.mechanisms.wevent.sampling import Sampling


def dissimilarity(
    counts: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    sampling: Sampling,
    noise: SlotNoise,
) -> float:
    """Noisy mean absolute deviation per bin of the sampled counts from the last publication.

    sum_j |c_j - last_j| is an integer that one contribution changes by at most 1, so discrete
    Laplace noise at the threshold goes on the sum; dividing by the number of bins comes after.

    Args:
        counts: events of each class and bin, int64, shape (K, d).
        last: the last publication, int64, shape (d,).
        sampling: SM for this slot's dissimilarity budgets.
        noise: randomness of the slot.

    Returns:
        The mean deviation in events; -inf when there is no budget to look at all.
    """
    if sampling.threshold == 0:
        return float("-inf")
    sampled = sampling.sample(counts, noise.words("dissimilarity sample"))
    moved = np.abs(sampled - last).sum(keepdims=True)
    moved = moved + sampling.noise(1, noise.words("dissimilarity noise"))
    return int(moved[0]) / last.size
