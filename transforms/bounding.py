"""Contribution bounding: at most so many events of a user in a slot, whatever the order of input.

Of a user's events in a slot those are kept that come first in this order: an event in a bin
before a repeat of it, then the bins by a pseudo-random rank that depends on user, slot and bin
alone. So the choice looks at that user's events only, and bounding the parts of an input first
never changes what bounding the whole keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def bound(
    visits: npt.NDArray[np.integer],
    repeats: Integers,
    most: int,
    rank: Callable[[Integers], npt.NDArray[np.uint64]],
) -> Integers:
    """Number of events to keep of each group of like events.

    Args:
        visits: the user and slot of each group as one number, ascending, shape (n,).
        repeats: events in the group, that is in the same bin, shape (n,).
        most: events to keep of a visit.
        rank: gives the pseudo-random rank of the user, slot and bin of some groups, by number;
            the groups of one visit have different ranks.

    Returns:
        int64, shape (n,), at most `repeats`; the sum over a visit is at most `most`.
    """
    kept = np.minimum(repeats, most)
    if not len(visits):
        return kept
    starts, lengths = runs(visits)
    totals = np.add.reduceat(kept, starts)
    crowded = np.flatnonzero(np.repeat(totals > most, lengths))
    if not len(crowded):
        return kept
    if most == 1:  # the usual case needs no sorting: of each visit the lowest rank stays
        scores = rank(crowded)
        starts, lengths = runs(visits[crowded])
        kept[crowded] = scores == np.repeat(np.minimum.reduceat(scores, starts), lengths)
        return kept
    # One row for each event of the crowded visits; the n-th of a group is its n-th repeat.
    sizes = kept[crowded]
    row = np.repeat(np.arange(len(crowded)), sizes)
    repeat = _positions(sizes)
    order = np.lexsort((rank(crowded)[row], repeat, visits[crowded][row]))
    row = row[order]
    _, lengths = runs(visits[crowded][row])
    kept[crowded] = np.bincount(row[_positions(lengths) < most], minlength=len(crowded))
    return kept


def _positions(lengths: Integers) -> Integers:
    """0, 1, 2, ... within each of some consecutive runs."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit integers one to one (the finaliser of SplitMix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def runs(values: npt.NDArray[Any]) -> tuple[Integers, Integers]:
    """Starts and lengths of the runs of equal neighbours."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return starts, np.diff(starts, append=len(values))
