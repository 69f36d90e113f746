"""How many values there are: a base mechanism of the framework.

A value counts if any of its records is kept, so if its greatest domain is: one pass over records
is enough, whatever domain is chosen then.

Guarantee: the budget, exactly. Adjacency: add or remove one record. Sensitivity: 1.
Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Section 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record import sparse
from streamveil.mechanisms.per_record.framework import GAP, Framework, Kept
from streamveil.mechanisms.per_record.laplace import Laplace
from streamveil.mechanisms.per_record.protocol import Bounds, Part
from streamveil.mechanisms.randomness.noise import RandomWords, SlotNoise


@dataclass(frozen=True)
class Distinct(sparse.ByValue):
    """Number of different values, with Laplace noise."""

    def exact(self, part: Part, first: int) -> int:
        """Number of different values of records of a domain or a later one."""
        codes = sparse.kept(part, first)[:, sparse.CODE]  # sorted
        return int(np.count_nonzero(np.diff(codes))) + min(1, len(codes))

    def draw(self, part: Part, kept: Kept, words: RandomWords, size: int = 1) -> Floats:
        """Estimates, shape (size,)."""
        return Laplace.of(kept.budget).noisy(self.exact(part, kept.first), 0, words, size)

    def release(self, part: Part, kept: Kept, noise: SlotNoise) -> tuple[float, float]:
        """Estimate and standard error: see `Base.release`."""
        estimate = float(self.draw(part, kept, noise.words("distinct"))[0])
        return estimate, math.sqrt(2) * Laplace.of(kept.budget).scale


def framework_distinct(
    name: str,
    bounds: Bounds,
    budget: Callable[[Floats], Floats] | None = None,
    *,
    beta: float = 0.1,
    rho: float = 0.25,
    select: str = GAP,
) -> Framework:
    """The framework around :class:`Distinct`: see :class:`Framework` for options."""
    return Framework(name, bounds, Distinct(), budget, beta, rho, select)
