"""Sums: a base mechanism of the framework that finds out where to clip values.

Values are whole numbers of a public grid, and bucket b holds those from 2**(b - 1) up to 2**b
(times the smallest clip). A share of the budget finds the clip by AboveThreshold: from the largest
bucket that a record kept may be in downwards, the first clip 2**b that a noisy threshold says is
exceeded; twice that is used. The rest pays for Laplace noise on the sum of clipped values.

Guarantee: the budget, exactly: half of the share for the noise of the threshold, half for that of
the counts compared with it, the rest for the sum. Adjacency: add or remove one record. Sensitivity:
1 for every count, all in the same direction, so that one sample for each is enough; the clip for
the sum.
Source: Dwork and Roth, "The algorithmic foundations of differential privacy" (2014), Section 3.6;
Lyu, Su, Li, "Understanding the sparse vector technique for differential privacy" (2017), Theorem 5
(monotonic queries); Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy"
(2025), Section 8, which takes it from Dong and Yi, "Universal private estimators" (2023).
Changed: downwards from what records kept may have, so that nobody needs to know how many they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.domains import partition
from streamveil.mechanisms.per_record.framework import GAP, Framework, Kept
from streamveil.mechanisms.per_record.laplace import Laplace
from streamveil.mechanisms.per_record.node_noise import LIMB_BITS, VALUE_BITS, Grid
from streamveil.mechanisms.per_record.protocol import Bounds, Part
from streamveil.mechanisms.randomness.noise import FINE_RATES, RandomWords, SlotNoise

# Values below 2**8 steps of the grid share the first bucket: a clip there is value_max / 2**40.
_FIRST_BITS = 8
_BUCKETS = VALUE_BITS - _FIRST_BITS + 1
# Scales of noise that the threshold is at, if values near the largest clip are likely: exceeded by
# mistake often, but too high a clip is a small mistake then, and too low a one is not.
_NEAR_REACH = 1.0


@dataclass(frozen=True)
class Sum:
    """Sum of values clipped where few are larger.

    A part has three planes of shape (K, buckets), flat: records, and the sum of their values as
    its low 24 bits each and the rest.

    Raises ConfigurationError for a share of the budget that is not from 0 to below 1.
    """

    bounds: Bounds
    clip_share: float = 0.25
    """Share of the budget that finds the clip; without any it is that of the largest value that a
    record kept may have."""

    def __post_init__(self) -> None:
        """Check the share."""
        if not 0 <= self.clip_share < 1:
            raise ConfigurationError(
                f"the share {self.clip_share!r} of the budget for the clip of a sum is not from 0 "
                "to below 1"
            )

    @property
    def grid(self) -> Grid:
        """Values."""
        return Grid.values(self.bounds.value_max)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return 3, len(partition(self.bounds.epsilon_min, self.bounds.epsilon_max)), _BUCKETS

    def tally(
        self, values: Floats, domains: Integers, cells: Integers, number: int
    ) -> Sequence[Part]:
        """Parts of records by cell: see `Base.tally`."""
        _, rows, buckets = self._shape
        steps = self.grid.steps(values)
        at = (cells * rows + domains) * buckets + self._bucket(steps)
        # Floats are exact: a batch has fewer than 2**29 records.
        low, high = steps & ((1 << LIMB_BITS) - 1), steps >> LIMB_BITS
        totals = [
            np.bincount(at, weights, number * rows * buckets).reshape(number, -1)
            for weights in (None, low.astype(np.float64), high.astype(np.float64))
        ]
        return list(np.concatenate(totals, axis=1).astype(np.int64))

    def add(self, parts: Iterable[Part]) -> Part:
        """The part of all records of some parts: see `Base.add`."""
        total = np.zeros(math.prod(self._shape), np.int64)
        for part in parts:
            total += part
        return total

    def counts(self, part: Part, number: int) -> Integers:
        """Records by domain: see `Base.counts`."""
        counts: Integers = part.reshape(self._shape)[0].sum(axis=1)
        return counts

    def clipped(self, part: Part, first: int, clip: int) -> int:
        """Sum of min(value, 2**(clip + 8)) over records of a domain or a later one, in steps."""
        counts, low, high = part.reshape(self._shape)[:, first:].sum(axis=1).tolist()
        below = sum(low[: clip + 1]) + (sum(high[: clip + 1]) << LIMB_BITS)
        return int(below + (sum(counts[clip + 1 :]) << (clip + _FIRST_BITS)))

    def clips(self, part: Part, kept: Kept, words: RandomWords, size: int = 1) -> Integers:
        """Noisy bucket to clip at the end of, shape (size,)."""
        top = int(self._bucket(self.grid.steps(np.array([kept.largest])))[0])
        noise = self._clip_noise(kept)
        if noise is None or top == 0:
            return np.full(size, top)
        above = part.reshape(self._shape)[0, kept.first :].sum(axis=0)[::-1].cumsum()[::-1]
        # Larger than the top are none, except where `kept.largest` is wrong.
        exceeded = above[1 : top + 1]
        reach = _NEAR_REACH if kept.near else _two_tails(kept.beta / top)
        threshold = math.ceil(noise.scale * reach)
        limits = noise.draw(words, size) + (threshold << noise.bits)
        asked = noise.draw(words, size * top).reshape(size, top) + (exceeded << noise.bits)
        found = asked[:, ::-1] >= limits[:, None]
        return np.where(found.any(axis=1), top - np.argmax(found, axis=1), 0)

    def draw(self, part: Part, kept: Kept, words: RandomWords, size: int = 1) -> Floats:
        """Estimates and their standard errors, shape (2, size)."""
        clips = self.clips(part, kept, words, size)
        spent = self._clip_noise(kept)
        noise = Laplace.of(kept.budget - (2 * spent.loss if spent else 0))
        estimates = np.empty((2, size))
        for clip in np.unique(clips).tolist():
            here = clips == clip
            exact, bits = self.clipped(part, kept.first, clip), clip + _FIRST_BITS
            estimates[0, here] = noise.noisy(exact, bits, words, int(here.sum()))
            estimates[1, here] = math.sqrt(2) * noise.scale * 2.0**bits
        return np.ldexp(estimates, self.grid.exponent)

    def release(self, part: Part, kept: Kept, noise: SlotNoise) -> tuple[float, float]:
        """Estimate and standard error: see `Base.release`."""
        estimate, stderr = self.draw(part, kept, noise.words("sum"))[:, 0].tolist()
        return estimate, stderr

    def left_out(self, records: Floats, largest: Floats) -> float:
        """Sum of records left out, at most: see `Base.left_out`."""
        with np.errstate(over="ignore"):
            return float(records @ largest)

    def _clip_noise(self, kept: Kept) -> Laplace | None:
        share = math.floor(Fraction(self.clip_share) * kept.budget) // 2
        return Laplace.of(share) if share >= FINE_RATES[0] else None

    def _bucket(self, steps: Integers) -> Integers:
        """Bucket b holds from 2**(b + 7) up to 2**(b + 8) steps, the first one less as well."""
        lengths = np.frexp(steps.astype(np.float64))[1]
        return np.clip(lengths - _FIRST_BITS, 0, _BUCKETS - 1).astype(np.int64)


def _two_tails(beta: float) -> float:
    """What the sum of two Laplace samples of scale 1 exceeds with probability `beta` at most."""
    reach = 0.0
    for _ in range(20):  # P(sum >= x) = (2 + x) / 4 * exp(-x); this rises to the solution
        reach = math.log((2 + reach) / (4 * beta))
    return reach


def framework_sum(
    name: str,
    bounds: Bounds,
    budget: Callable[[Floats], Floats] | None = None,
    *,
    beta: float = 0.1,
    rho: float = 0.25,
    select: str = GAP,
    clip_share: float = 0.25,
) -> Framework:
    """The framework around :class:`Sum`: see there, and :class:`Framework`, for options."""
    return Framework(name, bounds, Sum(bounds, clip_share), budget, beta, rho, select)
