"""As many others that, without noise, one record more would change what is chosen.

Which nodes or domains are kept is decided by noisy totals, and costs nothing for that alone. So
where true totals would decide otherwise with a record than without, a choice that noise has no part
in, or too little of it, shows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamveil.mechanisms.per_record.framework import Framework
from streamveil.mechanisms.per_record.node_noise import LIMB_BITS
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.per_record.protocol import Floats, Noisy, Part
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.pipelines.audit.records.canaries import Canary

# More are not tried; and so many next to where the choice changes.
MOST, _NEAR = 4096, 4


def in_doubt(
    made: Any, canary: Canary, others: Callable[[int], tuple[Floats, Floats]]
) -> tuple[Floats, Floats] | None:
    """Others among whom the canary decides; None where no number of them does.

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
