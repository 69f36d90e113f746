"""Personalized budget distribution (PBD).

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.budgets import Units
from streamveil.mechanisms.schedule import FixedBudgets, Offer


@dataclass
class DistributionState:
    """Publication budget of the slots that a window can still reach."""

    ring: Units
    """Publication budget of slot s at row s % W, W the longest window: shape (W, K)."""
    recent: Units
    """Publication budget spent in the previous w_k - 1 slots of each class, shape (K,)."""
    slots: int = 0
    """Slots committed so far."""


class PBD(FixedBudgets):
    """Every publication gets half of what its window has left.

    Guarantee: the dissimilarity takes E / (2 w) a slot, so E / 2 a window; a publication takes
    half of E / 2 less what the previous w - 1 slots took, so a window never takes more than E / 2.

    Prefer PBA where the stream changes slowly, BD only to compare.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "Distribution",
            "fields": [
                {"name": "slots", "type": "long"},
                {"name": "rows", "type": state_bytes.RUNS},
            ],
        }
    }

    def start(self) -> DistributionState:
        """Nothing published yet."""
        shape = (int(self.windows.max()), len(self.requirements))
        return DistributionState(np.zeros(shape, np.int64), np.zeros(shape[1], np.int64))

    def offer(self, state: DistributionState) -> Offer:
        """Half of what is left of the publication budget."""
        return Offer(self.share, (self.publication_cap - state.recent) // 2, nullified=False)

    def commit(self, state: DistributionState, offer: Offer, published: bool) -> DistributionState:
        """Enter this slot into the window; the slot w - 1 back leaves it."""
        depth = len(state.ring)
        amounts = offer.publication if published else np.zeros_like(offer.publication)
        state.ring[state.slots % depth] = amounts
        leaving = state.ring[(state.slots + 1 - self.windows) % depth, np.arange(len(self.windows))]
        return DistributionState(state.ring, state.recent + amounts - leaving, state.slots + 1)

    def encode(self, state: DistributionState) -> bytes:
        """Bytes of the state: the slots in reach, unpublished runs written once."""
        depth = min(state.slots, len(state.ring))
        rows = state.ring[np.arange(state.slots - depth, state.slots) % len(state.ring)]
        return state_bytes.pack(
            self.SCHEMAS, {"slots": state.slots, "rows": state_bytes.runs_of(rows)}
        )

    def decode(self, data: bytes) -> DistributionState:
        """State of bytes."""
        _, record = state_bytes.unpack(self.SCHEMAS, data)
        rows = state_bytes.rows_of(record["rows"], len(self.requirements))
        state = self.start()
        state.slots = record["slots"]
        state.ring[np.arange(state.slots - len(rows), state.slots) % len(state.ring)] = rows
        for k, window in enumerate(self.windows):
            state.recent[k] = rows[len(rows) - min(len(rows), window - 1) :, k].sum()
        return state
