"""Totals by node in fixed point, and their noise: where the loss of a record is decided.

A record adds integers to some nodes: steps of a grid of values. Node j publishes its total, shifted
right by its shift k_j, plus discrete Laplace noise with probability proportional to
exp(-|y| * s_j / 2**56), s_j being its rate. So a record that adds a_j steps to node j loses exactly

    sum over j of ceil(a_j / 2**k_j) * s_j / 2**56,

an integer in units of 2**-56 epsilon (:meth:`Nodes.loss`). A shift is 0, except at coarse nodes,
whose rate would otherwise be too small for an integer; what rounding up costs there is at most
`Nodes.reserve` in all, which is set aside from every budget.

Totals are exact. A part holds them in two limbs of int64, the low 24 bits of each contribution
added up and the rest of each: parts of less than 2**39 records add up without overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.protocol import Bounds, Noisy, Part
from streamveil.mechanisms.randomness.noise import FINE_BITS, FINE_RATES, RandomWords, fine_laplace

LIMB_BITS = 24
VALUE_BITS = 48
_COUNT_BITS = 16
_VALUES = (1e-100, 1e100)

# A node whose steps cost less is coarse. Of this, 16 shares are still enough for noise: as many as
# there are nodes of a record in a running total of 10**13 ticks.
_LEAST_BUDGET = Fraction(16 * FINE_RATES[0], 1 << FINE_BITS)

# The part of `epsilon_min` that one step of a coarse node costs at most.
_COARSE = Fraction(1, 1 << 10)

# What is left of every budget when floats may round while a record is split among nodes.
SHAVED = 1 - 2.0**-40


@dataclass(frozen=True)
class Grid:
    """Values as whole steps of 2**exponent."""

    exponent: int
    largest: int
    """Steps of the largest value."""
    presence: bool = False
    """Whether every value counts as the largest, whatever it is."""

    @classmethod
    def counts(cls) -> Grid:
        """Of presence: every record has the value 1, in 2**16 steps."""
        return cls(-_COUNT_BITS, 1 << _COUNT_BITS, presence=True)

    @classmethod
    def values(cls, value_max: float) -> Grid:
        """Of values from 0 to `value_max`, in about 2**47 to 2**48 steps.

        Raises ConfigurationError for one whose noise would not fit into floats.
        """
        if not _VALUES[0] <= value_max <= _VALUES[1]:
            raise ConfigurationError(
                f"the largest value {value_max!r} is not from {_VALUES[0]:g} to {_VALUES[1]:g}: "
                "give values in another unit"
            )
        exponent = math.frexp(value_max)[1] - VALUE_BITS
        return cls(exponent, round(math.ldexp(value_max, -exponent)))

    def steps(self, values: Floats) -> Integers:
        """The nearest whole steps of values in range, shape (n,)."""
        if self.presence:
            return np.full(values.shape, self.largest)
        steps: Integers = np.rint(np.ldexp(values, -self.exponent)).astype(np.int64)
        return steps


@dataclass(frozen=True, eq=False)
class Nodes:
    """The rates and shifts of nodes."""

    grid: Grid
    rates: Integers
    """s_j, shape (nodes,)."""
    shifts: Integers
    """k_j, shape (nodes,)."""
    reserve: float
    """Epsilon that a record with contributions to two neighbouring nodes may lose by rounding."""

    @classmethod
    def of(cls, budgets: Sequence[Fraction], bounds: Bounds, grid: Grid) -> Nodes:
        """Make nodes whose steps cost these budgets, or a little less.

        They are less by one part in 2**30, and by one in 2**9 if a node is coarse: so whoever has
        at least `epsilon_min` can afford all that they could afford without rounding.

        Raises ConfigurationError when the smallest budget is too small for any noise.
        """
        cost = Fraction(bounds.epsilon_min) * _COARSE
        if cost / 2 < _LEAST_BUDGET:
            raise ConfigurationError(
                f"the smallest budget {bounds.epsilon_min!r} is too small for noise of this "
                f"precision: give an epsilon_min of at least {float(2 * _LEAST_BUDGET / _COARSE)}; "
                "records that ask for less are not counted"
            )
        kept = 1 - Fraction(1, 1 << 30)
        if min(budgets) < 2 * _LEAST_BUDGET:
            kept -= 2 * _COARSE
        budgets = [budget * kept for budget in budgets]
        shifts = [_shift(budget, cost) for budget in budgets]
        rates = [
            min(math.floor(budget * (1 << FINE_BITS + shift)), FINE_RATES[1])
            for budget, shift in zip(budgets, shifts, strict=True)
        ]
        reserve = 2 * float(cost) if any(shifts) else 0.0
        return cls(grid, np.array(rates), np.array(shifts), reserve)

    @property
    def budgets(self) -> Floats:
        """What a step costs at each node, rounding up aside: exact, shape (nodes,)."""
        budgets: Floats = np.ldexp(self.rates.astype(np.float64), -FINE_BITS - self.shifts)
        return budgets

    def affordable(self, budgets: Floats) -> Floats:
        """What records may spend by :attr:`budgets`, shape (n,)."""
        return budgets * SHAVED - self.reserve

    def loss(self, node: Integers, steps: Integers) -> npt.NDArray[np.object_]:
        """What adding steps to a node costs, in units of 2**-56 epsilon: exact integers."""
        shifts, rates = (facts[node].astype(object) for facts in (self.shifts, self.rates))
        return -(-steps.astype(object) >> shifts) * rates

    def empty(self) -> Part:
        """The part of no record."""
        return np.zeros(2 * len(self.rates), np.int64)

    def tally(self, cells: Integers, node: Integers, steps: Integers, number: int) -> Part:
        """Parts of each cell, shape (number, 2 * nodes), of one contribution of each record."""
        size = len(self.rates)
        place = cells * size + node
        parts = np.zeros((number, 2, size), np.int64)
        for i in range(2 if self.grid.largest >> LIMB_BITS else 1):
            limb = steps >> LIMB_BITS if i else steps & (1 << LIMB_BITS) - 1
            # Sums of floats that are whole numbers below 2**53 are exact.
            sums = np.bincount(place, limb.astype(np.float64), number * size)
            parts[:, i] = sums.reshape(number, size)
        return parts.reshape(number, 2 * size)

    def add(self, parts: Iterable[Part]) -> Part:
        """The sum of parts."""
        total = self.empty()
        for part in parts:
            total += part
        return total

    def noisy(self, part: Part, words: RandomWords, shares: int = 1, runs: int = 1) -> Noisy:
        """Totals with noise of 1 / `shares` of each rate, of `runs` releases: (runs, nodes) each.

        Variances are the same in all runs: shape (nodes,).
        """
        rates = self.rates // shares
        low, high = part.astype(object).reshape(2, -1)
        exact = (high << LIMB_BITS) + low >> self.shifts.astype(object)
        noise = fine_laplace(rates, words, runs)
        unit = np.ldexp(1.0, self.grid.exponent + self.shifts)
        per_step = np.ldexp(rates.astype(np.float64), -FINE_BITS)
        variances = 2 * np.exp(-per_step) / np.expm1(-per_step) ** 2 * unit**2
        return Noisy((exact + noise.astype(object)).astype(np.float64) * unit, variances)


def _shift(budget: Fraction, cost: Fraction) -> int:
    """Bits that a node of this budget is coarser than the grid, so that a step costs `cost`."""
    if budget >= _LEAST_BUDGET:
        return 0
    ratio = cost / budget
    return (ratio.numerator // ratio.denominator).bit_length() - 1
