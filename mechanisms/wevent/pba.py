"""Personalized budget absorption (PBA).

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 5.

BA is PBA when everybody asks for the strictest requirement, E = min E_i and w = max w_i: nobody is
sampled, most budgets are wasted. That implies everybody's own. Source: Kellaris et al.,
"Differentially private event sequences over infinite streams" (2014); here as the baseline of Du et
al., Section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.accounting.schedule import FixedBudgets, Offer
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units


@dataclass
class AbsorptionState:
    """When the last publication was and how many shares it took."""

    shares: Units
    """Whole shares E / (2 w) that the last publication took from each class, shape (K,); 1 before
    the first publication."""
    since: int = 1
    """Slots from the last publication to the next slot; before the first publication, from the
    slot before the stream began."""


class PBA(FixedBudgets):
    """A publication absorbs the shares of skipped slots before it and nullifies slots after it.

    Guarantee: the dissimilarity takes E / (2 w) a slot, so E / 2 a window. A publication that
    takes k shares, k <= w, is made k slots after the slots the last one paid with, and is followed
    by k - 1 slots that must repeat it: any w slots pay at most w shares, E / 2. Shares are counted
    as integers.
    """

    SCHEMAS = {1: state_codec.record_schema("Absorption", since="long", shares=state_codec.LONGS)}

    def start(self) -> AbsorptionState:
        """Nothing published yet."""
        return AbsorptionState(np.ones(len(self.requirements), dtype=np.int64))

    def offer(self, state: AbsorptionState) -> Offer:
        """The shares absorbed since the last publication, or nothing in a nullified slot."""
        nullifies = state.shares - 1
        if state.since <= nullifies.max():
            return Offer(self.share, np.zeros_like(self.share), nullified=True)
        absorbed = self._absorbed(state)
        return Offer(self.share, absorbed * self.share, nullified=False)

    def _absorbed(self, state: AbsorptionState) -> Units:
        nullifies = state.shares - 1
        return np.minimum(np.maximum(state.since - nullifies, 0), self.windows)

    def commit(self, state: AbsorptionState, offer: Offer, published: bool) -> AbsorptionState:
        """Remember a publication's shares; otherwise only time passes."""
        if published:
            return AbsorptionState(self._absorbed(state))
        return AbsorptionState(state.shares, state.since + 1)

    def encode(self, state: AbsorptionState) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(
            self.SCHEMAS, {"since": state.since, "shares": state.shares.tolist()}
        )

    def decode(self, data: bytes) -> AbsorptionState:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        state_codec.check_length(record["shares"], len(self.requirements), "classes of users")
        return AbsorptionState(np.array(record["shares"], dtype=np.int64), record["since"])
