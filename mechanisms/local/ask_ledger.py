"""The server's ledger: what was asked of every user, in the slots that their windows still reach.

It is made of public facts, whom the server asked at what price, and holds whatever devices answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.budgets import Units, to_units
from streamveil.mechanisms.local.history import ENTRY, Entry, History
from streamveil.mechanisms.local.protocol import Ask, Users
from streamveil.mechanisms.odometer import refusal


@dataclass
class AskLedgerState:
    """The asks that somebody's window still reaches, and what they add up to."""

    in_window: Units
    """Asked of each user in the window that ends with the slot opened last, shape (n,), units."""
    history: History = field(default_factory=History)
    slot: int | None = None
    """The slot opened last."""


class AskLedger:
    """Books asks against every user's window.

    Guarantee: after any sequence of :meth:`open` and :meth:`book` that did not raise, what any
    user was asked for in any `window` consecutive slots is at most the user's `epsilon`, in exact
    integers.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "AskLedger",
            "fields": [
                {"name": "slot", "type": ["null", "long"]},
                {"name": "history", "type": {"type": "array", "items": ENTRY}},
            ],
        }
    }

    def __init__(self, users: Users) -> None:
        self._users = users
        self._windows = np.array([r.window for r in users.classes], np.int64)
        self._caps = np.array([to_units(r.epsilon) for r in users.classes], np.int64)

    def start(self) -> AskLedgerState:
        """Nothing asked yet."""
        return AskLedgerState(np.zeros(self._users.class_of.size, np.int64))

    def open(self, state: AskLedgerState, slot: int) -> AskLedgerState:
        """Move the windows on to the slot after the last; `state` is consumed."""
        for window in np.unique(self._windows).tolist():
            same = self._windows == window
            for entry in state.history.between(slot - window, slot - window):
                users, amounts = entry.spending(same)
                state.in_window[users] -= amounts
            state.history.forget(slot - window, slot - window, same)
        state.slot = slot
        return state

    def book(self, state: AskLedgerState, ask: Ask) -> AskLedgerState:
        """Book an ask in the slot that is open, or refuse it; `state` is consumed.

        Raises:
            BudgetExceeded: when it would break anybody's requirement.
        """
        classes = self._users.class_of[ask.users]
        amounts = ask.epsilons[classes]
        remaining = self._caps[classes] - state.in_window[ask.users]
        over = np.flatnonzero(amounts > remaining)
        if over.size:
            user = ask.users[over[0]]
            raise refusal(
                f"round {ask.round} of slot {ask.slot} was not asked: user {user} has "
                f"{self._users.classes[classes[over[0]]]}",
                int(amounts[over[0]]),
                int(remaining[over[0]]),
            )
        counts = np.bincount(classes, minlength=len(self._caps))
        by_class = ask.users[np.argsort(classes, kind="stable")]
        state.history.add(Entry.of(ask, self._users, by_class, counts))
        state.in_window[ask.users] += amounts
        return state

    def spent(self, state: AskLedgerState) -> Units:
        """The most asked of any user of each class in the slot opened last, shape (K,), units."""
        assert state.slot is not None
        spent = np.zeros_like(state.in_window)
        for entry in state.history.between(state.slot, state.slot):
            users, amounts = entry.spending()
            spent[users] += amounts
        return self._largest(spent)

    def spent_in_window(self, state: AskLedgerState) -> Units:
        """The same in the window that ends with that slot, shape (K,), units."""
        return self._largest(state.in_window)

    def _largest(self, amounts: Units) -> Units:
        largest = np.zeros(len(self._caps), np.int64)
        np.maximum.at(largest, self._users.class_of, amounts)
        return largest

    def largest_use(self, state: AskLedgerState) -> float:
        """Largest share of anybody's window that is spent, from 0 to 1."""
        return float((self.spent_in_window(state) / np.maximum(self._caps, 1)).max())

    def encode(self, state: AskLedgerState) -> bytes:
        """Bytes of the state: the asks, of which the sums follow."""
        history = state.history.to_records(self._users.class_of)
        return state_bytes.pack(self.SCHEMAS, {"slot": state.slot, "history": history})

    def decode(self, data: bytes) -> AskLedgerState:
        """State of bytes, with the sums added up anew."""
        _, record = state_bytes.unpack(self.SCHEMAS, data)
        state = self.start()
        state.slot = record["slot"]
        state.history = History.from_records(record["history"], self._users.class_of)
        if state.slot is not None:  # what is out of a window was forgotten
            for entry in state.history.between(state.slot - int(self._windows.max()), state.slot):
                users, amounts = entry.spending()
                state.in_window[users] += amounts
        return state
