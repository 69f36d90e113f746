"""Optimal population selection (OPS): how many users to ask in every slot.

A user with window w can give the whole budget once in w slots, so half of the n users can be asked
z = floor(n / (2 w)) at a time. Asking more of them divides budgets, asking fewer of them wastes
those of shorter windows. The optimum errs least.

Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream",
Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.local.protocol import GRR
from streamveil.mechanisms.local.server.expected_error import report_variances, total_variance


@dataclass(frozen=True, eq=False)
class PopulationSelection:
    """How many users are asked in a slot, and in how many shares each class gives its budget."""

    sample: int
    """z_opt of Algorithm 1."""
    error: float
    """V of Equation 6 at the optimum."""
    shares: npt.NDArray[np.int64]
    """A report of class k costs its budget divided by this, shape (K,)."""


def optimal_population_selection(
    samples: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    symbols: int,
    counts: npt.ArrayLike | None = None,
    kind: str = GRR,
) -> PopulationSelection:
    """Choose the sample size that minimises V of Equation 6.

    Candidates are the distinct sizes, ascending, the first minimum wins. At size z a user with
    z_k < z gives the budget in ceil(z / z_k) shares. The input must be public.

    Args:
        samples: z_k = floor(n / (2 w_k)) of each user or class, integers above 0, shape (K,).
        epsilons: budget of each user or class, shape (K,).
        symbols: d.
        counts: users of each class, shape (K,); 1 each when None.
        kind: the oracle.

    Raises:
        ValueError: for a sample size below 1.
    """
    sizes = np.asarray(samples, np.int64)
    budgets = np.asarray(epsilons, np.float64)
    people = np.ones(sizes.shape) if counts is None else np.asarray(counts, np.float64)
    if (sizes < 1).any():
        raise ValueError(f"a sample of {sizes.min()} users is none: windows are longer than n / 2")
    best: PopulationSelection | None = None
    for size in np.unique(sizes).tolist():
        shares = np.maximum(-(-size // sizes), 1)
        error = total_variance(report_variances(budgets / shares, symbols, kind), people, size)
        if best is None or error < best.error:
            best = PopulationSelection(size, error, shares)
    assert best is not None
    return best
