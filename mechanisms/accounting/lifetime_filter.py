"""The odometer of budgets that never come back: a user's loss over the whole stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.accounting.window_filter import Odometer, refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.records import ConfigurationError, Lifetime, Requirement
from streamveil.mechanisms.core.units import Units, to_epsilon, to_units


@dataclass(frozen=True)
class LifetimeState:
    """What every class spent since the stream began, or was restarted."""

    in_window: Units
    """Spent by each class over the whole stream, its window, shape (K,), units."""
    slots: int = 0
    """Slots booked so far, over all restarts."""
    restarts: int = 0
    """How often the operator granted the whole budget again."""


class LifetimeOdometer:
    """Books spending slot by slot against budgets for ever.

    Guarantee: after any sequence of :meth:`charge` that did not raise, however long, what class k
    spent in all of it is at most its `epsilon`, in exact integers; after r calls of
    :meth:`restart` at most r + 1 times that. The state is a few integers.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "LifetimeOdometer",
            "fields": [
                {"name": "slots", "type": "long"},
                {"name": "restarts", "type": "long"},
                {"name": "spent", "type": state_codec.LONGS},
            ],
        }
    }

    def __init__(self, requirements: Sequence[Lifetime]) -> None:
        self.requirements = tuple(requirements)
        self._caps = np.array([to_units(r.epsilon) for r in requirements], dtype=np.int64)

    def start(self) -> LifetimeState:
        """Nothing spent yet."""
        return LifetimeState(np.zeros_like(self._caps))

    def charge(self, state: LifetimeState, amounts: Units) -> LifetimeState:
        """Book the next slot's spending, or refuse it.

        Args:
            state: it stays what it is.
            amounts: units spent by each class in this slot, int64, shape (K,).

        Raises:
            BudgetExceeded: with requested, remaining and difference, when a budget would overflow.
            ValueError: for negative amounts, which nothing can spend.
        """
        if amounts.shape != self._caps.shape or amounts.dtype != np.int64 or (amounts < 0).any():
            raise ValueError(f"spending must be {len(self._caps)} int64 amounts, none negative")
        left = self._caps - state.in_window
        over = np.flatnonzero(amounts > left)  # this way nothing can overflow
        if over.size:
            k = int(over[0])
            what = f"release refused for users with {self.requirements[k]}"
            raise refusal(what, int(amounts[k]), int(left[k]))
        return LifetimeState(state.in_window + amounts, state.slots + 1, state.restarts)

    def restart(self, state: LifetimeState) -> LifetimeState:
        """Grant every class its whole budget once more."""
        return LifetimeState(np.zeros_like(self._caps), state.slots, state.restarts + 1)

    def largest_use(self, state: LifetimeState) -> float:
        """Largest share of any class's budget that is spent, from 0 to 1."""
        return float((state.in_window / np.maximum(self._caps, 1)).max())

    def diagnostics(self, state: LifetimeState) -> Mapping[str, float]:
        """What an analyst must know of every release: the least budget left, and restarts."""
        left = float(to_epsilon((self._caps - state.in_window).min()))
        return {"budget_left": left, "restarts": float(state.restarts)}

    def encode(self, state: LifetimeState) -> bytes:
        """Bytes of the state."""
        record: dict[str, Any] = {
            "slots": state.slots,
            "restarts": state.restarts,
            "spent": state.in_window.tolist(),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> LifetimeState:
        """State of bytes. Raises ConfigurationError for those of other classes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        state_codec.check_length(record["spent"], len(self.requirements), "classes of users")
        spent = np.array(record["spent"], dtype=np.int64)
        return LifetimeState(spent, record["slots"], record["restarts"])


def odometer_for(requirements: Sequence[Requirement]) -> Odometer | LifetimeOdometer:
    """The odometer that holds these requirements.

    Raises ConfigurationError when some are for windows and others for the whole stream.
    """
    forever = [one for one in requirements if isinstance(one, Lifetime)]
    if not forever:
        return Odometer(requirements)
    if len(forever) < len(requirements):
        raise ConfigurationError(
            "some requirements are for windows and others for the whole stream: release them as "
            "two streams"
        )
    return LifetimeOdometer(forever)
