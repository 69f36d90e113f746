"""What a statistic under per-record privacy is, and what it tells.

Definition: with a public function E from records to budgets, a mechanism is E-PrDP if adding or
removing a record r changes the probability of any set of outputs by at most a factor exp(E(r)).
Neighbours differ in one record; the number of records is private.

Bad records contribute nothing, silently: a budget that is NaN, at most 0 or below `epsilon_min`, a
value that is NaN or outside [0, `value_max`]. Whatever counted or mentioned them would cost
them an unbounded loss. A budget above `epsilon_max` is taken as `epsilon_max`.

What is counted travels as a part: an int64 array that stands for a set of records. Parts of any
subsets, in any order, add up to the part of all of them, so they can be made where records are
read, batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import MAX_EPSILON, ConfigurationError
from streamveil.mechanisms.randomness.noise import SlotNoise

Part = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bounds(Identified):
    """The public bounds of what records hold and ask for.

    Raises ConfigurationError for bounds that are not 0 < epsilon_min <= epsilon_max <= 4096 and
    0 < value_max, all finite.
    """

    IDENTITY = Form("bounds", ("epsilon_min", "epsilon_max", "value_max"))

    epsilon_min: float
    """Smallest budget of any record; one that asks for less is not counted at all."""
    epsilon_max: float
    """Largest budget that is used; one above it is taken as this."""
    value_max: float = 1.0
    """Largest value of any record; values start at 0."""

    def __post_init__(self) -> None:
        """Check all three."""
        low, high = self.epsilon_min, self.epsilon_max
        if not (0 < low <= high <= MAX_EPSILON):
            raise ConfigurationError(
                f"budgets from {low!r} to {high!r} cannot be: give 0 < epsilon_min <= epsilon_max "
                f"<= {MAX_EPSILON:g}"
            )
        if not (0 < self.value_max < math.inf):
            raise ConfigurationError(
                f"the largest value {self.value_max!r} is not a finite number above 0"
            )

    def usable(self, values: Floats, budgets: Floats) -> npt.NDArray[np.bool_]:
        """Which records count at all, shape (n,)."""
        with np.errstate(invalid="ignore"):
            return (values >= 0) & (values <= self.value_max) & (budgets >= self.epsilon_min)


@dataclass(frozen=True)
class PerRecordRelease:
    """What is published of one set of records: safe to show to anyone."""

    estimate: float
    stderr: float
    """Expected standard error that noise puts on `estimate`, for the records that it covers."""
    epsilon_tau: float
    """Records whose budget is below this are left out of `estimate`, in part or entirely."""
    dropped_bound: float
    """What the records left out add up to at most, except with probability `beta` of the
    mechanism; NaN where nothing can be said."""


class Noisy(NamedTuple):
    """Private totals by node, strictest budget first; sums of such are such again."""

    totals: Floats
    """In units of the statistic, shape (nodes,)."""
    variances: Floats
    """Of the noise in each, shape (nodes,)."""


class Statistic(Protocol):
    """A statistic of sets of records, each released once.

    `name` is the key in the registry with its options, for people to read.
    """

    @property
    def name(self) -> str:
        """The mechanism."""

    @property
    def bounds(self) -> Bounds:
        """Of the records."""

    def tally(
        self, values: Floats, budgets: Floats, cells: Integers, number: int
    ) -> Sequence[Part]:
        """Split records among cells, and make a part of the records of each.

        Args:
            values: of the records, shape (n,); zeros where the statistic is about presence.
            budgets: E of the raw records, in epsilon, shape (n,).
            cells: where each belongs, from 0 to `number` - 1, shape (n,).
            number: of cells.

        Returns:
            `number` parts, in the order of the cells.
        """

    def add(self, parts: Iterable[Part]) -> Part:
        """The part of all records of some parts; of none, that of no record."""

    def release(self, part: Part, noise: SlotNoise) -> PerRecordRelease:
        """Publish the statistic: E-PrDP if the records of `part` are in no other release."""


class Additive(Statistic, Protocol):
    """A statistic of totals by node, to each of which noise is added: whatever follows is free.

    So totals of disjoint sets of records, each with its noise once, can be added up to totals of
    sliding windows, and released again and again.
    """

    def identity(self) -> bytes:
        """All that shapes its totals and estimates: see `mechanisms/core/identity.py`."""

    def noisy(self, part: Part, noise: SlotNoise, shares: int = 1) -> Noisy:
        """Totals with noise: a record pays 1 / `shares` of its budget for them."""

    def estimate(self, noisy: Noisy) -> PerRecordRelease:
        """Choose the nodes to sum up. Uses no record: it costs nothing."""
