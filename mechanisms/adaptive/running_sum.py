"""A sum release: the weighted counts of many slots, added up and released once with noise.

When a gap begins, the unit u of its noise is fixed. In each of its slots t every class gets a
weight m_kt, an integer that is decided before the slot's counts are known, and is charged
m_kt * D * u at once, D being the sensitivity. At the end, whenever that is decided, the integers
sum_t sum_k m_kt C_kt get discrete Laplace noise at u units for a step of 1.

Loss: in any window of slots a user of class k moves the sum by at most the m_kt * D of those of its
slots that are in the window, which costs exactly what these slots were charged. So the length of a
gap is free: it may be longer than a window, and to end it early costs nothing.

A partial sum has no noise yet: it is as SECRET as the counts. Sums are kept below 2**62; if there
are more events than the public sizes allow, so that one overflows all the same, it wraps round,
which is a function of the exact sum and costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.weighting import STEP_BITS, Weighting
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.protocol import Crowd
from streamveil.mechanisms.randomness.noise import (
    SlotNoise,
    digest,
    discrete_laplace,
    laplace_variance,
)

# Bits of the largest partial sum.
_SUM_BITS = 62


class SumRelease(NamedTuple):
    """A released sum, as an estimate of the mean count of its slots."""

    mean: Floats
    """Shape (d,)."""
    noise: float
    """Variance of the noise on it."""
    scatter: float
    """Variance that unequal weights add, in multiples of the variance s of a count."""
    dispersion: float
    """Of the weights, as a bias sees it: see `weighting.py`."""
    shares: Floats
    """What each slot of the gap contributes: they add up to 1, shape (slots,)."""


@dataclass
class RunningSum:
    """A gap that has begun; see the module."""

    first: int
    """Its first slot."""
    threshold: int
    """Units that weights are capped at."""
    unit: int
    partial: npt.NDArray[np.int64]
    """Weighted counts so far, without noise: SECRET, shape (d,)."""
    shape: bytes = b""
    """Digest of all weights so far."""
    totals: list[float] = field(default_factory=list)
    """Weight of all users in each slot, sum_k n_k m_kt."""
    people: float = 0.0
    """Sum of number of users times weight."""
    scatter: float = 0.0
    lever: float = 0.0
    heaviest: int = 0
    """Units that the heaviest user was charged in all slots."""
    last: Weighting | None = None
    """Of the last slot; used again if weights stay the same. Not saved."""

    SCHEMA = state_codec.record_schema(
        "RunningSum",
        first="long",
        threshold="long",
        unit="long",
        partial="bytes",
        shape="bytes",
        totals={"type": "array", "items": "double"},
        people="double",
        scatter="double",
        lever="double",
        heaviest="long",
    )

    @classmethod
    def begin(
        cls, first: int, threshold: int, slots: int, crowd: Crowd, bins: int | None = None
    ) -> RunningSum:
        """Fix the unit for a gap of at most `slots` slots, so that no sum overflows.

        Sums have as many bins as the crowd's histogram, unless `bins` is given.
        """
        most = int(crowd.sizes.sum()) * crowd.sensitivity * slots
        bits = max(min(STEP_BITS, _SUM_BITS - 1 - most.bit_length()), 0)
        unit = max(1, threshold >> bits)
        return cls(first, threshold, unit, np.zeros(bins or crowd.bins, np.int64))

    def weighting(self, offers: Units, crowd: Crowd) -> Weighting:
        """Weights of the next slot for offers (K,) in units."""
        weights = np.minimum(offers // crowd.sensitivity, self.threshold) // self.unit
        last = self.last
        if last and last.population is crowd and last.weights.tobytes() == weights.tobytes():
            return last
        return Weighting(weights, self.unit, crowd)

    def add(self, weighting: Weighting, counts: npt.NDArray[np.int64]) -> None:
        """Add a slot's counts, shape (K, d), with weights that are charged to it."""
        self.partial = self.partial + weighting.weights @ counts
        self.shape = digest(self.shape, weighting.population.shape_of(weighting.weights), size=16)
        if weighting is self.last:
            total = self.totals[-1]
        else:
            sizes = weighting.population.sizes
            total = float((sizes * weighting.weights).sum(dtype=np.float64))
        self.last = weighting
        self.totals.append(total)
        if total:
            self.people += weighting.people * total
            self.scatter += total**2 * weighting.dispersion
            self.lever += total * weighting.dispersion**0.5
            self.heaviest += weighting.heaviest

    def release(self, noise: SlotNoise, purpose: str = "sum") -> SumRelease | None:
        """End the gap; None if all weights are 0.

        The words belong to the purpose, all its slots, weights and the unit: other ones get
        independent noise.
        """
        total = sum(self.totals)
        if not total:
            return None
        slots = f"{self.first} to {self.first + len(self.totals) - 1}"
        shape = digest(self.shape, b"%d" % self.unit, size=16)
        noisy = add_noise(self.partial, self.unit, noise, f"{purpose} {slots} {shape.hex()}")
        factor = self.people / total**2
        shares = np.array(self.totals) / total
        return SumRelease(
            noisy.astype(np.float64) * factor,
            factor**2 * laplace_variance(self.unit),
            self.scatter / total**2,
            (self.lever / total) ** 2,
            shares,
        )

    @property
    def epsilon(self) -> float:
        """Budget of the heaviest user in all slots of the gap."""
        return float(to_epsilon(self.heaviest))

    def record(self) -> dict[str, Any]:
        """Avro record of the gap."""
        kept = {name: value for name, value in vars(self).items() if name != "last"}
        return {**kept, "partial": state_codec.table_to_bytes(self.partial)}

    @classmethod
    def read(cls, record: dict[str, Any], bins: int) -> RunningSum:
        """The gap of a record."""
        partial = state_codec.table_from_bytes(record["partial"], (bins,))
        return cls(**{**record, "partial": partial})


def add_noise(
    partial: npt.NDArray[np.int64], unit: int, noise: SlotNoise, purpose: str
) -> npt.NDArray[np.int64]:
    """Add discrete Laplace noise at `unit` units for a step of 1."""
    return partial + discrete_laplace(unit, partial.size, noise.words(purpose))
