"""The filter of discovery: the final check before keys are published.

It does not know weights and thresholds. It gets the cost of each discovery slot for a key, adds up
the costs in every window of base slots that meets this slot, and refuses the slot if a budget would
be exceeded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from streamveil.mechanisms.accounting.window_filter import (
    BudgetExceeded,
    check_amounts,
    refusal,
)
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.discovery.deltas import to_delta
from streamveil.mechanisms.discovery.price import Draw


class DiscoveryFilter:
    """Checks that discovery slots keep budgets of epsilon and delta over windows of base slots.

    Guarantee: after any sequence of :meth:`charge` that did not raise, the discovery slots that
    meet any `window` consecutive base slots cost class k together at most its `epsilons` and its
    `deltas`, in exact integers. A slot costs its charge of epsilon for each key that changes, and
    its charge of delta for each key that only one input has, as `price.py` counts them by the
    number of base slots that the window covers.
    Proof: slots are charged in order. When the last slot that a window meets is charged, all slots
    that the window meets are in memory, and the sum over them is checked.

    Args:
        windows: base slots of each class, shape (K,).
        epsilons: what discovery may cost in a window, in units of 2**-40, shape (K,).
        deltas: the same in units of 2**-62, shape (K,).
        draws: how keys of users of each class are drawn, all in slots of the same length.
    """

    def __init__(
        self, windows: Integers, epsilons: Units, deltas: Units, draws: Sequence[Draw]
    ) -> None:
        (self._length,) = {draw.length for draw in draws}
        self._draws = [list(map(int, astuple(draw))) for draw in draws]
        longest = int(windows.max())
        self._classes = [
            (
                window,
                _Budget("epsilon", int(epsilon), draw.changed),
                _Budget("delta", int(delta), draw.removed),
            )
            for window, epsilon, delta, draw in zip(
                windows.tolist(), epsilons, deltas, draws, strict=True
            )
        ]
        self._booked: deque[tuple[int, Units, Units]] = deque(maxlen=longest // self._length + 2)
        """Slot, epsilon and delta of the last slots: a window meets no more."""

    SCHEMA = state_codec.record_schema(
        "DiscoveryFilter",
        slots=state_codec.LONGS,
        epsilons={"type": "array", "items": "bytes"},
        deltas={"type": "array", "items": "bytes"},
        draws={"type": "array", "items": state_codec.LONGS},
    )

    def record(self) -> dict[str, Any]:
        """The costs so far, as an Avro record under `SCHEMA`."""
        return {
            "slots": [slot for slot, _, _ in self._booked],
            "epsilons": [state_codec.table_to_bytes(one) for _, one, _ in self._booked],
            "deltas": [state_codec.table_to_bytes(one) for _, _, one in self._booked],
            "draws": self._draws,
        }

    def read(self, record: Mapping[str, Any]) -> None:
        """Restore the costs of a filter with the same classes.

        Raises ConfigurationError if users' keys were drawn in another way, at other costs.
        """
        if record["draws"] != self._draws:
            raise ConfigurationError(
                "this state is of a version that draws the keys of users in another way: go on "
                "with that version, or start a new stream, which spends the users' budgets again"
            )
        shape = (len(self._classes),)
        amounts = (
            [state_codec.table_from_bytes(one, shape) for one in record[name]]
            for name in ("epsilons", "deltas")
        )
        self._booked.extend(zip(record["slots"], *amounts, strict=True))

    def charge(self, slot: int, epsilon: Units, delta: Units) -> None:
        """Book a discovery slot, or refuse it and book nothing.

        Args:
            slot: later than those before.
            epsilon: cost of each key that changes, in units of 2**-40, shape (K,).
            delta: cost of each key that only one input has, in units of 2**-62, shape (K,).

        Raises:
            BudgetExceeded: if a window would exceed a budget.
            ValueError: for a slot out of order, or amounts that cannot be spent.
        """
        for amounts in (epsilon, delta):
            check_amounts(amounts, len(self._classes))
        if self._booked and slot <= self._booked[-1][0]:
            raise ValueError(f"slot {slot} is charged after slot {self._booked[-1][0]}")
        for k, (window, *budgets) in enumerate(self._classes):
            starts = np.arange(slot * self._length - window + 1, (slot + 1) * self._length)
            covered = {one: self._covered(one, starts, window) for one, _, _ in self._booked}
            now = self._covered(slot, starts, window)
            for place, (budget, amount) in enumerate(zip(budgets, (epsilon, delta), strict=True)):
                before = np.zeros(len(starts), np.int64)
                for one, *spent in self._booked:
                    before += int(spent[place][k]) * budget.keys[covered[one]]
                budget.check(slot, window, before, int(amount[k]), now)
        self._booked.append((slot, epsilon, delta))

    def _covered(self, slot: int, starts: Integers, window: int) -> Integers:
        """Base slots of a discovery slot that are in the windows from each start."""
        first = slot * self._length
        ends = np.minimum(starts + window, first + self._length)
        return np.maximum(ends - np.maximum(starts, first), 0)


class _Budget:
    """What a window of one class may cost."""

    def __init__(self, name: str, cap: int, keys: Integers) -> None:
        self.name, self.cap, self.keys = name, cap, keys

    def check(
        self, slot: int, window: int, before: Integers, amount: int, covered: Integers
    ) -> None:
        """Refuse an amount for each key if a window would cost more than its budget.

        The largest number of keys times the amount is compared first, in Python's integers, which
        cannot overflow. So products and sums of arrays cannot overflow either.
        """
        requested = amount * int(self.keys[covered].max())
        if requested <= self.cap:
            costs = amount * self.keys[covered]
            worst = int((before + costs).argmax())
            requested, left = int(costs[worst]), self.cap - int(before[worst])
        else:
            left = self.cap
        if requested <= left:
            return
        what = f"discovery of keys in slot {slot} refused"
        where = f"a window of {window} base slots"
        if self.name == "epsilon":
            raise refusal(what, requested, left, where)
        raise BudgetExceeded(
            f"{what}: requested delta {to_delta(requested):.12g}, remaining {to_delta(left):.12g} "
            f"in {where}, difference {to_delta(requested - left):.12g}"
        )
