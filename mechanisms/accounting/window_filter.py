"""The filter: the last door before a release.

It knows nothing of mechanisms. It adds up what every class of users spent and refuses a slot in
which any window of any class would exceed its requirement. (An odometer measures what was spent; a
filter limits it.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError, Requirement

# 256 MB of recent spending; beyond that a slot is far too short for its windows.
MAX_CELLS = 1 << 25


class BudgetExceeded(RuntimeError):  # noqa: N818 - it is the name of what happened
    """A release was refused because it would exceed a user's budget.

    Nothing was released for its slot.
    """


def refusal(
    what: str, requested: int, remaining: int, where: str = "their window"
) -> BudgetExceeded:
    """The error for units requested from a window that has fewer remaining."""
    asked, left, difference = to_epsilon([requested, remaining, requested - remaining])
    return BudgetExceeded(
        f"{what}: requested {asked:.12g} epsilon, remaining {left:.12g} in {where}, "
        f"difference {difference:.12g}"
    )


def check_amounts(amounts: Units, count: int) -> None:
    """Raise ValueError for what nothing can spend: other than so many amounts, none negative."""
    if amounts.shape != (count,) or amounts.dtype != np.int64 or amounts.min(initial=0) < 0:
        raise ValueError(f"spending must be {count} int64 amounts, none negative")


class WindowFilter:
    """A privacy filter for fixed requirements, which records the budget that each slot spends.

    A class is a group of users with the same requirement. After each successful :meth:`charge`,
    each class has spent at most its epsilon in any `window` consecutive slots. The spending is
    added up with exact integers. For a :class:`Lifetime` requirement, the bound applies to the
    whole stream. After r calls of :meth:`restart`, this bound is (r + 1) times epsilon.

    Raises:
        ConfigurationError: if some requirements have a window and others a lifetime budget, or if
            the windows are so long that the filter would need too much memory.
    """

    SCHEMAS = {1: state_codec.record_schema("WindowFilter", slots="long", rows=state_codec.RUNS)}
    LIFETIME_SCHEMAS = {
        1: state_codec.record_schema(
            "LifetimeFilter", slots="long", restarts="long", spent=state_codec.LONGS
        )
    }

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.requirements = Requirements.of(requirements)
        self.forever = self.requirements.forever
        """Whether nothing ever leaves the window."""
        count = len(requirements)
        self._windows = self.requirements.windows
        self._caps = self.requirements.budgets
        self._columns = np.arange(count)
        depth = 0 if self.forever else self.requirements.longest
        if depth * count > MAX_CELLS:
            raise ConfigurationError(
                f"a window of {depth} slots for {count} classes needs more than {MAX_CELLS} cells "
                "of history: use longer slots"
            )
        self.ring: Units = np.zeros((depth, count), np.int64)
        """Spent in slot s at row s % W, W the longest window: shape (W, K), units."""
        self.in_window: Units = np.zeros(count, np.int64)
        """Spent by each class in its window up to the last slot, shape (K,), units."""
        self.slots = 0
        """Slots booked so far, over all restarts."""
        self.restarts = 0
        """How often the operator granted the whole budget again."""

    def charge(self, amounts: Units) -> None:
        """Record the budget that the next slot spends, or refuse the slot and record nothing.

        Args:
            amounts: the budget that the slot spends from each of the K classes, as int64 units,
                shape (K,). One unit is an epsilon of 2**-40.

        Raises:
            BudgetExceeded: if the slot would exceed the budget of a window. The error message
                states the requested budget and the remaining budget.
            ValueError: if an amount is negative.
        """
        check_amounts(amounts, len(self._caps))
        before, depth = self.in_window, len(self.ring)
        if depth:  # The slot that leaves each window; before the first slots the ring holds zeros.
            before = before - self.ring[(self.slots - self._windows) % depth, self._columns]
        left = self._caps - before
        # This way nothing can overflow. Where caps fell, windows may have cost more before.
        over = (amounts > left) & (amounts > 0)
        if np.count_nonzero(over):
            k = int(over.argmax())
            what = f"release refused for users with {self.requirements[k]}"
            raise refusal(what, int(amounts[k]), int(left[k]))
        if depth:
            self.ring[self.slots % depth] = amounts
        self.in_window = before + amounts
        self.slots += 1

    def under(self, requirements: Sequence[Requirement]) -> WindowFilter:
        """Return a privacy filter with the same history and windows, but with new epsilons.

        If a class has already spent more than its new epsilon in the current window, the class
        cannot spend anything until its spending over the window is below the new epsilon again.
        """
        made = copy(self)
        made.requirements = Requirements.of(requirements)
        made._caps = made.requirements.budgets
        return made

    def restart(self) -> None:
        """Grant every lifetime budget once more.

        Raises ConfigurationError if requirements have windows.
        """
        if not self.forever:
            raise ConfigurationError(
                "only a budget for the whole stream can be restarted: requirements with windows "
                "get their budgets back by themselves"
            )
        self.in_window = np.zeros_like(self._caps)
        self.restarts += 1

    def use(self) -> float:
        """The largest fraction of its budget, 0 to 1, that a class has spent in its window."""
        return float((self.in_window / np.maximum(self._caps, 1)).max())

    def diagnostics(self) -> Mapping[str, float]:
        """The smallest remaining lifetime budget among all classes, and the number of restarts."""
        left = float(to_epsilon((self._caps - self.in_window).min()))
        return {"budget_left": left, "restarts": float(self.restarts)}

    def encode(self) -> bytes:
        """Encode the state as bytes."""
        record: dict[str, Any] = {"slots": self.slots}
        if self.forever:
            record |= {"restarts": self.restarts, "spent": self.in_window.tolist()}
            return state_codec.pack(self.LIFETIME_SCHEMAS, record)
        known = np.arange(max(self.slots - len(self.ring), 0), self.slots) % len(self.ring)
        record["rows"] = state_codec.runs_of(self.ring[known])
        return state_codec.pack(self.SCHEMAS, record)

    @classmethod
    def decode(cls, data: bytes, requirements: Sequence[Requirement]) -> WindowFilter:
        """Decode the state of a filter, and recompute how much was spent in its windows.

        Raises:
            ConfigurationError: if the saved filter had different requirement classes or a different
                longest window.
        """
        made = cls(requirements)
        count = len(made.requirements)
        _, record = state_codec.unpack(cls.LIFETIME_SCHEMAS if made.forever else cls.SCHEMAS, data)
        made.slots = record["slots"]
        if made.forever:
            state_codec.check_length(record["spent"], count, "classes of users")
            made.restarts = record["restarts"]
            made.in_window = np.array(record["spent"], dtype=np.int64)
            return made
        rows = state_codec.rows_of(record["rows"], count)
        state_codec.check_length(rows, min(made.slots, len(made.ring)), "slots of spending")
        made.ring[np.arange(made.slots - len(rows), made.slots) % len(made.ring)] = rows
        for k, window in enumerate(made._windows):
            made.in_window[k] = rows[-window:, k].sum()
        return made
