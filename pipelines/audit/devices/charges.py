"""Charges of every device in every window, added up anew from whom was asked for what."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.local.protocol import Ask, Users


class DeviceCharges:
    """Of slots in order, in whole units."""

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
