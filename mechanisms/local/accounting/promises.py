"""What users were promised before their requirement changed: it holds to its end.

While a user asked for (w, E), every slot u promised at most E in the slots from u to u + w - 1.
After the change, the earliest of those windows that is still open contains all later ones, so one
sum for each user and former requirement decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.local.accounting.report_history import History

Longs = npt.NDArray[np.int64]


@dataclass(eq=False)
class Promises:
    """Former requirements that still bind; a user can have several."""

    users: Longs
    """Ascending, shape (R,)."""
    windows: Longs
    caps: Units
    firsts: Longs
    """First slot in which the requirement was in force."""
    lasts: Longs
    """Last slot of the last window that it opened."""
    spent: Units
    """Since the earliest slot whose window is open."""

    @classmethod
    def none(cls) -> Promises:
        """Nothing was promised."""
        return cls(*np.zeros((6, 0), np.int64))

    def add(self, *columns: Longs) -> Promises:
        """These and others, given in the order of the fields."""
        table = np.concatenate([self._table(), np.stack(columns)], axis=1)
        return Promises(*table[:, np.argsort(table[0], kind="stable")])

    def advance(self, history: History, before: int, slot: int) -> Promises:
        """Go from one slot to a later one: windows close, and some promises end."""
        live = Promises(*self._table()[:, self.lasts >= slot])
        for window in np.unique(live.windows):
            for entry in history.between(before - window + 1, slot - window):
                rows, amounts = live._rows(*entry.spending())
                left = (live.windows[rows] == window) & (live.firsts[rows] <= entry.slot)
                live.spent[rows[left]] -= amounts[left]
        return live

    def book(self, users: npt.NDArray[np.integer], amounts: Units) -> None:
        """Add what some users spend in the present slot."""
        rows, spent = self._rows(users, amounts)
        self.spent[rows] += spent

    def check(self, users: npt.NDArray[np.integer], amounts: Units, refused: str) -> None:
        """Raise BudgetExceeded if spending of some users would break a promise.

        `refused` is what the message begins with, before the user.
        """
        rows, asked = self._rows(users, amounts)
        remaining = self.caps[rows] - self.spent[rows]
        over = np.flatnonzero(asked > remaining)
        if over.size:
            row = rows[over[0]]
            former = f"{to_epsilon(self.caps[row]):g} over {self.windows[row]} slots"
            raise refusal(
                f"{refused} user {self.users[row]}, who was promised {former} before the "
                "requirement changed",
                int(asked[over[0]]),
                int(remaining[over[0]]),
            )

    def _rows(
        self, users: npt.NDArray[np.integer], amounts: Units
    ) -> tuple[npt.NDArray[np.intp], Units]:
        """Promises to users who spend, and what each of those spends."""
        if not (self.users.size and users.size):
            return np.zeros(0, np.intp), np.zeros(0, np.int64)
        order = np.argsort(users, kind="stable")
        ascending = users[order]
        at = np.minimum(np.searchsorted(ascending, self.users), users.size - 1)
        rows = np.flatnonzero(ascending[at] == self.users)
        return rows, amounts[order[at[rows]]]

    def _table(self) -> Longs:
        return np.stack([self.users, self.windows, self.caps, self.firsts, self.lasts, self.spent])

    def to_bytes(self) -> bytes:
        """Bytes of the table."""
        return state_codec.table_to_bytes(self._table())

    @classmethod
    def from_bytes(cls, data: bytes) -> Promises:
        """Read them back."""
        return cls(*state_codec.table_from_bytes(data, (6, len(data) // 48)))
