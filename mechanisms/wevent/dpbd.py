"""Dynamic personalized budget distribution (DPBD): PBD under requirements that change.

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 6.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.open_windows import OpenWindows, Windows
from streamveil.mechanisms.accounting.schedule import Offer
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units

DISSIMILARITY, PUBLICATION = 0, 1


class DPBD:
    """Every publication gets half of what the tightest open window has left.

    Guarantee: half of every forward budget is for dissimilarities, which take at most
    E_F / (2 w_F) a slot of every window that is open, half for publications, which never take
    more than any open window has left. Backward budgets are halved alike. If the past has broken
    a half already, it offers nothing until the window has passed (`Offer.infeasible`); the other
    half may then still be open, so `Offer.limit` says what keeps both together within E_B.
    Under constant requirements (w, E, w, E) this is PBD.

    Args:
        horizon: the longest window, in slots.
    """

    SCHEMAS = {1: state_codec.record_schema("Dynamic", **OpenWindows.FIELDS)}

    def __init__(self, horizon: int) -> None:
        self.windows = OpenWindows(horizon, parts=2, rates=1)

    def start(self, ledgers: int = 0) -> Windows:
        """Nothing published yet."""
        return self.windows.start(ledgers)

    def regroup(self, state: Windows, parents: npt.NDArray[np.int64]) -> Windows:
        """Fork, merge and drop ledgers."""
        return self.windows.regroup(state, parents)

    def canonical(self, state: Windows, ledgers: npt.NDArray[np.int64]) -> Units:
        """All that the future of some ledgers depends on, shape (A, S)."""
        return self.windows.canonical(state, ledgers)

    def offer(self, state: Windows, asked: Units) -> Offer:
        """Begin the next slot, which changes `state`; `asked` as in `cohorts.Moves`, (L, 4)."""
        back, back_cap, ahead, ahead_cap = asked.T
        half = ahead_cap // 2
        share = ahead_cap // (2 * np.maximum(ahead, 1))
        self.windows.open(state, ahead, np.stack([half, half]), share[None])
        past = self.windows.past(state, back)
        room = back_cap // 2 - past
        publication, nullified = self._publication(state, ahead > 0)
        return Offer(
            np.clip(self.windows.rate(state, 0), 0, np.maximum(room[DISSIMILARITY], 0)),
            np.clip(publication, 0, np.maximum(room[PUBLICATION], 0)),
            nullified,
            np.maximum(back_cap - past.sum(axis=0), 0),
            (room < -self.windows.horizon).any(axis=0),  # less is rounding
        )

    def _publication(self, state: Windows, asking: npt.NDArray[np.bool_]) -> tuple[Units, bool]:
        """What the open windows offer a publication, shape (L,), and whether it is nullified.

        `asking` tells the ledgers of users who have not left, shape (L,).
        """
        return self.windows.left(state, PUBLICATION) // 2, False

    def commit(self, state: Windows, offer: Offer, published: bool) -> Windows:
        """Enter this slot into all windows."""
        self.windows.close(
            state, np.stack([offer.dissimilarity, offer.publication * int(published)])
        )
        return state

    def encode(self, state: Windows) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(self.SCHEMAS, self.windows.record(state))

    def decode(self, data: bytes) -> Windows:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        return self.windows.read(record)
