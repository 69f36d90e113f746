"""The server's ledger: what was asked of every user, in the slots that their windows still reach.

It is made of public facts, whom the server asked at what price, and holds whatever devices answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.budgets import Units, to_epsilon, to_units
from streamveil.mechanisms.local.protocol import Ask, Users
from streamveil.mechanisms.odometer import BudgetExceeded


@dataclass(frozen=True, eq=False)
class AskedOnce:
    """What one round asked."""

    prices: Units
    """By class, shape (K,)."""
    users: npt.NDArray[np.int32] | None
    """Ascending; None for everybody."""


@dataclass
class AskLedgerState:
    """The asks that somebody's window still reaches, and what they add up to."""

    in_window: Units
    """Asked of each user in the window that ends with the last slot, shape (n,), units."""
    asks: dict[int, list[AskedOnce]] = field(default_factory=dict)
    """By slot, in order."""


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
                {
                    "name": "asks",
                    "type": {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "AskedOnce",
                            "fields": [
                                {"name": "slot", "type": "long"},
                                {"name": "prices", "type": state_bytes.LONGS},
                                {"name": "users", "type": ["null", "bytes"]},
                            ],
                        },
                    },
                }
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
        """Move the windows on to a slot, the one after the last; `state` is consumed."""
        for window in np.unique(self._windows).tolist():
            for asked in state.asks.get(slot - window, ()):
                self._add(state, asked, np.where(self._windows == window, -asked.prices, 0))
        state.asks.pop(slot - int(self._windows.max()), None)
        return state

    def book(self, state: AskLedgerState, ask: Ask) -> AskLedgerState:
        """Book an ask in the slot that is open, or refuse it; `state` is consumed.

        Raises:
            BudgetExceeded: when it would break anybody's requirement.
        """
        everybody = ask.users.size == self._users.class_of.size
        asked = AskedOnce(ask.epsilons, None if everybody else ask.users)
        self._add(state, asked, ask.epsilons)
        over = state.in_window > self._caps[self._users.class_of]
        if over.any():
            user = int(np.argmax(over))
            k = self._users.class_of[user]
            raise BudgetExceeded(
                f"slot {ask.slot}, round {ask.round}: user {user} with {self._users.classes[k]} "
                f"would be asked for {to_epsilon(state.in_window[user])} in a window; requested "
                f"{to_epsilon(ask.epsilons[k])}, remaining "
                f"{to_epsilon(self._caps[k] - state.in_window[user] + ask.epsilons[k])}"
            )
        state.asks.setdefault(ask.slot, []).append(asked)
        return state

    def _add(self, state: AskLedgerState, asked: AskedOnce, amounts: Units) -> None:
        class_of = self._users.class_of
        if asked.users is None:
            state.in_window += amounts[class_of]
        else:
            state.in_window[asked.users] += amounts[class_of[asked.users]]

    def spent(self, state: AskLedgerState, slot: int) -> Units:
        """Largest amount asked of any user of each class in a recent slot, shape (K,), units."""
        alone = self.start()
        for asked in state.asks.get(slot, ()):
            self._add(alone, asked, asked.prices)
        return self._largest(alone)

    def spent_in_window(self, state: AskLedgerState) -> Units:
        """The same in the window that ends with the last slot, shape (K,), units."""
        return self._largest(state)

    def _largest(self, state: AskLedgerState) -> Units:
        largest = np.zeros(len(self._caps), np.int64)
        np.maximum.at(largest, self._users.class_of, state.in_window)
        return largest

    def largest_use(self, state: AskLedgerState) -> float:
        """Largest share of anybody's window that is spent, from 0 to 1."""
        return float((self.spent_in_window(state) / np.maximum(self._caps, 1)).max())

    def encode(self, state: AskLedgerState) -> bytes:
        """Bytes of the state: the asks, of which the sums follow."""
        asks = [
            {
                "slot": slot,
                "prices": asked.prices.tolist(),
                "users": None if asked.users is None else asked.users.astype("<i4").tobytes(),
            }
            for slot, there in state.asks.items()
            for asked in there
        ]
        return state_bytes.pack(self.SCHEMAS, {"asks": asks})

    def decode(self, data: bytes, last: int | None) -> AskLedgerState:
        """State of bytes up to the slot opened last, with the sums added up anew."""
        _, record = state_bytes.unpack(self.SCHEMAS, data)
        state = self.start()
        if last is None:
            return state
        for one in record["asks"]:
            state_bytes.check_length(one["prices"], len(self._caps), "classes of users")
            users = one["users"]
            asked = AskedOnce(
                np.array(one["prices"], np.int64),
                None if users is None else np.frombuffer(users, "<i4").astype(np.int32),
            )
            state.asks.setdefault(one["slot"], []).append(asked)
            reached = one["slot"] > last - self._windows
            self._add(state, asked, np.where(reached, asked.prices, 0))
        return state
