"""Canaries: groups of users who are in the input or not, each group by a fair coin of its own.

A group of g users loses g times what one user loses, at most: so a slot that costs a user little is
audited with a group that is large enough for what it costs to be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Mark:
    """What groups add to one cell each, in slots in a row: arrays of shape (n,)."""

    cells: Integers
    first: Integers
    """First slot of each."""
    end: Integers
    """The slot after the last one."""
    amount: int
    """What a user adds in each of these slots."""
    there: bool = True
    """Whether it is there with its group; or without, where neighbours replace events."""

    @property
    def sign(self) -> int:
        """1 where a higher count tells that the group is there, -1 where a lower one does."""
        return 1 if self.there else -1


@dataclass(frozen=True, eq=False)
class Canaries:
    """Groups of users of one class, no two in the same cell at a time: arrays of shape (n,)."""

    class_index: int
    marks: tuple[Mark, ...]
    first: Integers
    """First slot in which each is there."""
    end: Integers
    """The slot after the last one."""
    users: Integers
    """Of each group."""
    there: Flags
    """The coins: whether each group is in the input."""

    def flipped(self, random: np.random.Generator) -> Canaries:
        """The same groups with new coins."""
        return replace(self, there=random.random(self.users.size) < 0.5)

    def of_users(self, users: Integers) -> Canaries:
        """The same groups with so many users each."""
        return replace(self, users=users)

    def with_groups_of(self, other: Canaries) -> Canaries:
        """These places for the groups of another question, with their coins."""
        return replace(self, users=other.users, there=other.there)

    def added(self, mark: Mark) -> Integers:
        """What each group adds to a slot of a mark."""
        return self.users * mark.amount

    def add_to(self, counts: Integers) -> Integers:
        """Counts (T, K, d) with all groups that are there."""
        filled = counts.copy()
        for i, mark in self._all_marks():
            if self.there[i] == mark.there:
                at = slice(mark.first[i], mark.end[i])
                filled[at, self.class_index, mark.cells[i]] += self.users[i] * mark.amount
        return filled

    def halved(self, counts: Integers) -> npt.NDArray[np.float64]:
        """Counts (T, K, d) with a half of each group, and of what is there without it."""
        filled = counts.astype(np.float64)
        for i, mark in self._all_marks():
            at = slice(mark.first[i], mark.end[i])
            filled[at, self.class_index, mark.cells[i]] += self.users[i] * mark.amount / 2
        return filled

    def _all_marks(self) -> Iterator[tuple[int, Mark]]:
        """Each mark of each group."""
        return ((i, mark) for mark in self.marks for i in range(self.users.size))

    def charged(self, spent: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What each group was charged, epsilon, shape (n,), where users of the class were, (T,)."""
        until = np.concatenate([[0.0], np.cumsum(spent)])
        return (until[self.end] - until[self.first]) * self.users
