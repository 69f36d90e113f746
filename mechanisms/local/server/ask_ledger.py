"""The server's ledger: what was asked of every user, in the slots that their windows still reach.

It is made of public facts, whom the server asked at what price, and holds whatever devices answer.
"""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.units import Units
from streamveil.mechanisms.local.accounting.promises import Promises
from streamveil.mechanisms.local.accounting.report_history import ENTRY, History
from streamveil.mechanisms.local.accounting.user_filters import Odometers
from streamveil.mechanisms.local.protocol import Ask, Users

_ASKS = [
    {"name": "slot", "type": ["null", "long"]},
    {"name": "history", "type": {"type": "array", "items": ENTRY}},
]


class AskLedger:
    """Books asks against every user's window, by the rule of `user_filters.py`.

    Guarantee: after any sequence of :meth:`open` and :meth:`book` that did not raise, what any
    user was asked for in any `window` consecutive slots is at most the user's `epsilon`, in exact
    integers; where requirements change, as :class:`Odometers` has it.

    Args:
        users: the population.
        longest_window: of any requirement, at any time, in slots; None while none changes.
    """

    SCHEMAS = {
        1: {"type": "record", "name": "AskLedger", "fields": _ASKS},
        2: {
            "type": "record",
            "name": "AskLedger",
            "fields": [
                *_ASKS,
                {"name": "longest", "type": ["null", "long"]},
                {"name": "class_of", "type": "bytes"},
                {"name": "since", "type": "bytes"},
                {"name": "promises", "type": "bytes"},
            ],
        },
    }

    def __init__(self, users: Users, longest_window: int | None = None) -> None:
        self._users = users
        self._longest = longest_window

    def start(self) -> Odometers:
        """Nothing asked yet."""
        return Odometers(self._users, self._longest)

    def open(self, state: Odometers, slot: int) -> Odometers:
        """Move the windows on to the slot after the last; `state` is consumed."""
        state.advance(slot)
        return state

    def book(self, state: Odometers, ask: Ask) -> Odometers:
        """Book an ask in the slot that is open, or refuse it; `state` is consumed.

        Raises:
            BudgetExceeded: when it would break anybody's requirement.
        """
        state.charge(ask, f"round {ask.round} of slot {ask.slot} was not asked:")
        return state

    def spent(self, state: Odometers) -> Units:
        """The most asked of any user of each class in the slot opened last, shape (K,), units."""
        return self._largest(state, state.spent)

    def spent_in_window(self, state: Odometers) -> Units:
        """The same in the window that ends with that slot, shape (K,), units.

        Of who asked for something else before, it is what was asked for since.
        """
        return self._largest(state, state.since_change)

    def _largest(self, state: Odometers, amounts: Units) -> Units:
        largest = np.zeros(len(state.caps), np.int64)
        np.maximum.at(largest, state.users.class_of, amounts)
        return largest

    def largest_use(self, state: Odometers) -> float:
        """Largest share of anybody's window that is spent, from 0 to 1."""
        return float((self.spent_in_window(state) / np.maximum(state.caps, 1)).max())

    def encode(self, state: Odometers) -> bytes:
        """Bytes of the state: the asks, of which the sums follow, and what changed."""
        class_of = state.users.class_of
        return state_codec.pack(
            self.SCHEMAS,
            {
                "slot": state.slot,
                "history": state.history.to_records(class_of),
                "longest": state.longest,
                "class_of": class_of.astype("<i4").tobytes() if state.since.size else b"",
                "since": state_codec.table_to_bytes(state.since),
                "promises": state.promises.to_bytes(),
            },
        )

    def decode(self, data: bytes) -> Odometers:
        """State of bytes, with the sums added up anew."""
        version, record = state_codec.unpack(self.SCHEMAS, data)
        users, longest = self._users, None
        if version > 1:
            longest = record["longest"]
            if record["class_of"]:
                class_of = np.frombuffer(record["class_of"], "<i4").astype(np.int32)
                users = Users(users.classes, class_of, users.symbols)
        state = Odometers(users, longest)
        state.slot = record["slot"]
        state.history = History.from_records(record["history"], users.class_of)
        if version > 1:
            state.since = state_codec.table_from_bytes(record["since"], (-1,))
            state.promises = Promises.from_bytes(record["promises"])
        if state.slot is not None:
            everybody = np.arange(users.class_of.size)
            firsts = state.slot - state.windows[users.class_of] + 1
            state.in_window = state.history.spent(everybody, firsts)
        return state
