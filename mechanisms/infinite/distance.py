"""How far counts are from a released distribution, in integers of exact sensitivity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.infinite.held_distribution import Held

# Distances are whole eighths of a count.
GRID = 8
# Released shares enter distances as whole numbers of 2**-24.
SHARE_BITS = 24
# Fewer events than this in a slot keep distances below 63 bits.
MAX_EVENTS = 1 << 34


@dataclass(frozen=True, eq=False)
class Reference:
    """What counts are compared with: all of it public."""

    held: Held
    grid: Integers
    """The held shares in units of 2**-24, shape (d,)."""
    chance: float
    """Distance that is expected of one slot's counts by chance alone."""
    slots: int
    """Slots that the held shares are the mean of; 0 if they are not measured."""

    def explained(self, slots: int) -> float:
        """Distance that is expected of the mean of some slots by chance alone, in counts."""
        own = 1 / self.slots if self.slots else 0.0
        return self.chance * math.sqrt(1 / slots + own)

    @classmethod
    def of(cls, held: Held, total: int, slots: int) -> Reference:
        """Compare with what is held, for slots of about so many events.

        Measured shares are taken to be the mean of `slots` slots. By chance a count of
        expectation c is about sqrt(2 c / pi) away from it.
        """
        chance = float(np.sqrt(2 / math.pi * max(total, 0) * held.shares).sum())
        return cls(held, on_grid(held.shares), chance, 0 if held.slot is None else slots)


def largest_distance(
    recent: Sequence[Integers], spans: Sequence[int], reference: Reference, chance: float
) -> int:
    """Largest distance over spans of slots, each less what chance explains, in 1 / `GRID` counts.

    A largest of several is changed by no more than the most that one of them is.

    Args:
        recent: counts of the last slots, each of shape (d,), the latest one last.
        spans: numbers of last slots to take the mean of; those without so many slots are left
            out, except that all slots there are stand for the longest span.
        reference: what to compare with.
        chance: how much of what chance explains is taken off.
    """
    longest = max(spans)
    fitting = [span for span in spans if span <= len(recent) or span == longest]
    lengths = sorted({min(span, len(recent)) for span in fitting})
    found, sums, taken = [], np.zeros_like(reference.grid), 0
    for length in lengths:
        for counts in recent[len(recent) - length : len(recent) - taken]:
            sums = sums + counts
        taken = length
        explained = round(GRID * chance * reference.explained(length))
        found.append(distance(sums, length, reference.grid) - explained)
    return max(found)


def on_grid(shares: npt.NDArray[np.float64]) -> Integers:
    """Shares as whole numbers of 2**-24 that sum to at most 2**24, shape (d,)."""
    whole = 1 << SHARE_BITS
    grid = np.floor(shares * whole).astype(np.int64)
    missing = whole - int(grid.sum())
    if missing > 0:  # where most was rounded off
        rest = shares * whole - grid
        grid[np.argsort(-rest, kind="stable")[:missing]] += 1
    while (over := int(grid.sum()) - whole) > 0:
        largest = int(grid.argmax())
        grid[largest] -= min(over, int(grid[largest]))
    return grid


def distance(sums: Integers, slots: int, grid: Integers) -> int:
    """L1 distance of mean counts from a distribution with their total, in 1 / `GRID` counts.

    Args:
        sums: counts added up over some slots, shape (d,).
        slots: how many slots.
        grid: the distribution in units of 2**-24, shape (d,).

    Returns:
        The exact distance, rounded down. Another user in all of the slots, once in each, changes
        it by at most 2 * `GRID`: the rounded numbers differ by no more than the exact ones do,
        rounded up.
    """
    apart = np.abs((sums << SHARE_BITS) - int(sums.sum()) * grid)
    return int(apart.sum()) * GRID // (slots << SHARE_BITS)
