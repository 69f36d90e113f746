"""Canaries: groups of users who are in the input or not, each group by a fair coin of its own.

A group of g users loses g times what one user loses, at most: so a slot that costs a user little is
audited with a group that is large enough for what it costs to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Mark:
    """What groups add to one cell each, in slots in a row: arrays of shape (n,).

    Groups are in the order of their slots: no `first` and no `end` is below the one before.
    """

    cells: Integers
    first: Integers
    """First slot of each."""
    end: Integers
    """The slot after the last one."""
    amount: int
    """What a user adds in each of these slots."""
    there: bool = True
    """Whether it is there with its group; or without, where neighbours replace events."""

    def spread(self) -> tuple[Integers, Integers]:
        """Every slot of every group: number of the group, and the slot."""
        lengths = self.end - self.first
        which = np.repeat(np.arange(lengths.size), lengths)
        before = lengths.cumsum() - lengths
        return which, self.first[which] + np.arange(which.size) - before[which]

    def near(self, first: int, end: int) -> slice:
        """The groups that may be in one of the slots from `first` to before `end`."""
        begin = int(np.searchsorted(self.end, first, "right"))
        return slice(begin, max(int(np.searchsorted(self.first, end, "left")), begin))

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
        for mark in self.marks:
            which, slots = mark.spread()
            here = self.there[which] == mark.there
            self._add(filled, mark, which[here], slots[here], 1)
        return filled

    def halved(self, counts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Counts (T, K, d) with a half of each group, and of what is there without it."""
        filled = counts.astype(np.float64)
        for mark in self.marks:
            self._add(filled, mark, *mark.spread(), 0.5)
        return filled

    def _add(
        self, counts: npt.NDArray[Any], mark: Mark, which: Integers, slots: Integers, part: float
    ) -> None:
        """Add a part of what groups add to their slots."""
        added = (self.added(mark)[which] * part).astype(counts.dtype)
        np.add.at(counts[:, self.class_index], (slots, mark.cells[which]), added)

    def charged(self, spent: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What each group was charged, epsilon, shape (n,), where users of the class were, (T,)."""
        until = np.concatenate([[0.0], np.cumsum(spent)])
        return (until[self.end] - until[self.first]) * self.users
