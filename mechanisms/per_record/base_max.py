"""The largest value: a base mechanism of the framework.

An exponential mechanism over a public grid of values: the score s of grid point x is minus the
distance of a target rank t from the ranks of x, which run from #{v > x} to #{v >= x}; it is drawn
with a probability proportional to exp(e s / 2). The target is so far from the maximum that all
points above it together are drawn with a probability of at most beta; the estimate is a value of
about rank t.

Grid points have `bits` bits of mantissa: relative steps of 2**-bits to 2**-(bits + 1), down to
value_max / 2**40; what is smaller counts as 0.

Guarantee: the budget e, exactly: draws are made of integers alone. Adjacency: add or remove one
record. Sensitivity: 1 for a score, in either direction, hence the factor 1/2.
Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Section 8, which takes it from Dong and Yi, "Universal private estimators" (2023).
Changed: the factor 1/2 (published figures need the double budget); a value that many records have
is at all their ranks; points are those of the grid up to the largest value that a record kept may
have; t follows from how many they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record import sparse
from streamveil.mechanisms.per_record.framework import GAP, Framework, Kept
from streamveil.mechanisms.per_record.laplace import fine_epsilon
from streamveil.mechanisms.per_record.protocol import Bounds, Part
from streamveil.mechanisms.randomness.exponential import draw
from streamveil.mechanisms.randomness.noise import RandomWords, SlotNoise

_OCTAVES = 40
_MANTISSA_BITS = 52


@dataclass(frozen=True)
class Max(sparse.ByValue):
    """Largest value; raises ConfigurationError for a grid that is not of 1 to 16 bits."""

    value_max: float
    bits: int = 10

    def __post_init__(self) -> None:
        """Check the grid."""
        if not 1 <= self.bits <= 16:
            raise ConfigurationError(
                f"a grid of {self.bits!r} bits for the maximum is not of 1 to 16 bits"
            )

    def codes(self, values: Floats) -> Integers:
        """The last grid point that is at most each value, counted from 0, the value 0."""
        codes = sparse.float_codes(values) >> (_MANTISSA_BITS - self.bits)
        return np.maximum(codes - self._offset, 0)

    def points(self, codes: Integers) -> Floats:
        """Values of grid points."""
        floats = (codes + self._offset) << (_MANTISSA_BITS - self.bits)
        return np.where(codes > 0, sparse.code_floats(floats), 0.0)

    @property
    def _offset(self) -> int:
        """Code, before it is counted from 0, of the point below value_max / 2**40."""
        lowest = np.array([math.ldexp(self.value_max, -_OCTAVES)])
        return int(sparse.float_codes(lowest)[0] >> (_MANTISSA_BITS - self.bits)) - 1

    def distances(self, part: Part, kept: Kept) -> Integers:
        """-s of every grid point that a record kept may have, shape (points,)."""
        size = int(self.codes(np.array([kept.largest]))[0]) + 1
        rows = sparse.kept(part, kept.first)
        at = np.minimum(rows[:, sparse.CODE], size - 1)
        here = np.bincount(at, rows[:, sparse.COUNT], size).astype(np.int64)
        target = math.ceil(2 / fine_epsilon(kept.budget) * math.log(size / kept.beta))
        least = np.cumsum(here[::-1])[::-1]
        return np.maximum(np.maximum(target - least, least - here - target), 0)

    def draw(self, part: Part, kept: Kept, words: RandomWords, size: int = 1) -> Floats:
        """Estimates, shape (size,)."""
        return self.points(draw(self.distances(part, kept), kept.budget // 2, words, size))

    def release(self, part: Part, kept: Kept, noise: SlotNoise) -> tuple[float, float]:
        """Estimate; its error is unknown: see `Base.release`."""
        return float(self.draw(part, kept, noise.words("max"))[0]), math.nan


def framework_max(
    name: str,
    bounds: Bounds,
    budget: Callable[[Floats], Floats] | None = None,
    *,
    beta: float = 0.1,
    rho: float = 0.25,
    select: str = GAP,
    bits: int = 10,
) -> Framework:
    """The framework around :class:`Max`: see there, and :class:`Framework`, for options."""
    return Framework(name, bounds, Max(bounds.value_max, bits), budget, beta, rho, select)
