"""Counts and sums by the hat partition, with gap selection: the default.

Let x be the budget of a record per step of its value v. Nodes are budgets per step
n_0 < n_1 < ... about a factor `base` apart, n_0 being what `epsilon_min` affords for the largest
value. A record with n_j <= x < n_(j+1) adds v w to node j + 1 and the rest to node j, with
w = (x - n_j) / (n_(j+1) - n_j), so it loses v (1 - w) n_j + v w n_(j+1) = E. For counts v is 1 and
nodes are budgets. For sums they are spread over 1 / kappa, kappa = v / E: no budget is split
between finding the largest value and adding up, and nothing is clipped.

Guarantee: E-PrDP, exactly: w is rounded down to whole steps, and the loss of a record in integers
is at most its budget. Adjacency: one record more or less. Sensitivity: see :mod:`.nodes`.

Sources: the partition replaces that of Chen, Sun, Xu, Dong, "A general framework for per-record
differential privacy" (2025), Algorithm 1 and Section 5.2, where a record gets the noise of the
smallest budget of its domain, and for sums that of the largest v / E.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.identity import Form
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.hat_partition import gap_select, hat_weights
from streamveil.mechanisms.per_record.node_noise import Grid, Nodes
from streamveil.mechanisms.per_record.node_totals import Contribution, NodeTotals
from streamveil.mechanisms.per_record.protocol import Noisy
from streamveil.mechanisms.randomness.noise import FINE_BITS, FINE_RATES

# Values that differ by less than this part of the largest one share the last node.
_RESOLUTION = Fraction(1, 1 << 40)


_FIELDS = ("name", "bounds", "beta", "base", "beta0", "slope", "beta_far")


@dataclass(frozen=True)
class _Hat(NodeTotals):
    _: KW_ONLY
    base: int
    """Ratio of neighbouring nodes."""
    beta0: float = 0.02
    """See :func:`gap_select`, as for the next two."""
    slope: float = 1.5
    beta_far: float = 1e-6

    def __post_init__(self) -> None:
        """Check the options."""
        if self.base < 2:
            raise ConfigurationError(
                f"mechanism {self.name!r}: option base is {self.base!r}, give 2 or more"
            )
        for option in ("beta0", "beta_far"):
            if not 0 < getattr(self, option) <= 0.5:
                raise ConfigurationError(
                    f"mechanism {self.name!r}: option {option} is {getattr(self, option)!r}, "
                    "give a probability above 0 and at most 0.5"
                )
        if not 0 <= self.slope < math.inf:
            raise ConfigurationError(
                f"mechanism {self.name!r}: option slope is {self.slope!r}, give 0 or more"
            )
        super().__post_init__()

    @cached_property
    def nodes(self) -> Nodes:
        """From the strictest record's budget for a step, times `base` each."""
        budgets = [Fraction(self.bounds.epsilon_min) / self.grid.largest]
        value = 1 if self.grid.presence else _RESOLUTION
        top = Fraction(self.bounds.epsilon_max) / math.ceil(value * self.grid.largest)
        top = min(top, Fraction(FINE_RATES[1], 1 << FINE_BITS))
        while budgets[-1] < top or len(budgets) < 2:
            budgets.append(budgets[-1] * self.base)
        return Nodes.of(budgets, self.bounds, self.grid)

    def split(self, steps: Integers, budgets: Floats) -> Iterable[Contribution]:
        """Between the two nodes whose cost of a step is next to what the record affords."""
        with np.errstate(divide="ignore"):
            affordable = self.nodes.affordable(budgets) / steps
        left, _, weight = hat_weights(affordable, self.nodes.budgets)
        right = np.floor(steps * weight).astype(np.int64)
        return Contribution(left, steps - right), Contribution(left + 1, right)

    def select(self, noisy: Noisy) -> Integers:
        """By gap selection."""
        nodes = np.sqrt(2 / noisy.variances)
        return gap_select(noisy.totals, nodes, self.base, self.beta0, self.slope, self.beta_far)

    def epsilon_of(self, node: int) -> float:
        """The budget from which on a record of the largest value is summed up in full."""
        return self.bounds.epsilon_min * self.base**node


@dataclass(frozen=True)
class HatCount(_Hat):
    """How many records there are. `epsilon_tau`: less strict records are counted in full."""

    IDENTITY = Form("hat count", _FIELDS)

    _: KW_ONLY
    base: int = 2

    @property
    def grid(self) -> Grid:
        """Presence."""
        return Grid.counts()


@dataclass(frozen=True)
class HatSum(_Hat):
    """The sum of values.

    What decides whether a record is covered is its budget per value: one of value v is summed up
    in full if its budget is at least `epsilon_tau` * v / `value_max`.
    """

    IDENTITY = Form("hat sum", _FIELDS)

    _: KW_ONLY
    base: int = 4

    @property
    def grid(self) -> Grid:
        """Values."""
        return Grid.values(self.bounds.value_max)
