"""Optimal budget selection (OBS): the threshold at which sampling plus noise err least.

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def optimal_budget_selection(
    budgets: npt.ArrayLike, sizes: npt.ArrayLike | None = None
) -> tuple[float, float]:
    """Choose the sampling threshold that minimises the expected squared error of a count.

    A user whose budget e is below the threshold th is sampled with probability p = (exp(e) - 1) /
    (exp(th) - 1). Let n_e be the number of users with budget e. The expected squared error is the
    sum of three terms. The variance of the sampling is ``sum_{e < th} n_e p (1 - p)``. The squared
    bias is ``(sum_{e < th} n_e (1 - p))**2``. The variance of the noise is ``2 / th**2``.

    The function computes the expected squared error for every distinct budget above 0, and returns
    the budget with the smallest error as the threshold. If two budgets have the same error, the
    smaller budget is returned. Users with budget 0 are never sampled, but they add to the bias. The
    budgets must be public. For example, use the budgets in the requirements table, but never the
    budgets of the users who are present in a slot.

    Args:
        budgets: the budget (epsilon) of each user or class, shape (m,), finite and not negative.
        sizes: number of users who have each budget, shape (m,). If None, there is one user for each
            budget.

    Returns:
        The pair (threshold, error). If no budget is above 0, the pair is (0.0, inf).

    Raises:
        ValueError: if a budget is negative or infinite, if a number of users is negative, or if the
            arrays have different lengths.

    Example:
        >>> threshold, error = optimal_budget_selection([0.5, 1.0], [100, 10])
        >>> threshold
        0.5
    """
    eps = np.asarray(budgets, dtype=np.float64).ravel()
    users = np.ones(eps.shape) if sizes is None else np.asarray(sizes, dtype=np.float64).ravel()
    if eps.shape != users.shape:
        raise ValueError(f"{eps.size} budgets but {users.size} sizes: give one size a budget")
    if not np.isfinite(eps).all() or (eps < 0).any():
        raise ValueError("budgets must be finite and not negative")
    if (users < 0).any():
        raise ValueError("sizes must not be negative")
    distinct, inverse = np.unique(eps, return_inverse=True)
    counts = np.bincount(inverse, weights=users, minlength=distinct.size).astype(np.float64)
    present = (distinct > 0) & (counts > 0)
    if not present.any():
        return 0.0, float("inf")
    errors = _errors(distinct, counts)
    errors[~present] = np.inf
    best = int(np.argmin(errors))
    return float(distinct[best]), float(errors[best])


def _errors(
    budgets: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """err(th) at each th of the ascending `budgets`, from prefix sums: shape (m,)."""
    if budgets[-1] > 300:  # exp(budget)**2 would overflow
        return _errors_pairwise(budgets, counts)
    with np.errstate(divide="ignore", invalid="ignore"):  # a budget of 0 is no candidate
        growth = np.expm1(budgets)
        below = np.cumsum(counts) - counts
        first = np.cumsum(counts * growth) - counts * growth
        second = np.cumsum(counts * growth**2) - counts * growth**2
        kept = first / growth
        variance = kept - second / growth**2
        return variance + (below - kept) ** 2 + 2 / budgets**2


def _errors_pairwise(
    budgets: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The same for budgets beyond exp's range, where nobody minds O(m**2)."""
    errors = np.empty(budgets.shape)
    for i, threshold in enumerate(budgets):
        keep = keep_probability(budgets[:i], float(threshold))
        missing = counts[:i] * (1 - keep)
        with np.errstate(divide="ignore"):
            errors[i] = (missing * keep).sum() + missing.sum() ** 2 + 2 / threshold**2
    return errors


def keep_probability(budgets: npt.ArrayLike, threshold: float) -> npt.NDArray[np.float64]:
    """Sampling probability of each budget at a threshold above 0: 1 at and above it.

    (exp(e) - 1) / (exp(th) - 1), computed as exp(e - th) * expm1(-e) / expm1(-th), which neither
    overflows nor loses digits at either end.
    """
    eps = np.minimum(np.asarray(budgets, dtype=np.float64), threshold)
    return np.exp(eps - threshold) * np.expm1(-eps) / np.expm1(-threshold)
