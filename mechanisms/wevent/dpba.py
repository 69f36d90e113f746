"""Dynamic personalized budget absorption (DPBA): absorption under requirements that change.

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 7. Its
Example 7 prints 0.6 for the third user at slot 3, which overspends: it is 0.4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.open_windows import NO_LIMIT, Windows
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.wevent.dpbd import DPBD, PUBLICATION


class DPBA(DPBD):
    """A publication absorbs what an open window has saved up; what it overdraws nullifies.

    The window that slot u opened saves a share E_F / (2 w_F) in every slot from u on, and every
    publication since is taken off. A publication may take the most that any open window has
    saved, within what all of them have left; a slot is nullified as long as some open window of
    some user has nothing saved.

    Guarantee: DPBD's; what is saved decides only how the same halves are spread.
    Under constant requirements this is not PBA, which counts whole shares of one window.
    """

    def _publication(self, state: Windows, asking: npt.NDArray[np.bool_]) -> tuple[Units, bool]:
        horizon = self.windows.horizon
        age = (state.slots - np.arange(horizon)) % horizon + 1
        # Arithmetic does without the branches of a mask: of closed windows the rate is NO_LIMIT,
        # one bit above those of all rates.
        closed = state.rates[0] & NO_LIMIT
        saved = (state.rates[0] ^ closed) * age[:, None]
        saved += state.before[PUBLICATION]
        least = (saved + closed).min(axis=0) - state.total[PUBLICATION]
        most = (saved - closed).max(axis=0) - state.total[PUBLICATION]
        # Shares are rounded down to units: so little above 0 is 0.
        dust = np.minimum(horizon, self.windows.rate(state, 0) // 2)
        nullified = bool((asking & (least <= dust)).any())
        left = self.windows.left(state, PUBLICATION)
        return np.zeros_like(left) if nullified else np.minimum(most, left), nullified
