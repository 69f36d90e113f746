"""What a release tells of a canary, learnt from releases with it and without it.

Nothing is asked of the mechanism: figures are put into cells, and a cell tells as much as it is
more frequent in one world than in the other. Whatever is learnt so is a score and no proof: the
proof is that guesses by it are right more often than they may be, and those are others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.per_record.protocol import Floats

Integers = npt.NDArray[np.int64]

# Cells of a figure; releases with a choice, in each world, from which on figures are looked at.
CELLS, LEAST = 16, 100


@dataclass(frozen=True, eq=False)
class Shown:
    """What some releases show."""

    figures: Floats
    """Told of every release alike, shape (n, a)."""
    choice: Integers
    """What was chosen by them, shape (n,)."""
    chosen: Floats
    """Figures that mean something by the choice alone, shape (n, b)."""


class _Table:
    """Cells of one figure, and how often each was met with the canary and without."""

    def __init__(self, with_it: Floats, without: Floats) -> None:
        parts = np.linspace(0, 1, CELLS + 1)[1:-1]
        both = np.concatenate([with_it, without])
        self._edges = np.unique(np.quantile(both, parts, method="nearest"))
        self._met = np.zeros((2, self._edges.size + 1))

    def learn(self, with_it: Floats, without: Floats) -> None:
        for met, figures in zip(self._met, (with_it, without), strict=True):
            met += np.bincount(self._cells(figures), minlength=met.size)

    def odds(self, figures: Floats) -> Floats:
        """Zeros where both worlds are about alike, as luck has it."""
        sums = self._met.sum(axis=1)
        one, other = self._met / np.maximum(sums, 1)[:, None]
        number = float(sums.min())
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.nansum((one - other) ** 2 / (one + other)) * number
        if apart < self._met.shape[1] + 5 * np.sqrt(2 * self._met.shape[1]):
            return np.zeros(figures.size)
        found: Floats = np.log((self._met[0] + 0.5) / (self._met[1] + 0.5) * (sums[1] / sums[0]))
        return found[self._cells(figures)]

    def _cells(self, figures: Floats) -> Integers:
        return np.searchsorted(self._edges, figures, side="right")


class LearnedOdds:
    """Of one canary in one world."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self._by_choice: dict[int, list[_Table]] = {}

    def learn(self, with_it: Shown, without: Shown) -> None:
        """From releases with the canary and without it."""
        columns = list(zip(_columns(with_it), _columns(without), strict=True))
        if not self._tables:
            self._tables = [_Table(*both) for both in columns]
        for table, both in zip(self._tables, columns, strict=True):
            table.learn(*both)
        for choice in np.intersect1d(with_it.choice, without.choice).tolist():
            parts = [one.chosen[one.choice == choice].T for one in (with_it, without)]
            if choice not in self._by_choice:
                if min(part.shape[1] for part in parts) < LEAST:
                    continue
                self._by_choice[choice] = [_Table(*both) for both in zip(*parts, strict=True)]
            for table, both in zip(self._by_choice[choice], zip(*parts, strict=True), strict=True):
                table.learn(*both)

    def scores(self, shown: Shown) -> Floats:
        """Of each release: above 0 where the canary was more likely there, shape (n,)."""
        total = np.zeros(shown.choice.size)
        for table, column in zip(self._tables, _columns(shown), strict=True):
            total += table.odds(column)
        for choice, tables in self._by_choice.items():
            here = shown.choice == choice
            for table, column in zip(tables, shown.chosen[here].T, strict=True):
                total[here] += table.odds(column)
        return total


def _columns(shown: Shown) -> list[Floats]:
    return [*shown.figures.T, shown.choice.astype(np.float64)]
