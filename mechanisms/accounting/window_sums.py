"""Sums over sliding windows of different lengths, one for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units


@dataclass
class Sums:
    """Amounts of the slots that a window can still reach."""

    ring: Units
    """Amounts of slot s at row s % W, W the longest window: shape (W, K)."""
    recent: Units
    """Sum over the previous w_k - 1 slots of each class, shape (K,)."""
    slots: int = 0
    """Slots added so far."""


class WindowSums:
    """What each class spent in the w_k - 1 slots before the next one."""

    SCHEMA = state_codec.record_schema("WindowSums", slots="long", rows=state_codec.RUNS)

    def __init__(self, windows: npt.NDArray[np.int64]) -> None:
        self._windows = windows
        self._depth = int(windows.max())
        self._leaving = np.arange(len(windows)) - len(windows) * windows
        """Places in the ring, as one row, of what leaves each window before slot 0: shape (K,)."""

    def start(self) -> Sums:
        """Nothing spent yet."""
        shape = (self._depth, len(self._windows))
        return Sums(np.zeros(shape, np.int64), np.zeros(shape[1], np.int64))

    def add(self, sums: Sums, amounts: Units) -> Sums:
        """Add the next slot's amounts, shape (K,)."""
        sums.ring[sums.slots % self._depth] = amounts
        next_row = (sums.slots + 1) * len(self._windows)
        leaving = sums.ring.take((next_row + self._leaving) % sums.ring.size)
        return Sums(sums.ring, sums.recent + amounts - leaving, sums.slots + 1)

    def record(self, sums: Sums) -> dict[str, Any]:
        """Avro record of the sums; equal neighbouring slots are written once."""
        depth = min(sums.slots, self._depth)
        rows = sums.ring[np.arange(sums.slots - depth, sums.slots) % self._depth]
        return {"slots": sums.slots, "rows": state_codec.runs_of(rows)}

    def read(self, record: dict[str, Any]) -> Sums:
        """Sums of a record, added up anew. Raises ConfigurationError for another window."""
        rows = state_codec.rows_of(record["rows"], len(self._windows))
        sums = self.start()
        sums.slots = record["slots"]
        state_codec.check_length(rows, min(sums.slots, self._depth), "slots of spending")
        sums.ring[np.arange(sums.slots - len(rows), sums.slots) % self._depth] = rows
        for k, window in enumerate(self._windows.tolist()):
            sums.recent[k] = rows[max(len(rows) - window + 1, 0) :, k].sum()
        return sums
