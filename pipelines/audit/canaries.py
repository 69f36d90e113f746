"""Canaries: groups of users who are in the input or not, each group by a fair coin of its own.

A group of g users loses g times what one user loses, at most: so a slot that costs a user little is
audited with a group that is large enough for what it costs to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Floats, Integers
from streamveil.mechanisms.presence.kept_share import Beyond

C = TypeVar("C", bound="Canaries")


@dataclass(frozen=True, eq=False)
class Mark:
    """What groups add to some cells of some slots: arrays of shape (m,)."""

    groups: Integers
    """Number of the group, each any number of times."""
    slots: Integers
    cells: Integers
    amount: int
    """What a user adds there."""
    there: bool = True
    """Whether it is there with its group; or without, where neighbours replace events."""

    @classmethod
    def of(
        cls, groups: Integers, slots: Integers, cells: Integers, amount: int, there: bool = True
    ) -> Mark:
        """Of arrays that are broadcast against each other."""
        groups, slots, cells = np.broadcast_arrays(groups, slots, cells)
        return cls(groups.ravel(), slots.ravel(), cells.ravel(), amount, there)

    @classmethod
    def spanning(
        cls, first: Integers, end: Integers, cells: Integers, amount: int, there: bool = True
    ) -> Mark:
        """In all slots of a span of each group, in a cell of its own: shape (n,)."""
        long = end - first
        groups = np.repeat(np.arange(first.size), long)
        slots = first[groups] + np.arange(groups.size) - np.repeat(long.cumsum() - long, long)
        return cls(groups, slots, cells[groups], amount, there)

    @property
    def sign(self) -> int:
        """1 where a higher count tells that the group is there, -1 where a lower one does."""
        return 1 if self.there else -1


@dataclass(frozen=True, eq=False)
class Canaries:
    """Groups of users, no two in the same cell at a time: arrays of shape (n,)."""

    columns: Integers
    """The column of counts that each is in: a class, or one for itself."""
    marks: tuple[Mark, ...]
    first: Integers
    """First slot in which each is there."""
    end: Integers
    """The slot after the last one."""
    users: Integers
    """Of each group."""
    there: Flags
    """The coins: whether each group is in the input."""

    @classmethod
    def nobody(
        cls: type[C],
        columns: int | Integers,
        marks: tuple[Mark, ...],
        first: Integers,
        end: Integers,
        **more: Any,
    ) -> C:
        """Groups of one user each, none of them there."""
        ones = np.ones(first.size, np.int64)
        nobody = np.zeros(first.size, dtype=bool)
        return cls(columns * ones, marks, first, end, ones, nobody, **more)

    def flipped(self: C, random: np.random.Generator) -> C:
        """The same groups with new coins."""
        return replace(self, there=random.random(self.users.size) < 0.5)

    def alone(self: C, number: int) -> C:
        """The same groups, of which this one is there."""
        return replace(self, there=np.arange(self.users.size) == number)

    def of_users(self: C, users: Integers) -> C:
        """The same groups with so many users each."""
        return replace(self, users=users)

    def added(self, mark: Mark) -> Integers:
        """What is added to each cell of a mark."""
        return self.users[mark.groups] * mark.amount

    def of(self, mark: Mark, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What a table (T, K) has in the slots of a mark, of the columns of its groups."""
        return table[mark.slots, self.columns[mark.groups]]

    @cached_property
    def met(self) -> tuple[Integers, Integers]:
        """Every group and slot in which there is something with it or without, each pair once."""
        until = int(self.end.max(initial=0)) + 1
        pairs = [mark.groups * until + mark.slots for mark in self.marks]
        groups, slots = np.divmod(np.unique(np.concatenate([self.users[:0], *pairs])), until)
        return groups, slots

    def add_to(self, counts: Integers) -> Integers:
        """Counts (T, K, d) with all groups that are there."""
        filled = counts.copy()
        for mark in self.marks:
            here = self.there[mark.groups] == mark.there
            self._add(filled, mark, self.added(mark) * here)
        return filled

    def halved(self, counts: npt.NDArray[Any]) -> Floats:
        """Counts (T, K, d) with a half of each group, and of what is there without it."""
        filled = counts.astype(np.float64)
        for mark in self.marks:
            self._add(filled, mark, self.added(mark) / 2)
        return filled

    def beyond(self, slots: int) -> list[Beyond]:
        """By slot, what does not count of them: nothing."""
        return [Beyond.none()] * slots

    def _add(self, counts: npt.NDArray[Any], mark: Mark, events: npt.NDArray[Any]) -> None:
        np.add.at(counts, (mark.slots, self.columns[mark.groups], mark.cells), events)

    def largest(self, values: Floats) -> Floats:
        """The largest value of the slots of each group, of (T,): shape (n,)."""
        (groups, slots), found = self.met, np.zeros(self.users.size)
        np.maximum.at(found, groups, values[slots])
        return found

    def charged(self, spent: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What all slots of each group cost a user of its column, of (T, K): shape (n,)."""
        (groups, slots), found = self.met, np.zeros(self.users.size, spent.dtype)
        np.add.at(found, groups, spent[slots, self.columns[groups]])
        return found
