"""What all statistics of totals by node have in common: sums, noise, choice and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.identity import Identified
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.node_noise import Grid, Nodes
from streamveil.mechanisms.per_record.protocol import Bounds, Noisy, Part, PerRecordRelease
from streamveil.mechanisms.randomness.noise import SlotNoise


class Contribution(NamedTuple):
    """What each record adds to one node, shape (n,) each."""

    node: Integers
    steps: Integers


@dataclass(frozen=True)
class NodeTotals(Identified):
    """An additive statistic: each node's total gets noise, and the upper nodes are summed up.

    A record adds what it can afford to one or two nodes, as the mechanism splits it; its loss is at
    most its budget E, exactly (see :mod:`.nodes`). Adjacency: one record more or less.
    """

    name: str
    bounds: Bounds

    _: KW_ONLY
    beta: float = 0.1
    """Probability with which `dropped_bound` may fail, and other failures of the mechanism."""

    def __post_init__(self) -> None:
        """Check the options. Raises ConfigurationError."""
        if not 0 < self.beta < 1:
            raise ConfigurationError(
                f"mechanism {self.name!r}: option beta is {self.beta!r}, not between 0 and 1"
            )
        _ = self.nodes

    @property
    def grid(self) -> Grid:
        """How values are counted."""
        raise NotImplementedError

    @cached_property
    def nodes(self) -> Nodes:
        """Where totals are."""
        raise NotImplementedError

    def split(self, steps: Integers, budgets: Floats) -> Iterable[Contribution]:
        """What usable records, of shape (n,), add to nodes."""
        raise NotImplementedError

    def select(self, noisy: Noisy) -> Integers:
        """The first of the nodes that are summed up, from totals of shape (..., nodes)."""
        raise NotImplementedError

    def epsilon_of(self, node: int) -> float:
        """Budget that `epsilon_tau` tells of a node."""
        raise NotImplementedError

    def tally(
        self, values: Floats, budgets: Floats, cells: Integers, number: int
    ) -> Sequence[Part]:
        """Parts of records by cell, shape (number, 2 * nodes)."""
        usable = self.bounds.usable(values, budgets)
        if not usable.all():
            values, budgets, cells = values[usable], budgets[usable], cells[usable]
        budgets = np.minimum(budgets, self.bounds.epsilon_max)
        contributions = self.split(self.grid.steps(values), budgets)
        parts = np.zeros((number, 2 * len(self.nodes.rates)), np.int64)
        for node, added in contributions:
            parts += self.nodes.tally(cells, node, added, number)
        return list(parts)

    def add(self, parts: Iterable[Part]) -> Part:
        """The part of all records of some parts."""
        return self.nodes.add(parts)

    def noisy(self, part: Part, noise: SlotNoise, shares: int = 1) -> Noisy:
        """Totals with noise of 1 / `shares` of every budget, from 1 to 16 shares."""
        totals, variances = self.nodes.noisy(part, noise.words("totals by node"), shares)
        return Noisy(totals[0], variances)

    def estimate(self, noisy: Noisy) -> PerRecordRelease:
        """Sum up the nodes from the chosen one on; post-processing, so it costs nothing."""
        return self.summed(noisy, int(self.select(noisy)))

    def summed(self, noisy: Noisy, node: int) -> PerRecordRelease:
        """Sum up the nodes from a given one on."""
        left_out = float(noisy.totals[:node].sum() + self._surely(noisy.variances[:node].sum()))
        return PerRecordRelease(
            estimate=float(noisy.totals[node:].sum()),
            stderr=math.sqrt(noisy.variances[node:].sum()),
            epsilon_tau=self.epsilon_of(node),
            dropped_bound=max(0.0, left_out) if node else 0.0,
        )

    def release(self, part: Part, noise: SlotNoise) -> PerRecordRelease:
        """Publish the statistic of a part."""
        return self.estimate(self.noisy(part, noise))

    def _surely(self, variance: float) -> float:
        """What noise of this variance reaches with probability `beta`, wherever the choice falls.

        Chernoff's bound: moments of a sum of Laplace noises are at most those of one noise with the
        variance of all, so x of its scales are reached with probability (q + 2) / 2 * exp(-q) at
        most, where x**2 = q * (q + 2).
        """
        failure = self.beta / len(self.nodes.rates)
        q = 0.0
        for _ in range(60):
            q = math.log((1 + q / 2) / failure)
        return math.sqrt(variance / 2 * q * (q + 2))
