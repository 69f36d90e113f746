"""Budget ledgers that book what a publication really cost, which is less than it was offered.

They are schedules (`schedule.py`) whose `commit` takes the cost from the offer that it is given:
replace its `publication` by what was paid, at most what was offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.accounting.schedule import FixedBudgets, Offer
from streamveil.mechanisms.accounting.window_sums import Sums, WindowSums
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.wevent.pba import PBA, AbsorptionState


class Shares(PBA):
    """PBA's ledger: a publication takes the whole shares that hold its cost, one or more.

    Guarantee: as PBA's, which nowhere needs that a publication takes all shares it was offered.
    """

    def commit(self, state: AbsorptionState, offer: Offer, published: bool) -> AbsorptionState:
        """Remember a publication's shares; otherwise only time passes."""
        if not published:
            return super().commit(state, offer, published)
        taken = -(-offer.publication // np.maximum(self.share, 1))
        return AbsorptionState(np.maximum(taken, 1))


@dataclass
class SlidingState:
    """What publications cost in reach of the windows, and what is saved up: public."""

    spent: Sums
    saved: Units
    """What the next slot may spend if the window has room, shape (K,)."""


class Sliding(FixedBudgets):
    """One share for every slot since the last publication, as far as the window has room.

    Guarantee: the dissimilarity takes at most E / (2 w) a slot, so E / 2 a window; an offer is at
    most E / 2 less what the previous w - 1 slots cost.
    """

    SCHEMAS = {
        1: state_codec.record_schema("Sliding", spent=WindowSums.SCHEMA, saved=state_codec.LONGS)
    }

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        super().__init__(requirements)
        self._sums = WindowSums(self.windows)

    def start(self) -> SlidingState:
        """Nothing published yet."""
        return SlidingState(self._sums.start(), self.share)

    def offer(self, state: SlidingState) -> Offer:
        """What is saved up, within the room of the window."""
        room = self.publication_cap - state.spent.recent
        return Offer(self.share, np.minimum(state.saved, room), nullified=False)

    def commit(self, state: SlidingState, offer: Offer, published: bool) -> SlidingState:
        """Enter the slot's cost into the window, and save the next slot's share."""
        cost = offer.publication * int(published)
        kept = self._left(state.saved, cost) if published else state.saved
        saved = np.minimum(kept + self.share, self.share * self.windows)
        return SlidingState(self._sums.add(state.spent, cost), saved)

    def _left(self, saved: Units, cost: Units) -> Units:
        """What stays saved after a publication."""
        return np.zeros_like(saved)

    def encode(self, state: SlidingState) -> bytes:
        """Bytes of the state."""
        record = {"spent": self._sums.record(state.spent), "saved": state.saved.tolist()}
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> SlidingState:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        state_codec.check_length(record["saved"], len(self.requirements), "classes of users")
        saved = np.array(record["saved"], dtype=np.int64)
        return SlidingState(self._sums.read(record["spent"]), saved)


class Saving(Sliding):
    """The same, but what a publication was offered and did not cost stays saved.

    Guarantee: as that of `Sliding`, which is about the room of the window alone.
    """

    def _left(self, saved: Units, cost: Units) -> Units:
        return saved - cost
