"""A public pool of linear queries: which of them a released distribution answers worst.

Ranges of 1, 2, 4, ... neighbouring bins (single bins, sums of ranges up to all bins), the mean of
the bins' numbers, and the bins that the last release has at the top. Coefficients are whole
numbers from 0 to `SCALE`, so that one event changes an answer by at most `SCALE`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.infinite.postprocessing import top_k

SCALE = 1 << 10
# Bins of the top-k query.
_TOP = 10
# More bins than this are not all queried one by one: the shortest ranges are longer.
_MOST_RANGES = 64


def queries(bins: int) -> Integers:
    """Coefficients of the ranges and of the mean, shape (Q, d); public."""
    rows = [np.arange(bins) * SCALE // max(bins - 1, 1)]
    parts = 1 << min(bins - 1, _MOST_RANGES).bit_length()
    while parts >= 1:
        edges = np.arange(parts + 1) * bins // parts
        rows += [
            np.where((np.arange(bins) >= first) & (np.arange(bins) < end), SCALE, 0)
            for first, end in pairwise(edges)
            if end > first
        ]
        parts //= 2
    return np.array(rows, dtype=np.int64)


def with_top(pool: Integers, shares: npt.NDArray[np.float64]) -> Integers:
    """The pool and the query for the top bins of a released distribution, shape (Q + 1, d)."""
    row = np.zeros((1, pool.shape[1]), dtype=np.int64)
    row[0, top_k(shares, min(_TOP, shares.size))] = SCALE
    return np.concatenate([pool, row])
