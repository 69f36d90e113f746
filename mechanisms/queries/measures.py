"""What is counted for a query: whole numbers that one event adds to, by a bounded sum.

Every statistic is estimated from one histogram. An event lies in a bin of the query's domain
and has a step, which is its number in whole quanta; it adds `weights[step, c]` to part c of the
bin, and of the node at the top where the domain has a tree. So the histogram has a sensitivity, and
every mechanism, ledger and audit is what it is for counts.

- count: one step, one part of weight 1.
- sum, mean, variance: numbers in quanta of a public range, cut into parts that add up to the same
  for every event: `statistics.py` says into which.
- quantiles: a part for each interval between edges.

Sensitivity: an event changes the histogram by at most `sensitivity` in L1, which is the largest sum
of a row of `weights`, times the nodes that it adds to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Integers


@dataclass(frozen=True, eq=False)
class Measure:
    """What an event adds to the histogram of a query."""

    weights: Integers
    """By step and part, none negative: shape (steps, parts)."""
    above: Integers
    """Of each bin the nodes to which its events add, itself among them: shape (bins, levels). Nodes
    are numbered from 0; without a tree they are the bins."""

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: `_added` is made anew where a measure travels to."""
        return {"weights": self.weights, "above": self.above}

    @property
    def steps(self) -> int:
        """What a number may be, in quanta; 1 where there is none."""
        return len(self.weights)

    @property
    def parts(self) -> int:
        """Numbers that are estimated of each node."""
        return self.weights.shape[1]

    @property
    def nodes(self) -> int:
        """Bins, and those above them."""
        return int(self.above.max()) + 1

    @property
    def size(self) -> int:
        """Cells of the histogram: that of node n and part c is n * parts + c."""
        return self.nodes * self.parts

    @property
    def totals(self) -> int:
        """How many of the last cells are of nodes above the bins."""
        return (self.nodes - len(self.above)) * self.parts

    @property
    def quantum(self) -> int:
        """The most that an event adds to a cell: a cell in these is like a count of events."""
        return int(self.weights.max())

    @property
    def graded(self) -> tuple[bool, ...]:
        """Whether events add more or less to each part, up to a quantum, or all or nothing."""
        least = np.where(self.weights > 0, self.weights, self.quantum).min(axis=0)
        return tuple((least < self.quantum).tolist())

    @property
    def sensitivity(self) -> int:
        """How much one event can change the histogram in L1."""
        return int(self.weights.sum(axis=1).max()) * self.above.shape[1]

    def add(self, bins: Integers, steps: Integers, events: Integers, table: Integers) -> None:
        """Add events to histograms.

        Args:
            bins: of each group of events, with the row of the table: row * bins + bin, shape (n,).
            steps: of each, shape (n,).
            events: in each, shape (n,).
            table: histograms, int64, shape (rows, size); changed in place.
        """
        flat = table.reshape(-1)
        for nodes in self._nodes_of(bins):
            first = nodes * self.parts
            for part, weight in zip(*self._added, strict=True):
                if self.steps == 1:
                    np.add.at(flat, first + part, events * weight)
                else:
                    np.add.at(flat, first + part[steps], events * weight[steps])

    def _nodes_of(self, bins: Integers) -> Iterator[Integers]:
        """Nodes of each bin, level by level, all with the row of the table."""
        if self.above.shape[1] == 1:  # no tree
            yield bins
            return
        rows = bins // len(self.above)
        own = bins - rows * len(self.above)
        for level in self.above.T:
            yield rows * self.nodes + level[own]

    @cached_property
    def _added(self) -> tuple[Integers, Integers]:
        """Parts to which each step adds, and how much: shapes (most of any step, steps)."""
        filled = self.weights != 0
        most = int(filled.sum(axis=1).max())
        parts = np.argsort(~filled, axis=1, kind="stable")[:, :most]
        # A pickled array has a type object of its own: `np.add.at` takes 15 times as long with it.
        weights = np.take_along_axis(self.weights.astype(np.int64), parts, axis=1)
        return np.ascontiguousarray(parts.T), np.ascontiguousarray(weights.T)
