"""The largest fraction of a budget that any window used, recomputed from the charges."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.local.protocol import Ask, Users


def fullest(requirements: Requirements, charges: Sequence[tuple[int, Units]]) -> float:
    """Largest charge of a window, as a fraction of its budget. Charges are whole units.

    Args:
        requirements: the requirements of the K classes.
        charges: for each stream, the length of its slots (in slots of the requirements), and the
            cost of each slot for users of each class, shape (T, K).
    """
    end, most = max(slots * len(units) for slots, units in charges), 0.0
    for k, (window, budget) in enumerate(
        zip(requirements.windows.tolist(), requirements.budgets.tolist(), strict=True)
    ):
        # What slots s to e cost is in the windows that end with s to e + window - 1.
        changes = np.zeros(end + window + 1, np.int64)
        for slots, units in charges:
            first = np.arange(len(units)) * slots
            np.add.at(changes, first, units[:, k])
            np.subtract.at(changes, first + slots + window - 1, units[:, k])
        most = max(most, int(changes.cumsum().max()) / budget)
    return most


class DeviceCharges:
    """Charges of every device in whole units, from the requests of all slots in order."""

    def __init__(self, users: Users) -> None:
        """Nobody was asked yet."""
        self._users = users
        self._windows = users.classes.windows[users.class_of]
        self._budgets = users.classes.budgets[users.class_of]
        self._here = np.zeros(users.class_of.size, np.int64)
        self._slots: deque[list[tuple[npt.NDArray[np.int32], Integers]]] = deque()
        self.fullest = 0.0
        """Largest charge of a window so far, in parts of its budget."""

    def begin(self) -> None:
        """The next slot: what no window holds any more is forgotten."""
        for window in np.unique(self._windows).tolist():
            if window <= len(self._slots):
                for users, charges in self._slots[-window]:
                    gone = self._windows[users] == window
                    self._here[users[gone]] -= charges[gone]
        self._slots.append([])
        if len(self._slots) > self._users.classes.longest:
            self._slots.popleft()

    def add(self, ask: Ask) -> None:
        """Add an ask of this slot."""
        charges = ask.epsilons[self._users.class_of[ask.users]]
        self._here[ask.users] += charges
        self._slots[-1].append((ask.users, charges))
        if ask.users.size:
            full = (self._here[ask.users] / self._budgets[ask.users]).max()
            self.fullest = max(self.fullest, float(full))
