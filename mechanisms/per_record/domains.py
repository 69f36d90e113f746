"""The domains of budgets, and which of them to keep: Algorithm 1's partition and its selection.

low_i = epsilon_min * 2**(i - 1), i = 1 .. K, are the smallest budgets of the domains: domain i
holds budgets above low_i up to low_(i+1), the first one low_1 as well. A budget is compared with
the very numbers that noise is made for, so a record is never in a domain whose noise is made for a
larger budget than its own.

Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Section 5.1. Changed: K and the domain of a budget come from multiplying and comparing; the
logarithm there, rounded up, puts a budget next to a boundary one domain too high, at twice its
budget.
"""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers


def partition(epsilon_min: float, epsilon_max: float) -> Floats:
    """The smallest budget of each domain, rising, shape (K,): all but the first are below the top.

    Args:
        epsilon_min: smallest budget that counts, above 0.
        epsilon_max: largest budget that is used.
    """
    low = [float(epsilon_min)]
    while 2 * low[-1] < epsilon_max:
        low.append(2 * low[-1])
    return np.array(low)


def domain_index(budgets: Floats, low: Floats) -> Integers:
    """Domain of each budget, from 1 to K; 0 for one that is NaN or below the smallest."""
    budgets = np.asarray(budgets, np.float64)
    index = np.array(np.searchsorted(low, budgets, side="left"), np.int64)
    index[budgets == low[0]] = 1
    index[np.isnan(budgets)] = 0
    return index


def thresholds(low: Floats, beta: float) -> Floats:
    """ln(K / beta) / low_i, shape (K,).

    Laplace noise of scale 1 / low_i reaches none of them, except with probability `beta` / 2.
    """
    return np.log(len(low) / beta) / np.asarray(low)


def select_domain(noisy: Floats, thresholds: Floats) -> Integers:
    """First domain, from 1 to K, that reaches its threshold; K where none does.

    Args:
        noisy: totals by domain, shape (..., K).
        thresholds: shape (K,).

    Returns:
        Shape (...).
    """
    passed = np.asarray(noisy) >= thresholds
    passed[..., -1] = True
    return np.argmax(passed, axis=-1) + 1
