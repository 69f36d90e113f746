"""Exact probabilities of failure: delta as whole units of 2**-62.

What is granted is rounded down and what is spent is rounded up, so no sum of what was spent is ever
too small. Units are int64, so the sum of two of them does not overflow.
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real

from streamveil.mechanisms.core.records import LEAST_DELTA, MOST_DELTA, ConfigurationError

DELTA_BITS = 62
DELTA_ONE = 1 << DELTA_BITS


def delta_units(delta: float) -> int:
    """Whole units in delta, rounded down.

    Raises:
        ConfigurationError: if delta is not a number from `LEAST_DELTA` to `MOST_DELTA`.
    """
    is_number = isinstance(delta, (Real, Decimal)) and not isinstance(delta, bool)
    if not is_number or not LEAST_DELTA <= delta <= MOST_DELTA:
        raise ConfigurationError(
            f"delta {delta!r} is not a number from {LEAST_DELTA:g} to {MOST_DELTA:g}: give a "
            "small probability, such as 1e-9"
        )
    return math.floor(math.ldexp(float(delta), DELTA_BITS))


def to_delta(units: int) -> float:
    """The probability of some units, for people to read; it never decides anything."""
    return math.ldexp(units, -DELTA_BITS)
