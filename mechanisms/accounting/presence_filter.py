"""The filter where users count in a few slots only: the last door before a release.

Whichever slots a user counts in, so many of them at most, and no others, can differ between
neighbours. Which they are is secret, so the filter takes the dearest: those of the stretch of slots
that the events of a window reach. It knows neither mechanisms nor what a slot may cost.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.accounting.window_filter import MAX_CELLS, check_amounts, refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.records import ConfigurationError, Requirement

FOREVER = 0
"""Reach of the events of a whole life."""


@dataclass(frozen=True)
class PresenceTerms:
    """What every class asks for, and how presence is limited; all of length K."""

    requirements: tuple[Requirement, ...]
    most: tuple[int, ...]
    """Slots in which neighbours can differ at most."""
    reach: tuple[int, ...]
    """Of so many consecutive slots; `FOREVER` of all."""
    aside: tuple[int, ...]
    """Units of the budget that are for something else than slots."""
    moving: bool = False
    """Whether users may be of another class in another slot, up to the one whose requirement is
    kept for them: no class asks for less than those before it."""

    def unspent(self) -> PresenceFilter:
        """The filter before the first slot."""
        return PresenceFilter(self)

    def decode(self, data: bytes) -> PresenceFilter:
        """The filter of bytes, also of those from before users could move.

        Raises ConfigurationError for those of other classes or limits.
        """
        made = PresenceFilter(self)
        _, record = state_codec.unpack(made.SCHEMAS, data)
        rows = state_codec.rows_of(record["rows"], len(self.most))
        state_codec.check_length(rows, len(made.rows), "slots of spending")
        if self.moving:
            rows = np.maximum.accumulate(rows, axis=1)
        made.slots, made.rows[:] = record["slots"], rows
        return made


class PresenceFilter:
    """Books spending slot by slot; a slot costs whoever counts in it.

    Guarantee: after any sequence of :meth:`charge` that did not raise, any `most` slots out of any
    `reach` consecutive ones cost class k at most its `epsilon` less what is set aside, in exact
    integers; where users move, also of a user who was of earlier classes in some of them.

    Raises ConfigurationError where there would be too much to remember.
    """

    SCHEMAS = {1: state_codec.record_schema("PresenceFilter", slots="long", rows=state_codec.RUNS)}

    def __init__(self, terms: PresenceTerms) -> None:
        self.requirements = Requirements.of(terms.requirements)
        self._aside = np.array(terms.aside, np.int64)
        self._caps = self.requirements.budgets - self._aside
        self._most = np.array(terms.most, np.int64)
        self._reach = np.array(terms.reach, np.int64)
        self._endless = self._reach == FOREVER
        depth = int(np.where(self._endless, self._most, self._reach).max())
        if depth * len(self._most) > MAX_CELLS:
            raise ConfigurationError(
                f"{depth} slots of {len(self._most)} classes need more than {MAX_CELLS} cells of "
                "history: use longer slots or fewer of them (max_slots)"
            )
        self.rows: Units = np.zeros((depth, len(self._most)), np.int64)
        """Shape (depth, K), units: spent in slot s at row s % depth; of a life the dearest slots,
        in any order."""
        self._moving = terms.moving
        self.slots = 0
        """Slots booked so far."""

    def charge(self, amounts: Units) -> None:
        """Book the next slot's spending, or refuse it and book nothing.

        Args:
            amounts: units that a user of each class spends who counts in this slot, int64, (K,).

        Raises:
            BudgetExceeded: with requested, remaining and difference, when there is not enough left.
            ValueError: for negative amounts, which nothing can spend.
        """
        check_amounts(amounts, len(self._caps))
        if self._moving:  # whoever pays by a class may have been of any before it
            amounts = np.maximum.accumulate(amounts)
        left = self.left()
        over = np.flatnonzero(amounts > left)
        if over.size:
            k = int(over[0])
            what = f"release refused for users with {self.requirements[k]}"
            where = f"their dearest {self._most[k]} slots"
            raise refusal(what, int(amounts[k]), int(left[k]), where)
        free = self.rows[: self.slots + 1].argmin(axis=0)
        row = np.where(self._endless, free, self.slots % len(self.rows))
        columns = np.arange(len(row))
        cheaper = self._endless & (self.rows[row, columns] > amounts)
        self.rows[row[~cheaper], columns[~cheaper]] = amounts[~cheaper]
        self.slots += 1

    def copied(self) -> PresenceFilter:
        """The same, which goes on by itself."""
        made = copy(self)
        made.rows = self.rows.copy()
        return made

    def left(self) -> Units:
        """What the next slot may cost each class, shape (K,), units."""
        return self._caps - self._dearest(self._most - 1, ahead=1)

    @property
    def in_window(self) -> Units:
        """The most that the events of a window, or of a lifetime, can have cost, shape (K,), units.

        What is set aside is taken to be spent.
        """
        return self._dearest(self._most, ahead=0) + self._aside

    def _dearest(self, most: Units, ahead: int) -> Units:
        """Sum of so many of the dearest slots within reach of a slot so far ahead of the last."""
        rows = self.rows[: max(self.slots, 1)]  # there is nothing in the others yet
        ages = (self.slots - 1 - np.arange(len(rows))) % len(self.rows) + ahead
        within = self._endless | (ages[:, None] < self._reach)
        costs = np.sort(np.where(within, rows, 0), axis=0)[::-1]
        sums = np.vstack((np.zeros_like(costs[:1]), costs.cumsum(axis=0)))
        dearest: Units = sums[np.minimum(most, len(costs)), np.arange(len(most))]
        return dearest

    def use(self) -> float:
        """Largest share of any class's budget that is spent, from 0 to 1."""
        return float((self.in_window / np.maximum(self._caps + self._aside, 1)).max())

    def encode(self) -> bytes:
        """Bytes of what is booked; equal neighbouring slots are written once."""
        rows = state_codec.runs_of(self.rows)
        return state_codec.pack(self.SCHEMAS, {"slots": self.slots, "rows": rows})
