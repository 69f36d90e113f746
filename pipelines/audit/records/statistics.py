"""What statistics of records make of them: what they are charged, and beside whom one decides.

Charges are added up exactly, by what records add to nodes or by their domain.

Which nodes or domains are kept is decided by noisy totals, and costs nothing for that alone. So
where true totals would decide otherwise with a record than without, a choice that noise has no part
in, or too little of it, shows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record.domains import domain_index
from streamveil.mechanisms.per_record.framework import Framework
from streamveil.mechanisms.per_record.node_noise import LIMB_BITS
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.per_record.protocol import Noisy, Part, Statistic
from streamveil.mechanisms.randomness.noise import FINE_BITS, NoiseSource
from streamveil.pipelines.audit.records.canaries import Canary

# More are not tried; and so many next to where the choice changes.
MOST, _NEAR = 4096, 4


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


def in_doubt(
    made: Any, canary: Canary, others: Callable[[int], tuple[Floats, Floats]]
) -> tuple[Floats, Floats] | None:
    """As many others that, without noise, the canary would change what is chosen; None for none.

    Args:
        made: the statistic.
        canary: the record.
        others: values and budgets of so many.
    """
    (one,) = _tally(made, np.array([canary.value]), np.array([canary.budget]))
    alone, few, many = _choice(made, made.add([])), 0, MOST
    while many - few > 1:  # more records change the choice sooner or later, and once
        number = (few + many) // 2
        (rest,) = _tally(made, *others(number))
        few, many = (number, many) if _choice(made, rest) == alone else (few, number)
    for number in range(max(few - _NEAR, 0), few + _NEAR):
        some = others(number)
        (rest,) = _tally(made, *some)
        if _choice(made, rest) != _choice(made, made.add([rest, one])):
            return some
    return None


def _tally(made: Any, values: Floats, budgets: Floats) -> Any:
    return made.tally(values, budgets, np.zeros(values.size, np.int64), 1)


def _choice(made: Any, part: Part) -> int:
    """What is chosen of true totals."""
    if isinstance(made, Framework):
        return int(made.first(made.base.counts(part, len(made.low)).astype(np.float64)))
    assert isinstance(made, NodeTotals)
    low, high = part.astype(object).reshape(2, -1)
    steps = ((high << LIMB_BITS) + low).astype(np.float64)
    variances = made.noisy(part, NoiseSource(bytes(32)).slot(0, b"")).variances
    return int(made.select(Noisy(np.ldexp(steps, made.grid.exponent), variances)))
