"""PFO, the personalised frequency oracle: one estimate from classes that report differently.

Each class's reports give unbiased frequencies by themselves; they are averaged by inverse variance.
The weights are public: they come from numbers of reports and budgets, with the unknown true
frequencies replaced by 1 / d. The average is unbiased if users of all classes have the same
distribution of values; averaged by the classes' shares of all users instead, it is unbiased
however class and value hang together.

Guarantee: post-processing of reports, which costs nothing.
Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream"
(PFO, Equations 1 and 2).
Changed: a class's share of reports is count / m_k, where the source prints count / (n q_k); the
oracle of a class may be OUE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.local.protocol import Tally


def combine(
    tally: Tally, oracles: Sequence[Oracle | None], weights: npt.ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Estimate frequencies from the reports of all classes.

    Args:
        tally: reports of K classes, d symbols.
        oracles: how each class reported; None for a class that did not.
        weights: of the classes, shape (K,), such as their sizes, in place of inverse variances.
            They are scaled to add up to 1 over the classes with reports.

    Returns:
        Frequencies, shape (d,), and the variance of each at frequencies of 1 / d, shape (d,).
        Without any report they are 1 / d, of infinite variance.
    """
    symbols = tally.supports.shape[1]
    variances = class_variances(tally.reports, oracles, symbols)
    chosen = 1 / variances if weights is None else np.asarray(weights, np.float64)
    chosen = np.where(np.isfinite(variances), chosen, 0)
    if not chosen.any():
        return np.full(symbols, 1 / symbols), np.full(symbols, np.inf)
    chosen = chosen / chosen.sum()
    frequencies, variance = np.zeros(symbols), 0.0
    for k, oracle in enumerate(oracles):
        if oracle is not None and chosen[k]:
            estimate = oracle.frequencies(tally.supports[k], int(tally.reports[k]))
            frequencies += chosen[k] * estimate
            variance += float(chosen[k] ** 2 * variances[k])
    return frequencies, np.full(symbols, variance)


def class_variances(
    reports: npt.NDArray[np.int64], oracles: Sequence[Oracle | None], symbols: int
) -> Floats:
    """Variance of a frequency of 1 / d, estimated from each class alone: shape (K,).

    Infinite for a class without reports.
    """
    each = [math.inf if o is None else float(o.variance(1 / symbols)) for o in oracles]
    variances = np.full(len(each), np.inf)
    np.divide(each, reports, out=variances, where=reports > 0)
    return variances
