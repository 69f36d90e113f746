"""What records are charged, added up exactly: by what they add to nodes, or by their domain."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.per_record.domains import domain_index
from streamveil.mechanisms.per_record.framework import Framework
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.per_record.protocol import Floats, Statistic
from streamveil.mechanisms.randomness.noise import FINE_BITS


def dearest(made: Statistic, values: Floats, budgets: Floats) -> float:
    """The largest charge of any of some records, in parts of its budget; above 1 if it is above.

    Args:
        made: the statistic.
        values: of the records, shape (n,).
        budgets: their own, shape (n,).
    """
    usable = made.bounds.usable(values, budgets)
    values = values[usable]
    budgets = np.minimum(budgets[usable], made.bounds.epsilon_max)
    if not values.size:
        return 0.0
    if isinstance(made, Framework):
        charges = _by_domain(made, budgets)
    else:
        assert isinstance(made, NodeTotals)
        charges = _by_node(made, values, budgets)
    return max(
        _part(charge, budget)
        for charge, budget in zip(charges.tolist(), budgets.tolist(), strict=True)
    )


def _part(charge: int, budget: float) -> float:
    exact = Fraction(charge, 1 << FINE_BITS) / Fraction(budget)
    rounded = float(exact)
    # Not by rounding on either side of 1.
    return max(rounded, float(np.nextafter(1, 2))) if exact > 1 else min(rounded, 1.0)


def _by_node(made: NodeTotals, values: Floats, budgets: Floats) -> npt.NDArray[np.object_]:
    total = np.zeros(values.size, object)
    for node, steps in made.split(made.grid.steps(values), budgets):
        total += made.nodes.loss(node, steps)
    return total


def _by_domain(made: Framework, budgets: Floats) -> npt.NDArray[np.object_]:
    """Of the count of its domain, and of the base mechanism that keeps no more than its domain."""
    domains = domain_index(budgets, made.low) - 1
    known = [made.selection_noise[i].loss + made.kept(i).budget for i in range(len(made.low))]
    return np.array([known[i] for i in domains.tolist()], object)
