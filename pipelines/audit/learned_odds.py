"""What figures tell of a canary, learnt from runs with it and without it.

Where noise is not that of counts, or what is made of them hides it, nothing is assumed of it: some
runs, which do not count, are looked at with open eyes. Every figure is put into cells, and a cell
tells as much as it is more frequent in one world than in the other. An attacker may know all that,
for keys alone are secret. Figures are taken as if they were independent: what that gets wrong makes
the attacker weaker, and never a bound wrong. Whatever is learnt is a score and no proof: the proof
is that guesses by it are right more often than they may be, and those are others.
"""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.core.arrays import Flags, Floats, Integers

# Of a figure, about as frequent each, plus one for missing values.
CELLS = 16
# Canaries that are added to every cell, so that none was never seen.
_DOUBT = 0.5


class LearnedOdds:
    """Of some figures of a canary.

    Args:
        figures: in some of which cells are about as frequent, NaN where a value is missing: shape
            (n, a).
        surely: whether figures tell nothing where both worlds are about alike, as luck has it: of
            many figures most are, and of few releases all.
    """

    def __init__(self, figures: Floats, *, surely: bool) -> None:
        self._figures = [_Cells(column) for column in figures.T]
        self._surely = surely

    def learn(self, figures: Floats, there: Flags) -> None:
        """From figures, shape (n, a), with the canary or without, shape (n,)."""
        for cells, column in zip(self._figures, figures.T, strict=True):
            cells.learn(column, there)

    def scores(self, figures: Floats) -> Floats:
        """Of each row, above 0 where the canary was likelier there: shape (n,)."""
        total = np.zeros(len(figures))
        for cells, column in zip(self._figures, figures.T, strict=True):
            if cells.apart or not self._surely:
                total += cells.odds(column)
        return total


class _Cells:
    """Cells of one figure, and how often each was met with the canary and without."""

    def __init__(self, figures: Floats) -> None:
        known = figures[~np.isnan(figures)]
        parts = np.linspace(0, 1, CELLS + 1)[1:-1]
        edges = np.quantile(known, parts, method="nearest") if known.size else known
        self._edges = np.unique(edges)
        self._met = np.zeros((2, self._edges.size + 2))

    def learn(self, figures: Floats, there: Flags) -> None:
        cells = self._cells(figures)
        for met, here in zip(self._met, (there, ~there), strict=True):
            met += np.bincount(cells[here], minlength=met.size)

    @property
    def apart(self) -> bool:
        """Whether the worlds differ by more than luck would have it."""
        sums, known = self._met.sum(axis=1), self._edges.size + 1
        one, other = self._met / np.maximum(sums, 1)[:, None]
        with np.errstate(invalid="ignore"):
            found = np.nansum((one - other) ** 2 / (one + other)) * sums.min()
        return bool(found >= known + 5 * np.sqrt(2 * known))

    def odds(self, figures: Floats) -> Floats:
        """Log of how many times likelier each is with the canary, shape (n,)."""
        met = self._met + _DOUBT
        with_it, without = met / met.sum(axis=1, keepdims=True)
        found: Floats = np.log(with_it / without)
        return found[self._cells(figures)]

    def _cells(self, figures: Floats) -> Integers:
        """The last one where the value is missing, shape (n,)."""
        return np.searchsorted(self._edges, figures, side="right") + np.isnan(figures)
