"""Canaries: groups of users who are in the input or not, each group by a fair coin of its own.

A group of g users loses g times what one user loses, at most: so a slot that costs a user little is
audited with a group that is large enough for what it costs to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Canaries:
    """Groups of users of one class, no two in the same bin at a time: arrays of shape (n,)."""

    class_index: int
    events: int
    """Events of a user in each of their slots, all in the bin of the canary."""
    bins: Integers
    first: Integers
    """First slot in which each is there."""
    end: Integers
    """The slot after the last one."""
    users: Integers
    """Of each group."""
    there: Flags
    """The coins: whether each group is in the input."""
    moves: bool = False
    """Whether a group that is not there is in the next bin instead: neighbours replace a user."""

    def flipped(self, random: np.random.Generator) -> Canaries:
        """The same groups with new coins."""
        return replace(self, there=random.random(self.bins.size) < 0.5)

    def other_bins(self, bins: int) -> Integers:
        """Where groups are that are not there, if they move."""
        return np.where(self.bins % 2 == 0, self.bins + 1, self.bins - 1) % bins

    def add_to(self, counts: Integers) -> Integers:
        """Counts (T, K, d) with all groups that are there."""
        filled = counts.copy()
        others = self.other_bins(counts.shape[2])
        for i in range(self.bins.size):
            where = self.bins[i] if self.there[i] else others[i]
            if self.there[i] or self.moves:
                filled[self.first[i] : self.end[i], self.class_index, where] += (
                    self.users[i] * self.events
                )
        return filled

    def charged(self, spent: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What each group was charged, epsilon, shape (n,), where users of the class were, (T,)."""
        until = np.concatenate([[0.0], np.cumsum(spent)])
        return (until[self.end] - until[self.first]) * self.users
