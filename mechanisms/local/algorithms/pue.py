"""Personalised utility enhancement (PUE): reports at high budgets, perturbed again, help low ones.

A report at a budget H becomes one at a lower budget L by a second perturbation, which needs neither
the user nor any budget: it is post-processing. Each group's estimate then rests on its own reports
and on those of all groups with higher budgets.

GRR: a report stays with probability beta and becomes each other symbol with probability gamma::

    beta = (d p_L - p_L + p_H - 1) / (d p_H - 1)    gamma = (p_H - p_L) / (d p_H - 1)

In other words: it stays with probability a = beta - gamma = (p_L - q_L) / (p_H - q_H) and is
uniform over all d symbols otherwise, since d p - 1 = (d - 1) (p - q) and beta + (d - 1) gamma = 1.

OUE: every bit flips with probability b = (q_L - q_H) / (1 - 2 q_H). The true symbol's bit, set with
probability p_H = p_L = 1/2, stays fair: (1 - b) / 2 + b / 2 = 1/2. Any other bit is set with
probability q_H (1 - b) + (1 - q_H) b = q_H + b (1 - 2 q_H) = q_L. Bits are independent before and
after, so these are reports at budget L.

Reports of a group that name one symbol are alike, so counts are perturbed, not reports. Privacy
does not rest on this randomness.

Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream",
Algorithm 2, Theorem V.1; He et al., "Personalized local differential privacy for multi-dimensional
range queries over mobile user data" (2025).
Changed: OUE; the variance of what is combined. The groups' estimates share reports, so the sum of
their precisions, which the paper takes, is too large: for the figures of its Example 4 it gives
less than half of the true variance. Here shared reports are accounted for, so that the
dissimilarity is unbiased. The weights are the paper's. PFO without PUE errs less: perturbing again
tells nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.local.algorithms.user_draws import generator
from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.local.protocol import OUE, Tally
from streamveil.mechanisms.local.server.expected_error import report_variances
from streamveil.mechanisms.randomness.noise import RandomWords


def reperturbation(high: Oracle, low: Oracle) -> tuple[float, float]:
    """Probabilities beta and gamma of Equation 8, for GRR."""
    keep = _keep(high, low)
    gamma = (1 - keep) / low.symbols
    return keep + gamma, gamma


def bit_flip(high: Oracle, low: Oracle) -> float:
    """Probability b with which a bit of an OUE report flips."""
    return max((low.q - high.q) / (1 - 2 * high.q), 0.0)


def reperturb(
    supports: Integers, reports: int, high: Oracle, low: Oracle, random: np.random.Generator
) -> Integers:
    """Counts of reports at budget `high` as they would be at the lower budget `low`.

    Args:
        supports: reports that support each symbol, shape (d,).
        reports: number of reports.
        high: how they were made.
        low: how they shall look: of the same kind.
        random: where randomness comes from.

    Returns:
        Supports at the lower budget, shape (d,).
    """
    if low.kind == OUE:
        flip = bit_flip(high, low)
        stay = random.binomial(supports, 1 - flip)
        return np.asarray(stay + random.binomial(reports - supports, flip))
    kept = random.binomial(supports, _keep(high, low))
    uniform = np.full(low.symbols, 1 / low.symbols)
    return np.asarray(kept + random.multinomial(reports - int(kept.sum()), uniform))


def personalised_utility_enhancement(
    tally: Tally, oracles: Sequence[Oracle | None], words: RandomWords
) -> tuple[Floats, Floats]:
    """Estimate frequencies from the reports of all classes, enhanced (Algorithm 2, then PFO).

    Args:
        tally: at least one report.
        oracles: how each class reports, all of one kind, shape (K,); None for one that does not.
        words: randomness of the second perturbation.

    Returns:
        (frequencies, variances), each of shape (d,).
    """
    random = generator(words)
    groups, supports, reports = _by_budget(tally, oracles)
    enhanced = supports.copy()
    for low in range(len(groups)):
        for high in range(low + 1, len(groups)):
            enhanced[low] += reperturb(
                supports[high], int(reports[high]), groups[high], groups[low], random
            )
    larger = np.cumsum(reports[::-1])[::-1]  # reports of each group and all above it
    estimates = np.array(
        [
            group.frequencies(support, int(size))
            for group, support, size in zip(groups, enhanced, larger, strict=True)
        ]
    )
    symbols = groups[0].symbols
    variances = np.array([report_variances(g.epsilon, symbols, g.kind) for g in groups])
    weights = larger / variances
    weights /= weights.sum()
    variance = _variance(variances, reports, larger, weights) / symbols
    return weights @ estimates, np.full(symbols, variance)


def _keep(high: Oracle, low: Oracle) -> float:
    return min((low.p - low.q) / (high.p - high.q), 1.0)


def _by_budget(
    tally: Tally, oracles: Sequence[Oracle | None]
) -> tuple[list[Oracle], Integers, Integers]:
    """Pool the classes by budget: groups ascending, their supports (m, d) and reports (m,)."""
    heard: dict[Oracle, list[int]] = {}
    for k, oracle in enumerate(oracles):
        if oracle is not None and tally.reports[k]:
            heard.setdefault(oracle, []).append(k)
    groups = sorted(heard, key=lambda oracle: oracle.epsilon)
    supports = np.array([tally.supports[heard[group]].sum(axis=0) for group in groups])
    reports = np.array([tally.reports[heard[group]].sum() for group in groups])
    return groups, supports, reports


def _variance(variances: Floats, reports: Integers, larger: Integers, weights: Floats) -> float:
    """Total variance of the weighted estimates.

    Perturbed again for group L, a report of group H is the same estimate plus noise of variance
    v_L - v_H of its own. So reports of H count with the sum of weights / larger over all L <= H,
    and the noise is added up by itself.
    """
    share = weights / larger
    direct = reports * np.cumsum(share) ** 2 * variances
    above = larger - reports
    added = share**2 * (above * variances - _above(reports * variances))
    return float(direct.sum() + added.sum())


def _above(values: Floats) -> Floats:
    """Sum of the values behind each one."""
    return np.asarray(np.cumsum(values[::-1])[::-1] - values)
