"""Exact budgets: privacy loss as whole units of 2**-40 epsilon.

Every conversion and every division rounds down, so a sum of what was handed out never exceeds
what was asked for. Budgets are int64: at most 2**12 epsilon is 2**52 units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Units = npt.NDArray[np.int64]

UNIT_BITS = 40
UNITS_PER_EPSILON = 1 << UNIT_BITS


@overload
def to_units(epsilon: float) -> int: ...
@overload
def to_units(epsilon: npt.NDArray[np.float64] | Sequence[float]) -> Units: ...
def to_units(epsilon: float | npt.NDArray[np.float64] | Sequence[float]) -> int | Units:
    """Whole units in epsilon, rounded down; of every element of an array.

    Scaling by a power of two is exact in binary.
    """
    if isinstance(epsilon, (float, int)):
        return math.floor(math.ldexp(epsilon, UNIT_BITS))
    scaled = np.ldexp(np.asarray(epsilon, np.float64), UNIT_BITS)
    units: Units = np.floor(scaled).astype(np.int64)
    return units


def to_epsilon(units: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Epsilon as float64 of an array of units, for people to read; never decides a budget."""
    return np.ldexp(np.asarray(units, dtype=np.float64), -UNIT_BITS)
