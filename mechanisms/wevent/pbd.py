"""Personalized budget distribution (PBD).

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 4.

BD is PBD when everybody asks for the strictest requirement, E = min E_i and w = max w_i: nobody is
sampled, most budgets are wasted. That implies everybody's own. Source: Kellaris et al.,
"Differentially private event sequences over infinite streams" (2014); here as the baseline of Du et
al., Section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamveil.mechanisms.accounting.schedule import FixedBudgets, Offer
from streamveil.mechanisms.accounting.window_sums import Sums, WindowSums
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.records import Requirement


class PBD(FixedBudgets):
    """Every publication gets half of what its window has left.

    Guarantee: the dissimilarity takes E / (2 w) a slot, so E / 2 a window; a publication takes
    half of E / 2 less what the previous w - 1 slots took, so a window never takes more than E / 2.

    Prefer PBA where the stream changes slowly, BD only to compare.
    """

    SCHEMAS = {1: {**WindowSums.SCHEMA, "name": "Distribution"}}

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        super().__init__(requirements)
        self._sums = WindowSums(self.windows)

    def start(self) -> Sums:
        """Nothing published yet."""
        return self._sums.start()

    def offer(self, state: Sums) -> Offer:
        """Half of what is left of the publication budget."""
        return Offer(self.share, (self.publication_cap - state.recent) // 2, nullified=False)

    def commit(self, state: Sums, offer: Offer, published: bool) -> Sums:
        """Enter this slot into the window; the slot w - 1 back leaves it."""
        return self._sums.add(state, offer.publication * int(published))

    def encode(self, state: Sums) -> bytes:
        """Bytes of the state: the slots in reach, unpublished runs written once."""
        return state_codec.pack(self.SCHEMAS, self._sums.record(state))

    def decode(self, data: bytes) -> Sums:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        return self._sums.read(record)
