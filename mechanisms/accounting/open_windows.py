"""What requirements that change leave to spend: the windows that are open, for each ledger.

Every slot opens a window that looks ahead: from then on, for so many slots, so much may be spent.
A slot may spend what the tightest of all open windows has left, and no more than the window that
looks back from it has room for. A budget may be split into parts, each with a cap of its own in
every window.

Users with the same history share a column, a ledger: columns are forked, merged and dropped by
:meth:`OpenWindows.regroup`. Cost and state follow the number of ledgers and the horizon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units

# More than any budget: what a window that is not open leaves.
NO_LIMIT = 1 << 62
# Bounds the sums over a horizon, so that no sum of them overflows.
MOST_IN_HORIZON = 1 << 60
CLOSED = -1
FRESH = -1
"""In place of a column: a ledger without a history."""


@dataclass
class Windows:
    """Rows are slots, slot s at row s % W; columns are ledgers, L of them."""

    ends: npt.NDArray[np.int64]
    """Last slot of the window that each slot opened, or CLOSED: shape (W, L)."""
    caps: Units
    """What that window allows each part, plus `before`; NO_LIMIT when closed: (P, W, L)."""
    rates: Units
    """Figures that hold as long as the window is open; NO_LIMIT when closed: (R, W, L)."""
    before: Units
    """What each part had spent before each slot, from some start on: (P, W, L)."""
    total: Units
    """What each part has spent up to now, from the same start on: (P, L)."""
    slots: int = 0
    """Slots closed so far."""


class OpenWindows:
    """Books spending by part; see the module.

    Args:
        horizon: W, the longest window, in slots.
        parts: P, parts of a budget.
        rates: R, figures of a window of which the smallest is asked for.
    """

    FIELDS: dict[str, Any] = {"slots": "long", "ledgers": "long", "rows": "bytes"}

    def __init__(self, horizon: int, parts: int, rates: int) -> None:
        self.horizon = horizon
        self.parts = parts
        self.rates = rates

    def start(self, ledgers: int = 0) -> Windows:
        """So many ledgers without a history."""
        rows = (self.horizon, ledgers)
        return Windows(
            np.full(rows, CLOSED, np.int64),
            np.full((self.parts, *rows), NO_LIMIT, np.int64),
            np.full((self.rates, *rows), NO_LIMIT, np.int64),
            np.zeros((self.parts, *rows), np.int64),
            np.zeros((self.parts, ledgers), np.int64),
        )

    def regroup(self, windows: Windows, parents: npt.NDArray[np.int64]) -> Windows:
        """Make ledgers of others: column j continues column `parents[j]`, or is FRESH."""
        fresh = self.start(1)

        def pick(old: Units, new: Units) -> Units:
            return np.take(np.concatenate([old, new], axis=-1), parents, axis=-1)

        return Windows(
            pick(windows.ends, fresh.ends),
            pick(windows.caps, fresh.caps),
            pick(windows.rates, fresh.rates),
            pick(windows.before, fresh.before),
            pick(windows.total, fresh.total),
            windows.slots,
        )

    def open(
        self, windows: Windows, lengths: npt.NDArray[np.int64], caps: Units, rates: Units
    ) -> None:
        """Begin the next slot.

        Args:
            windows: changed in place.
            lengths: slots of the window that the slot opens, from 1 to W, or 0 for none: (L,).
            caps: what it allows each part, at most MOST_IN_HORIZON // W: (P, L).
            rates: figures that hold as long as it is open: (R, L).
        """
        slot, opened = windows.slots, lengths > 0
        ended = np.flatnonzero(windows.ends == slot - 1)
        for figures in (*windows.caps, *windows.rates):
            figures.reshape(-1)[ended] = NO_LIMIT
        windows.ends.reshape(-1)[ended] = CLOSED
        row = slot % self.horizon
        windows.ends[row] = np.where(opened, slot + lengths - 1, CLOSED)
        windows.caps[:, row] = np.where(opened, windows.total + caps, NO_LIMIT)
        windows.rates[:, row] = np.where(opened, rates, NO_LIMIT)
        windows.before[:, row] = windows.total

    def left(self, windows: Windows, part: int) -> Units:
        """What the tightest open window leaves a part; about NO_LIMIT if none is open: (L,)."""
        least: Units = windows.caps[part].min(axis=0) - windows.total[part]
        return least

    def rate(self, windows: Windows, which: int) -> Units:
        """Smallest figure of the open windows; NO_LIMIT if none is open: (L,)."""
        least: Units = windows.rates[which].min(axis=0)
        return least

    def past(self, windows: Windows, lengths: npt.NDArray[np.int64]) -> Units:
        """What each part spent in the `lengths - 1` slots before the one begun: (P, L)."""
        row = (windows.slots - np.maximum(lengths, 1) + 1) % self.horizon
        spent: Units = windows.total - windows.before[:, row, np.arange(len(lengths))]
        return spent

    def close(self, windows: Windows, spent: Units) -> None:
        """End the slot that was begun with what each part spent, (P, L)."""
        windows.total += spent
        windows.slots += 1
        if windows.slots % self.horizon == 0:
            self._start_again(windows)

    def assume(self, windows: Windows, part: int, amounts: Units) -> None:
        """Take so much, shape (L,), as spent by a part before the first slot.

        To be called before more than a horizon of slots has been closed.
        """
        windows.before[part, windows.slots :] -= amounts

    def _start_again(self, windows: Windows) -> None:
        """Count from now on, so that sums never grow."""
        total = windows.total[:, None]
        windows.before -= total
        windows.caps -= np.where(windows.caps == NO_LIMIT, 0, total)
        windows.total[:] = 0

    def canonical(self, windows: Windows, ledgers: npt.NDArray[np.int64]) -> Units:
        """All that the future of some ledgers depends on: (A, S). Equal columns are the same."""
        caps, total = windows.caps[..., ledgers], windows.total[:, None, ledgers]
        figures = [
            windows.ends[None, :, ledgers],
            np.where(caps == NO_LIMIT, NO_LIMIT, caps - total),
            windows.rates[..., ledgers],
            windows.before[..., ledgers] - total,
        ]
        rows = 1 + 2 * self.parts + self.rates
        return np.concatenate(figures).reshape(rows * self.horizon, len(ledgers))

    def record(self, windows: Windows) -> dict[str, Any]:
        """Values of `FIELDS`."""
        ledgers = windows.total.shape[1]
        rows = self.canonical(windows, np.arange(ledgers))
        return {
            "slots": windows.slots,
            "ledgers": ledgers,
            "rows": state_codec.table_to_bytes(rows),
        }

    def read(self, record: dict[str, Any]) -> Windows:
        """Windows of the values of `FIELDS`."""
        ledgers = record["ledgers"]
        shape = (1 + self.parts * 2 + self.rates, self.horizon, ledgers)
        rows = state_codec.table_from_bytes(record["rows"], shape)
        cuts = np.cumsum([1, self.parts, self.rates])
        ends, caps, rates, before = (part.copy() for part in np.split(rows, cuts))
        total = np.zeros((self.parts, ledgers), np.int64)
        return Windows(ends[0], caps, rates, before, total, record["slots"])
