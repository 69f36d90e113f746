"""Scores of canaries that are learnt: what a mechanism shows with and without them, of many runs.

Where noise is not that of counts, or what is made of them hides it, nothing is assumed of it: some
runs, which do not count, are looked at with open eyes, and every number that a canary may show in
is divided by how often each range of it was seen with one and without. An attacker may know all
that, for keys alone are secret. Numbers are taken as if they were independent: what that gets wrong
makes the attacker weaker, and never a bound wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Ranges that a number may be in, beside that it is not told.
RANGES = 12
# Canaries that are added to every range, so that none was never seen.
_DOUBT = 0.5


@dataclass(frozen=True, eq=False)
class Sight:
    """What one run shows of its canaries, in lives of which each begins anew."""

    values: Floats
    """Numbers in which each may show, NaN where nothing is told: shape (lives, places, numbers)."""
    there: Flags
    """The coins, shape (lives, places)."""


@dataclass(frozen=True, eq=False)
class Learnt:
    """What ranges of numbers tell of a canary."""

    middles: Floats
    """What is usual, with canaries and without, shape (places, numbers)."""
    edges: Floats
    """Of the ranges, shape (numbers, RANGES - 1)."""
    odds: Floats
    """Log of how many times likelier each range is with a canary, shape (numbers, RANGES + 1)."""

    @classmethod
    def of(cls, sights: Sequence[Sight]) -> Learnt:
        """Learn from runs with open eyes."""
        values = np.concatenate([one.values for one in sights])
        there = np.concatenate([one.there for one in sights])
        inner = np.linspace(0, 1, RANGES + 1)[1:-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of what was never told
            middles = np.nanmedian(values, axis=0)
            beside = (values - middles).reshape(-1, values.shape[2])
            if not len(beside):
                beside = np.zeros((1, values.shape[2]))
            edges = np.nan_to_num(np.nanquantile(beside, inner, axis=0).T)
        known = cls(np.nan_to_num(middles), edges, np.zeros((len(edges), RANGES + 1)))
        codes, coins = known._codes(values), there.reshape(-1)
        for number, column in enumerate(codes.T):
            with_one, without = (
                np.bincount(column[coins == coin], minlength=RANGES + 1) + _DOUBT
                for coin in (True, False)
            )
            known.odds[number] = np.log(with_one / with_one.sum() * without.sum() / without)
        return known

    def scores(self, sight: Sight) -> Floats:
        """Score of each canary of a run, above 0 where it was likelier there: shape (n,)."""
        codes = self._codes(sight.values)
        found: Floats = self.odds[np.arange(len(self.odds)), codes].sum(axis=1)
        return found

    def _codes(self, values: Floats) -> Integers:
        """Range of each number, the last one where nothing is told: shape (n, numbers)."""
        beside = (values - self.middles).reshape(-1, values.shape[2])
        codes = np.empty(beside.shape, np.int64)
        for number, edges in enumerate(self.edges):
            codes[:, number] = np.searchsorted(edges, beside[:, number], "right")
        codes[np.isnan(beside)] = RANGES
        return codes
