"""Expected errors of frequencies that are estimated from reports of some of the users.

All of them are public: they take requirements and numbers of reports, at true frequencies of 1/d.

Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream",
Equations 2 to 7.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.local.protocol import GRR, OUE

# Beyond this budget a report has no variance that a float could tell from 0.
_MAX_EPSILON = 300.0


def report_variances(epsilons: npt.ArrayLike, symbols: int, kind: str = GRR) -> Floats:
    """Total variance over the symbols of frequencies estimated from one report at each budget.

    d lambda_k + mu_k of Equation 2 for a group of one report. Infinite for a budget of 0.
    """
    with np.errstate(divide="ignore"):
        growth = np.expm1(np.minimum(np.asarray(epsilons, np.float64), _MAX_EPSILON))
        noise = 1 / growth + 1 / growth**2  # q (1 - q) / (p - q)**2 is 4 times this in OUE
        if kind == OUE:
            return np.asarray(4 * symbols * noise + 1)
        return np.asarray((symbols - 1) * (2 / growth + symbols / growth**2))


def perturbation_variance(variances: npt.ArrayLike, reports: npt.ArrayLike) -> float:
    """Total variance over the symbols when groups are combined by inverse variance (Equation 2).

    Args:
        variances: of one report of each group, shape (m,): `report_variances`.
        reports: number of reports of each group, or the number expected, shape (m,).

    Returns:
        The variance; infinite without any report.
    """
    precision = float((np.asarray(reports, np.float64) / np.asarray(variances)).sum())
    return 1 / precision if precision else float("inf")


def sampling_variance(users: int, sample: int) -> float:
    """Largest total variance from asking `sample` of the users only (Equation 5)."""
    return (users - sample) / (sample * max(users - 1, 1)) if sample else float("inf")


def total_variance(
    variances: npt.ArrayLike, counts: npt.ArrayLike, sample: int, users: int | None = None
) -> float:
    """Sampling and perturbation together, V of Equation 6.

    Args:
        variances: of one report of each group, shape (m,).
        counts: users of each group, shape (m,): the sample is composed in proportion to them.
        sample: users asked.
        users: all users; None where the groups are all users.

    Returns:
        The variance; infinite for an empty sample.
    """
    if not sample:
        return float("inf")
    people = np.asarray(counts, np.float64)
    everyone = int(people.sum()) if users is None else users
    expected = people * (sample / people.sum())
    return sampling_variance(everyone, sample) + perturbation_variance(variances, expected)


def reporting_error(
    variances: npt.ArrayLike,
    counts: npt.ArrayLike,
    sample: int,
    symbols: int,
    users: int | None = None,
) -> float:
    """Mean over the symbols of :func:`total_variance`, err of Equation 7."""
    return total_variance(variances, counts, sample, users) / symbols


def dissimilarity(frequencies: Floats, variances: Floats, published: Floats) -> float:
    """How far frequencies have moved from those published, in the mean square over the symbols.

    dis of Equation 3: unbiased where `variances` are those of the estimated `frequencies`.
    """
    return float(np.mean((frequencies - published) ** 2) - np.mean(variances))
