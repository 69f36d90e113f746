"""What releases of records tell of a canary: figures, a choice, and what that gives a meaning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.pipelines.audit.learned_odds import LearnedOdds

# Releases with a choice, in each world, from which on its figures are looked at.
LEAST = 100


@dataclass(frozen=True, eq=False)
class Shown:
    """What some releases show."""

    figures: Floats
    """Known of every release alike, shape (n, a)."""
    choice: Integers
    """What was chosen by them, shape (n,)."""
    chosen: Floats
    """Figures that mean something by the choice alone, shape (n, b)."""

    @property
    def alike(self) -> Floats:
        """What means the same in every release, shape (n, a + 1)."""
        return np.column_stack([self.figures, self.choice])


class RecordOdds:
    """Of one canary in one world."""

    def __init__(self) -> None:
        self._alike: LearnedOdds | None = None
        self._by_choice: dict[int, LearnedOdds] = {}

    def learn(self, with_it: Shown, without: Shown) -> None:
        """From releases with the canary and without it."""
        self._alike = _learned(self._alike, with_it.alike, without.alike)
        for choice in np.intersect1d(with_it.choice, without.choice).tolist():
            both = [one.chosen[one.choice == choice] for one in (with_it, without)]
            if choice in self._by_choice or min(map(len, both)) >= LEAST:
                self._by_choice[choice] = _learned(self._by_choice.get(choice), *both)

    def scores(self, shown: Shown) -> Floats:
        """Of each release: above 0 where the canary was more likely there, shape (n,)."""
        assert self._alike is not None  # the first run is learnt from
        total = self._alike.scores(shown.alike)
        for choice, odds in self._by_choice.items():
            here = shown.choice == choice
            total[here] += odds.scores(shown.chosen[here])
        return total


def _learned(known: LearnedOdds | None, with_it: Floats, without: Floats) -> LearnedOdds:
    """What is known, with these as well."""
    figures = np.concatenate([with_it, without])
    odds = LearnedOdds(figures, surely=True) if known is None else known
    odds.learn(figures, np.repeat([True, False], [len(with_it), len(without)]))
    return odds
