"""Counts and sums by domains of budgets: the paper's Algorithm 1 and its extension to sums.

A record belongs to the domain of its budget, and the total of domain i gets Laplace noise of scale
b_i: 1 / low_i for counts, the largest v / E of the domain for sums. The first domain that reaches
b_i * ln(K / beta) and all those of larger budgets are summed up.

Guarantee: E-PrDP, exactly: a record costs its value times 1 / b_i, at most its budget; one that
could not afford that is not counted. Adjacency: one record more or less. Sensitivity: see
:mod:`.nodes`.

Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Algorithm 1 and Section 5.2. Changed: see :mod:`.domains`; noise is discrete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.identity import Form
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.domains import (
    domain_index,
    partition,
    select_domain,
    thresholds,
)
from streamveil.mechanisms.per_record.node_noise import Grid, Nodes
from streamveil.mechanisms.per_record.node_totals import Contribution, NodeTotals
from streamveil.mechanisms.per_record.protocol import Noisy

_FIELDS = ("name", "bounds", "beta")


@dataclass(frozen=True)
class _Prdp(NodeTotals):
    @cached_property
    def low(self) -> Floats:
        """Smallest budget of each domain, shape (K,)."""
        return partition(self.bounds.epsilon_min, self.bounds.epsilon_max)

    @property
    def largest_ratios(self) -> Floats:
        """Largest value per budget of each domain: the scales of noise, shape (K,)."""
        raise NotImplementedError

    @cached_property
    def nodes(self) -> Nodes:
        """One for each domain."""
        # A value may be half a step larger on the grid.
        rounding = 0.0 if self.grid.presence else 0.5
        steps = np.ldexp(self.largest_ratios, -self.grid.exponent) + rounding / self.low
        return Nodes.of([1 / Fraction(each) for each in steps.tolist()], self.bounds, self.grid)

    def split(self, steps: Integers, budgets: Floats) -> Iterable[Contribution]:
        """All to the node of the domain."""
        node = domain_index(budgets, self.low) - 1
        enough = steps * self.nodes.budgets[node] <= self.nodes.affordable(budgets)
        return [Contribution(node, np.where(enough, steps, 0))]

    def select(self, noisy: Noisy) -> Integers:
        """The first domain that is heavy enough."""
        return select_domain(noisy.totals, thresholds(np.sqrt(2 / noisy.variances), self.beta)) - 1

    def epsilon_of(self, node: int) -> float:
        """The smallest budget of the domain."""
        return float(self.low[node])


@dataclass(frozen=True)
class PrdpCount(_Prdp):
    """How many records there are. `epsilon_tau`: records of smaller budgets are not counted."""

    IDENTITY = Form("prdp count", _FIELDS)

    @property
    def grid(self) -> Grid:
        """Presence."""
        return Grid.counts()

    @property
    def largest_ratios(self) -> Floats:
        """One record's."""
        return 1 / self.low


@dataclass(frozen=True)
class PrdpSum(_Prdp):
    """The sum of values. `epsilon_tau`: records of smaller budgets are not in it.

    The scales come from the budget function if it is given, which must not rise with the value;
    else a domain is taken to hold the largest value, and noise is accordingly large. Neither
    decides about privacy: a record that does not fit them is not counted.

    Raises ConfigurationError for scales that are not one number above 0 for each domain.
    """

    IDENTITY = Form("prdp sum", (*_FIELDS, "budget", "scales"))

    budget: Callable[[Floats], Floats] | None = None
    """From values to budgets, falling."""
    scales: Sequence[float] | None = None
    """Largest value per budget of each domain, instead."""

    @property
    def grid(self) -> Grid:
        """Values."""
        return Grid.values(self.bounds.value_max)

    @cached_property
    def largest_ratios(self) -> Floats:
        """As given, or of the largest value that has more than the smallest budget."""
        if self.scales is not None:
            scales = np.array(self.scales, np.float64)
            if scales.shape != self.low.shape or not (np.isfinite(scales) & (scales > 0)).all():
                raise ConfigurationError(
                    f"mechanism {self.name!r}: scales must be {len(self.low)} numbers above 0, one "
                    f"for each domain; got {list(self.scales)}"
                )
            return scales
        largest = np.full(self.low.shape, self.bounds.value_max)
        if self.budget is not None:
            largest = largest_values(self.budget, self.low, self.bounds.value_max)
        return largest / self.low


def largest_values(budget: Callable[[Floats], Floats], low: Floats, value_max: float) -> Floats:
    """Where a falling budget function goes below each of some budgets, to 2**-60 of `value_max`."""
    below, above = np.zeros(low.shape), np.full(low.shape, value_max)
    for _ in range(60):
        middle = (below + above) / 2
        enough = budget(middle) >= low
        below, above = np.where(enough, middle, below), np.where(enough, above, middle)
    return above
