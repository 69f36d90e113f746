"""The filter over all queries: the last door before anything leaves.

It knows nothing of queries, of their windows or their shares. It receives what each release costs
and of which base slots it is, adds up every window of base slots, and refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamveil.mechanisms.accounting.window_filter import MAX_CELLS, check_amounts, refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.driver.stream import check_order


class Charge(NamedTuple):
    """What a release costs."""

    first: int
    """First base slot of the release."""
    last: int
    units: Units
    """Of a user of each class, shape (K,)."""
    query: int = 0
    """Number of the query."""


class QueryFilter:
    """Books releases of one base slot or more against requirements over base slots.

    A release of base slots s to e counts in every window that meets one of them, whole.

    Guarantee: after any sequence of :meth:`charge` that did not raise, the releases that meet any
    `window` consecutive base slots cost class k together at most its `epsilon`, in exact integers.
    Why: a window that ends with base slot t holds the releases with s <= t that end after t - w. A
    new one, of s to e, is in the windows that end with s to e + w - 1. The sums of those that end
    with s to e are kept, and checked. Whatever is in a later one, before any release that is
    charged later, is also in the one that ends with e: no later release has begun by then without
    being checked itself.

    Args:
        requirements: of each class, K of them, windows in base slots.
        longest: base slots of the longest release.
        aside: units that count in every window, for what is released about base slots before the
            first release: shape (K,).

    Raises:
        ConfigurationError: for one budget over the whole stream, or if there would be too much to
            remember.
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "QueryFilter", next_slot=["null", "long"], rows=state_codec.RUNS
        )
    }

    def __init__(
        self, requirements: Sequence[Requirement], longest: int, aside: Units | None = None
    ) -> None:
        self.requirements = Requirements.of(requirements)
        if self.requirements.forever:
            raise ConfigurationError(
                "queries share budgets over windows: ask for epsilon in a window, not for a "
                "lifetime budget"
            )
        count, depth = len(self.requirements), self.requirements.longest
        if (depth + longest) * count > MAX_CELLS:
            raise ConfigurationError(
                f"a window of {depth} base slots and a query's slot of {longest} for {count} "
                f"classes need more than {MAX_CELLS} cells of history: use longer base slots"
            )
        self._caps = self.requirements.budgets
        self._windows = self.requirements.windows
        self._columns = np.arange(count)
        self._ended: Units = np.zeros((depth, count), np.int64)
        """Cost of the releases that ended with base slot t at row t % W: shape (W, K)."""
        self._sums: Units = np.zeros((longest, count), np.int64)
        """In windows that end with each of the last base slots, in order: shape (longest, K). What
        is set aside is in the first ones, and never leaves."""
        if aside is not None:
            check_amounts(aside, count)
            self._sums += aside
        self.next_slot: int | None = None
        """The base slot after the last one that was charged; None before the first."""

    @property
    def in_window(self) -> Units:
        """What meets the window of each class that ends with the last base slot: shape (K,)."""
        return self._sums[-1]

    def charge(self, last_base_slot: int, charges: Sequence[Charge]) -> None:
        """Book all releases that end with a base slot, or refuse them and book none.

        Args:
            last_base_slot: the first one, or a later one than before: nothing ended between.
            charges: of each release the first base slot, the last and the units it costs, (K,).

        Raises:
            BudgetExceeded: with requested, remaining and difference, if a window would overflow.
            ValueError: for a base slot out of order, a release of other base slots, or one that is
                too long, or amounts that nothing can spend.
        """
        longest = len(self._sums)
        for first, last, amounts, _ in charges:
            check_amounts(amounts, len(self._caps))
            if last != last_base_slot or not 0 <= last - first < longest:
                raise ValueError(
                    f"a release of base slots {first} to {last} is charged with base slot "
                    f"{last_base_slot}, of releases of up to {longest}: it does not end there, "
                    "or is too long"
                )
        if self.next_slot is not None:
            if last_base_slot < self.next_slot:
                check_order(self.next_slot, last_base_slot)
            if last_base_slot > self.next_slot:
                self._pass(self.next_slot, last_base_slot)
        sums = self._moved(last_base_slot)
        total = np.zeros_like(self._caps)
        for first, _, amounts, _ in charges:
            met = sums[longest - 1 - (last_base_slot - first) :]
            left = self._caps - met.max(axis=0)
            over = np.flatnonzero(amounts > left)  # this way nothing can overflow
            if over.size:
                k = int(over[0])
                raise refusal(
                    f"release of base slots {first} to {last_base_slot} refused for users with "
                    f"{self.requirements[k]}",
                    *(int(amounts[k]), int(left[k])),
                    "a window of all queries",
                )
            met += amounts
            total += amounts
        self._book(last_base_slot, sums, total)

    def _pass(self, start: int, stop: int) -> None:
        """Book that nothing ended with the base slots from one to another."""
        passed, depth = np.arange(start, stop), len(self._ended)
        # What leaves after so many base slots is of those that pass themselves: nothing.
        leaving = self._ended[(passed[:depth, None] - self._windows) % depth, self._columns]
        leaving[np.arange(len(leaving))[:, None] >= self._windows] = 0
        sums = self._sums[-1] - np.cumsum(leaving, axis=0)
        rest = np.repeat(sums[-1:], max(len(passed) - depth, 0), axis=0)
        longest = len(self._sums)
        self._sums = np.concatenate([self._sums, sums, rest])[-longest:]
        self._ended[passed[-depth:] % depth] = 0
        self.next_slot = stop

    def _moved(self, base_slot: int) -> Units:
        """Sums of the windows up to a base slot, before anything ends with it."""
        leaving = self._ended[(base_slot - self._windows) % len(self._ended), self._columns]
        return np.concatenate([self._sums[1:], self._sums[-1:] - leaving])

    def _book(self, base_slot: int, sums: Units, ended: Units) -> None:
        self._ended[base_slot % len(self._ended)] = ended
        self._sums = sums
        self.next_slot = base_slot + 1

    def most(self, base_slots: int) -> Units:
        """What meets the fullest window of each class that ends with one of the last base slots.

        That of a window that is past grows with every release that began before its end: in units,
        shape (K,).
        """
        found: Units = self._sums[-base_slots:].max(axis=0)
        return found

    def use(self) -> float:
        """Largest share of any class's window that is spent, from 0 to 1, of those remembered."""
        return float((self.most(len(self._sums)) / np.maximum(self._caps, 1)).max())

    def encode(self) -> bytes:
        """Bytes of what is booked; equal neighbouring base slots are written once."""
        order = (np.arange(len(self._ended)) + (self.next_slot or 0)) % len(self._ended)
        rows = state_codec.runs_of(np.concatenate([self._ended[order], self._sums]))
        return state_codec.pack(self.SCHEMAS, {"next_slot": self.next_slot, "rows": rows})

    @classmethod
    def decode(cls, data: bytes, requirements: Sequence[Requirement], longest: int) -> QueryFilter:
        """The filter of bytes.

        Raises ConfigurationError for those of other classes, windows or longest releases.
        """
        made = cls(requirements, longest)
        depth, count = made._ended.shape
        _, record = state_codec.unpack(cls.SCHEMAS, data)
        rows = state_codec.rows_of(record["rows"], count)
        state_codec.check_length(rows, depth + longest, "base slots of spending")
        made.next_slot = record["next_slot"]
        made._ended[(np.arange(depth) + (made.next_slot or 0)) % depth] = rows[:depth]
        made._sums = rows[depth:]
        return made
