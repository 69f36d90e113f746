"""The odometer: the last door before a release.

It knows nothing of mechanisms. It adds up what every class of users spent and refuses a slot in
which any window of any class would exceed its requirement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.core.units import Units, to_epsilon, to_units

# 256 MB of recent spending; beyond that a slot is far too short for its windows.
_MAX_CELLS = 1 << 25


class BudgetExceeded(RuntimeError):  # noqa: N818 - it is the name of what happened
    """A release was refused: it would break a requirement. Nothing was emitted for its slot."""


def refusal(what: str, requested: int, remaining: int) -> BudgetExceeded:
    """The error for units requested from a window that has fewer remaining."""
    asked, left, difference = to_epsilon([requested, remaining, requested - remaining])
    return BudgetExceeded(
        f"{what}: requested {asked:.12g} epsilon, remaining {left:.12g} in their window, "
        f"difference {difference:.12g}"
    )


@dataclass
class OdometerState:
    """What every class spent in the slots that its window can still reach."""

    ring: Units
    """Spent in slot s at row s % W, W the longest window: shape (W, K), units."""
    in_window: Units
    """Spent by each class in its window up to the last slot, shape (K,), units."""
    slots: int = 0
    """Slots booked so far."""


class Odometer:
    """Books spending slot by slot against fixed requirements.

    Guarantee: after any sequence of :meth:`charge` that did not raise, the spending of class k in
    any `window` consecutive slots is at most its `epsilon`, in exact integers.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "Odometer",
            "fields": [
                {"name": "slots", "type": "long"},
                {"name": "rows", "type": state_codec.RUNS},
            ],
        }
    }

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.requirements = tuple(requirements)
        self._windows = np.array([r.window for r in requirements], dtype=np.int64)
        self._caps = np.array([to_units(r.epsilon) for r in requirements], dtype=np.int64)
        self._columns = np.arange(len(requirements))
        self._depth = int(self._windows.max())
        if self._depth * len(requirements) > _MAX_CELLS:
            raise ConfigurationError(
                f"a window of {self._depth} slots for {len(requirements)} classes needs more than "
                f"{_MAX_CELLS} cells of history: use longer slots"
            )

    def start(self) -> OdometerState:
        """Nothing spent yet."""
        shape = (self._depth, len(self.requirements))
        return OdometerState(np.zeros(shape, np.int64), np.zeros(shape[1], np.int64))

    def charge(self, state: OdometerState, amounts: Units) -> OdometerState:
        """Book the next slot's spending, or refuse it.

        Args:
            state: consumed: use the returned one from now on.
            amounts: units spent by each class in this slot, int64, shape (K,).

        Raises:
            BudgetExceeded: with requested, remaining and difference, when a window would overflow.
            ValueError: for negative amounts, which nothing can spend.
        """
        if amounts.shape != self._caps.shape or amounts.dtype != np.int64 or (amounts < 0).any():
            raise ValueError(f"spending must be {len(self._caps)} int64 amounts, none negative")
        # The slot that leaves each window; before the first slots the ring holds zeros.
        leaving = state.ring[(state.slots - self._windows) % self._depth, self._columns]
        before = state.in_window - leaving
        over = np.flatnonzero(amounts > self._caps - before)  # this way nothing can overflow
        if over.size:
            self._refuse(int(over[0]), amounts, before)
        state.ring[state.slots % self._depth] = amounts
        return OdometerState(state.ring, before + amounts, state.slots + 1)

    def _refuse(self, k: int, amounts: Units, before: Units) -> None:
        raise refusal(
            f"release refused for users with {self.requirements[k]}",
            int(amounts[k]),
            int(self._caps[k] - before[k]),
        )

    def largest_use(self, state: OdometerState) -> float:
        """Largest share of any class's window that is spent, from 0 to 1."""
        return float((state.in_window / np.maximum(self._caps, 1)).max())

    def encode(self, state: OdometerState) -> bytes:
        """Bytes of the state; equal neighbouring slots are written once."""
        depth = min(state.slots, self._depth)
        rows = state.ring[np.arange(state.slots - depth, state.slots) % self._depth]
        record: dict[str, Any] = {"slots": state.slots, "rows": state_codec.runs_of(rows)}
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> OdometerState:
        """State of bytes, window sums added up anew."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        rows = state_codec.rows_of(record["rows"], len(self.requirements))
        state = self.start()
        state.slots = record["slots"]
        state.ring[np.arange(state.slots - len(rows), state.slots) % self._depth] = rows
        for k, window in enumerate(self._windows):
            state.in_window[k] = rows[-window:, k].sum()
        return state
