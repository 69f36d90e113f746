"""The odometer for requirements that change: the last door before a release.

It knows nothing of mechanisms or schedules. It adds up what every ledger spent and refuses a slot
in which a window that is open, or the one that looks back from the slot, would be overspent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.units import Units, to_epsilon

_MAX_CELLS = 1 << 25
_ENDED = np.iinfo(np.int64).max // 2


@dataclass
class Bookings:
    """The last W slots of L ledgers, slot s at row s % W; units."""

    caps: Units
    """Budget of the window that each slot opened, _ENDED once it has ended: shape (W, L)."""
    ends: npt.NDArray[np.int64]
    """First slot after that window, shape (W, L)."""
    since: Units
    """Spent from each slot on, shape (W, L)."""
    slots: int = 0
    """Slots booked so far."""


class DynamicOdometer:
    """Books spending slot by slot against requirements that may change in every slot.

    Guarantee: after any sequence of :meth:`charge` that did not raise, in exact integers, every
    ledger has spent at most epsilon_forward in the window_forward slots from any slot on, and at
    most epsilon_backward in the window_backward slots up to any slot in which it spent anything.
    A slot whose window looking back was overspent before it began may spend nothing.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "DynamicOdometer",
            "fields": [
                {"name": "slots", "type": "long"},
                {"name": "ledgers", "type": "long"},
                {"name": "rows", "type": "bytes"},
            ],
        }
    }

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def start(self, ledgers: int = 0) -> Bookings:
        """So many ledgers that have spent nothing yet."""
        shape = (self.horizon, ledgers)
        return Bookings(
            np.full(shape, _ENDED), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        )

    def regroup(self, bookings: Bookings, parents: npt.NDArray[np.int64]) -> Bookings:
        """Continue ledger `parents[j]` as ledger j, -1 for a new one."""
        if self.horizon * len(parents) > _MAX_CELLS:
            raise ConfigurationError(
                f"{len(parents)} histories of requirements over {self.horizon} slots need more "
                f"than {_MAX_CELLS} cells: use longer slots or a shorter longest window "
                "(--longest_window)"
            )
        fresh = self.start(1)

        def pick(old: Units, new: Units) -> Units:
            return np.take(np.concatenate([old, new], axis=1), parents, axis=1)

        return Bookings(
            pick(bookings.caps, fresh.caps),
            pick(bookings.ends, fresh.ends),
            pick(bookings.since, fresh.since),
            bookings.slots,
        )

    def charge(self, bookings: Bookings, asked: Units, amounts: Units) -> Bookings:
        """Book the next slot's spending, or refuse it.

        Args:
            bookings: consumed: use the returned ones from now on.
            asked: what each ledger asks for in this slot (`cohorts.Moves.requirements`), (L, 4).
            amounts: units spent by each ledger in this slot, int64, shape (L,).

        Raises:
            BudgetExceeded: with requested, remaining and difference, when a window would overflow.
            ValueError: for negative amounts, which nothing can spend.
        """
        if amounts.shape != asked.shape[:1] or amounts.dtype != np.int64 or (amounts < 0).any():
            raise ValueError(f"spending must be {len(asked)} int64 amounts, none negative")
        slot, (back, back_cap, ahead, ahead_cap) = bookings.slots, asked.T
        row = slot % self.horizon
        bookings.caps[row] = np.where(ahead > 0, ahead_cap, _ENDED)
        bookings.ends[row] = slot + ahead
        bookings.since[row] = 0
        bookings.caps.reshape(-1)[np.flatnonzero(bookings.ends == slot)] = _ENDED
        self._check(asked, amounts, (bookings.caps - bookings.since).min(axis=0), "ahead")
        past = self._since(bookings, slot - back + 1)
        self._check(asked, amounts, np.where(amounts > 0, back_cap - past, 0), "back")
        bookings.since += amounts
        bookings.slots += 1
        return bookings

    def assume(self, bookings: Bookings, amounts: Units) -> None:
        """Take so much, shape (L,), as spent before the first slot.

        To be called before more than a horizon of slots has been booked.
        """
        bookings.since[bookings.slots :] += amounts

    def _since(self, bookings: Bookings, slots: npt.NDArray[np.int64]) -> Units:
        """Spent from some slot of each ledger on, shape (L,); 0 from the next one on."""
        rows, columns = slots % self.horizon, np.arange(len(slots))
        spent: Units = bookings.since[rows, columns] * (slots < bookings.slots)
        return spent

    def _check(self, asked: Units, amounts: Units, remaining: Units, side: str) -> None:
        over = np.flatnonzero(amounts > remaining)
        if not over.size:
            return
        k = int(over[0])
        requested, left, difference = to_epsilon(
            [amounts[k], remaining[k], amounts[k] - remaining[k]]
        )
        back, back_cap, ahead, ahead_cap = asked[k].tolist()
        raise BudgetExceeded(
            f"release refused for users who ask for {to_epsilon(back_cap):g} over {back} slots "
            f"back and {to_epsilon(ahead_cap):g} over {ahead} slots ahead: requested "
            f"{requested:.12g} epsilon, remaining {left:.12g} in a window looking {side}, "
            f"difference {difference:.12g}"
        )

    def in_window(self, bookings: Bookings, asked: Units) -> Units:
        """Spent in the window looking back from the last slot booked, shape (L,)."""
        return self._since(bookings, bookings.slots - asked[:, 0])

    def canonical(self, bookings: Bookings, ledgers: npt.NDArray[np.int64]) -> Units:
        """All that later refusals of some ledgers depend on, shape (3 W, S)."""
        caps, ends, since = (
            table[:, ledgers] for table in (bookings.caps, bookings.ends, bookings.since)
        )
        return np.concatenate([caps, np.where(caps == _ENDED, 0, ends), since])

    def glance(self, bookings: Bookings) -> Units:
        """A little of :meth:`canonical` of all ledgers, for a first comparison: (8, L)."""
        rows = (bookings.slots - 1 - np.arange(4) * self.horizon // 4) % self.horizon
        return np.concatenate([bookings.caps[rows], bookings.since[rows]])

    def encode(self, bookings: Bookings) -> bytes:
        """Bytes of the state."""
        rows = np.stack([bookings.caps, bookings.ends, bookings.since])
        record = {
            "slots": bookings.slots,
            "ledgers": bookings.caps.shape[1],
            "rows": state_codec.table_to_bytes(rows),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> Bookings:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        shape = (3, self.horizon, record["ledgers"])
        caps, ends, since = state_codec.table_from_bytes(record["rows"], shape)
        return Bookings(caps.copy(), ends.copy(), since.copy(), record["slots"])
