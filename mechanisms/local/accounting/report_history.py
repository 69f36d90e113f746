"""Who of many users reported when, and at what price: as little as windows still need.

A round costs four bytes for each user who reported, and nothing for a class that did as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.local.protocol import Ask, Users

Indices = npt.NDArray[np.int32]

ENTRY: state_codec.Schema = state_codec.record_schema(
    "Entry",
    slot="long",
    current="boolean",
    prices=state_codec.LONGS,
    everybody={"type": "array", "items": "boolean"},
    counts=state_codec.LONGS,
    users="bytes",
)


@dataclass(frozen=True, eq=False)
class Entry:
    """One round: classes are those that the users had then."""

    slot: int
    class_of: Indices
    """Class of every user at the time, shape (n,); shared by rounds until classes change."""
    prices: Units
    """What a report cost in each class, shape (K,)."""
    everybody: Flags
    """Classes of which all users reported, shape (K,)."""
    counts: Integers
    """Users listed of each class, shape (K,)."""
    users: Indices
    """Users of the other classes who reported, class by class, ascending in each."""

    @classmethod
    def of(cls, ask: Ask, users: Users, reporting: Indices, counts: Integers) -> Entry:
        """A round in which all who were asked report.

        Args:
            ask: the round.
            users: the population.
            reporting: those asked, class by class, ascending in each.
            counts: how many they are of each class, shape (K,).
        """
        everybody = (counts == users.sizes) & (counts > 0)
        return cls(
            slot=ask.slot,
            class_of=users.class_of,
            prices=ask.epsilons.copy(),
            everybody=everybody,
            counts=np.where(everybody, 0, counts),
            users=reporting[~np.repeat(everybody, counts)],
        )

    def spending(self, classes: Flags | None = None) -> tuple[Indices, Units]:
        """Users of some classes (all by default) who reported, and what each spent."""
        chosen = np.ones(len(self.prices), bool) if classes is None else classes
        listed = np.repeat(chosen, self.counts)
        users, amounts = self.users[listed], np.repeat(self.prices, self.counts)[listed]
        if not (chosen & self.everybody).any():
            return users, amounts
        whole = np.flatnonzero((chosen & self.everybody)[self.class_of]).astype(np.int32)
        return (
            np.concatenate([users, whole]),
            np.concatenate([amounts, self.prices[self.class_of[whole]]]),
        )

    def without(self, classes: Flags) -> Entry:
        """The same, with some classes forgotten."""
        return replace(
            self,
            everybody=self.everybody & ~classes,
            counts=np.where(classes, 0, self.counts),
            users=self.users[~np.repeat(classes, self.counts)],
        )

    def listed(self) -> Entry:
        """The same, with a price for every user and no class that reported as a whole."""
        users, amounts = self.spending()
        prices, row = np.unique(amounts, return_inverse=True)
        order = np.argsort(row, kind="stable")
        counts = np.bincount(row, minlength=len(prices))
        nobody = np.zeros(len(prices), bool)
        return replace(self, prices=prices, everybody=nobody, counts=counts, users=users[order])


class History:
    """Rounds in the order of their slots."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[Entry]] = {}

    def add(self, entry: Entry) -> None:
        """Book a round of the last slot or of a later one."""
        self._rounds.setdefault(entry.slot, []).append(entry)

    def between(self, first: int, last: int) -> Iterator[Entry]:
        """Rounds of slots from `first` to `last`."""
        if last - first < len(self._rounds):
            slots = [slot for slot in range(first, last + 1) if slot in self._rounds]
        else:
            slots = [slot for slot in self._rounds if first <= slot <= last]
        for slot in slots:
            yield from self._rounds[slot]

    def forget(self, first: int, last: int, classes: Flags | None = None) -> None:
        """Drop what some classes (all by default) did in slots from `first` to `last`."""
        for slot in {entry.slot for entry in self.between(first, last)}:
            kept = [] if classes is None else [e.without(classes) for e in self._rounds[slot]]
            kept = [entry for entry in kept if entry.users.size or entry.everybody.any()]
            if kept:
                self._rounds[slot] = kept
            else:
                del self._rounds[slot]

    def spent(self, users: npt.NDArray[np.integer], firsts: npt.NDArray[np.int64]) -> Units:
        """What each of some different users spent from a slot of their own on, shape (m,)."""
        total = np.zeros(users.size, np.int64)
        if not (users.size and self._rounds):
            return total
        row_of = np.full(int(users.max()) + 1, -1)
        row_of[users] = np.arange(users.size)
        for entry in self.between(int(firsts.min()), max(self._rounds)):
            spenders, amounts = entry.spending()
            reached = spenders < row_of.size
            rows, amounts = row_of[spenders[reached]], amounts[reached]
            counted = (rows >= 0) & (firsts[rows] <= entry.slot)
            total[rows[counted]] += amounts[counted]
        return total

    def to_records(self, class_of: Indices) -> list[dict[str, Any]]:
        """All rounds for the schema ENTRY; `class_of` is that of the users at present."""
        return [
            {
                "slot": entry.slot,
                "current": entry.class_of is class_of,
                "prices": entry.prices.tolist(),
                "everybody": entry.everybody.tolist(),
                "counts": entry.counts.tolist(),
                "users": entry.users.astype("<i4").tobytes(),
            }
            for rounds in self._rounds.values()
            for entry in (e if e.class_of is class_of else e.listed() for e in rounds)
        ]

    @classmethod
    def from_records(cls, records: list[dict[str, Any]], class_of: Indices) -> History:
        """Read rounds back."""
        history = cls()
        for record in records:
            history.add(
                Entry(
                    slot=record["slot"],
                    class_of=class_of if record["current"] else np.empty(0, np.int32),
                    prices=np.array(record["prices"], np.int64),
                    everybody=np.array(record["everybody"], bool),
                    counts=np.array(record["counts"], np.int64),
                    users=np.frombuffer(record["users"], "<i4").astype(np.int32),
                )
            )
        return history
