"""The filter for requirements that change: the last door before a release.

It knows nothing of mechanisms or schedules. It adds up what every ledger spent and refuses a slot
in which a window that is open, or the one that looks back from the slot, would be overspent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import check_amounts, refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

_MAX_CELLS = 1 << 25
_ENDED = np.iinfo(np.int64).max // 2


class ChangingFilter:
    """Books spending slot by slot against requirements that may change in every slot.

    Guarantee: after any sequence of :meth:`charge` that did not raise, in exact integers, every
    ledger has spent at most epsilon_forward in the window_forward slots from any slot on, and at
    most epsilon_backward in the window_backward slots up to any slot in which it spent anything.
    A slot whose window looking back was overspent before it began may spend nothing.
    """

    SCHEMAS = {
        1: state_codec.record_schema("ChangingFilter", slots="long", ledgers="long", rows="bytes")
    }

    def __init__(self, horizon: int, ledgers: int = 0) -> None:
        """Ledgers that have spent nothing yet, over the last W = `horizon` slots."""
        shape = (horizon, ledgers)
        self.horizon = horizon
        self.caps: Units = np.full(shape, _ENDED)
        """Budget of the window that each slot opened, _ENDED once it has ended: shape (W, L), slot
        s at row s % W, units."""
        self.ends = np.zeros(shape, np.int64)
        """First slot after that window, shape (W, L)."""
        self.since: Units = np.zeros(shape, np.int64)
        """Spent from each slot on, shape (W, L), units."""
        self.slots = 0
        """Slots booked so far."""

    @property
    def ledgers(self) -> int:
        """Number of ledgers L."""
        return self.caps.shape[1]

    def regroup(self, parents: npt.NDArray[np.int64]) -> None:
        """Continue ledger `parents[j]` as ledger j, -1 for a new one."""
        if self.horizon * len(parents) > _MAX_CELLS:
            raise ConfigurationError(
                f"{len(parents)} histories of requirements over {self.horizon} slots need more "
                f"than {_MAX_CELLS} cells: use longer slots or a shorter longest window "
                f"({opt.longest_window})"
            )
        fresh = ChangingFilter(self.horizon, 1)

        def pick(old: Units, new: Units) -> Units:
            return np.take(np.concatenate([old, new], axis=1), parents, axis=1)

        self.caps = pick(self.caps, fresh.caps)
        self.ends = pick(self.ends, fresh.ends)
        self.since = pick(self.since, fresh.since)

    def charge(self, amounts: Units, asked: Units) -> None:
        """Book the next slot's spending, or refuse it: then the slot may be charged again.

        Args:
            amounts: units spent by each ledger in this slot, int64, shape (L,).
            asked: what each ledger asks for in this slot (`cohorts.Moves.requirements`), (L, 4).

        Raises:
            BudgetExceeded: with requested, remaining and difference, when a window would overflow.
            ValueError: for negative amounts, which nothing can spend.
        """
        check_amounts(amounts, len(asked))
        slot, (back, back_cap, ahead, ahead_cap) = self.slots, asked.T
        row = slot % self.horizon
        self.caps[row] = np.where(ahead > 0, ahead_cap, _ENDED)
        self.ends[row] = slot + ahead
        self.since[row] = 0
        self.caps.reshape(-1)[np.flatnonzero(self.ends == slot)] = _ENDED
        self._check(asked, amounts, (self.caps - self.since).min(axis=0), "ahead")
        past = self._since(slot - back + 1)
        self._check(asked, amounts, np.where(amounts > 0, back_cap - past, 0), "back")
        self.since += amounts
        self.slots += 1

    def assume(self, amounts: Units) -> None:
        """Take so much, shape (L,), as spent before the first slot.

        To be called before more than a horizon of slots has been booked.
        """
        self.since[self.slots :] += amounts

    def _since(self, slots: npt.NDArray[np.int64]) -> Units:
        """Spent from some slot of each ledger on, shape (L,); 0 from the next one on."""
        rows, columns = slots % self.horizon, np.arange(len(slots))
        spent: Units = self.since[rows, columns] * (slots < self.slots)
        return spent

    def _check(self, asked: Units, amounts: Units, remaining: Units, side: str) -> None:
        over = np.flatnonzero(amounts > remaining)
        if not over.size:
            return
        k = int(over[0])
        back, back_cap, ahead, ahead_cap = asked[k].tolist()
        raise refusal(
            f"release refused for users who ask for {to_epsilon(back_cap):g} over {back} slots "
            f"back and {to_epsilon(ahead_cap):g} over {ahead} slots ahead",
            int(amounts[k]),
            int(remaining[k]),
            f"a window looking {side}",
        )

    def in_window(self, asked: Units) -> Units:
        """Spent in the window looking back from the last slot booked, shape (L,)."""
        return self._since(self.slots - asked[:, 0])

    def use(self, asked: Units) -> float:
        """Largest share of any window looking back that is spent, but for those broken before."""
        spent = self.in_window(asked)
        kept = (asked[:, 1] > 0) & (spent <= asked[:, 1])
        return float((spent[kept] / asked[kept, 1]).max(initial=0.0))

    def canonical(self, ledgers: npt.NDArray[np.int64]) -> Units:
        """All that later refusals of some ledgers depend on, shape (3 W, S)."""
        caps, ends, since = (table[:, ledgers] for table in (self.caps, self.ends, self.since))
        return np.concatenate([caps, np.where(caps == _ENDED, 0, ends), since])

    def glance(self) -> Units:
        """A little of :meth:`canonical` of all ledgers, for a first comparison: (8, L)."""
        rows = (self.slots - 1 - np.arange(4) * self.horizon // 4) % self.horizon
        return np.concatenate([self.caps[rows], self.since[rows]])

    def encode(self) -> bytes:
        """Bytes of what is booked."""
        rows = np.stack([self.caps, self.ends, self.since])
        record = {
            "slots": self.slots,
            "ledgers": self.ledgers,
            "rows": state_codec.table_to_bytes(rows),
        }
        return state_codec.pack(self.SCHEMAS, record)

    @classmethod
    def decode(cls, data: bytes, horizon: int) -> ChangingFilter:
        """The filter of bytes."""
        _, record = state_codec.unpack(cls.SCHEMAS, data)
        made = cls(horizon)
        shape = (3, horizon, record["ledgers"])
        made.caps, made.ends, made.since = state_codec.table_from_bytes(record["rows"], shape)
        made.slots = record["slots"]
        return made
