"""What a device tells of its record under per-record local privacy.

A report is the vector of totals by node of a database of one record, each with its noise: by
domains, as in the source, or by hats, which are less noisy for the same budget. All nodes are
always reported, with the same public scales of noise, so that nothing but the values tells which of
them the record adds to. The dummy record adds to none, and so does a bad one.

Guarantee: E-per-record local privacy, exact. No report is more than exp(E(r)) times as likely for a
record r as for the dummy, or less than exp(-E(r)) times; between two records r and r' the factor is
at most exp(E(r) + E(r')). Adjacency: a record for the dummy. Sensitivity: a record adds steps to
one node or two, which cost it at most E(r) (:meth:`Nodes.loss`).
Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Algorithm 3.
Changed: noise is an exact discrete Laplace distribution; hats; sums as well as counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.randomness.noise import RandomWords, fine_laplace

# Numbers of reports made at once: 32 MB.
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Randomizer(Identified):
    """Reports for a statistic: `HatCount`, or `PrdpCount` for the source's."""

    IDENTITY = Form("randomizer", ("statistic",))

    statistic: NodeTotals

    def report(self, value: float, budget: float, words: RandomWords) -> Integers:
        """The report of one device, int64, shape (nodes,): see :meth:`reports`."""
        return next(self.reports(np.array([value]), np.array([budget]), words))[0]

    def reports(self, values: Floats, budgets: Floats, words: RandomWords) -> Iterator[Integers]:
        """Reports of many devices, each with its own randomness, in chunks that bound memory.

        Args:
            values: of their records, shape (m,); NaN for the dummy.
            budgets: of the records, in epsilon, shape (m,).
            words: where randomness comes from.

        Yields:
            Reports of the next devices, in steps of the nodes: int64, shape (rows, nodes).
        """
        nodes = self.statistic.nodes
        rows = max(1, _CHUNK // len(nodes.rates))
        for start in range(0, len(values), rows):
            exact = self.exact(values[start : start + rows], budgets[start : start + rows])
            yield exact + fine_laplace(nodes.rates, words, len(exact))

    def exact(self, values: Floats, budgets: Floats) -> Integers:
        """Reports without noise, shape (m, nodes)."""
        statistic, nodes = self.statistic, self.statistic.nodes
        reports = np.zeros((len(values), len(nodes.rates)), np.int64)
        usable = np.flatnonzero(statistic.bounds.usable(values, budgets))
        kept = np.minimum(budgets[usable], statistic.bounds.epsilon_max)
        for node, steps in statistic.split(statistic.grid.steps(values[usable]), kept):
            reports[usable, node] += steps
        return reports >> nodes.shifts
