"""Projection on the simplex: the nearest frequencies that are possible. Post-processing.

Source: Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient projections onto the l1-ball for
learning in high dimensions" (2008), Figure 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def on_simplex(frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The point nearest to `frequencies` that has no negative entry and adds up to 1: shape (d,).

    It is max(f_j - shift, 0) for the one shift that makes it add up to 1.
    """
    falling = np.sort(frequencies)[::-1]
    falling = falling - falling[0]  # a shift of all changes nothing, and these sums round least
    shifts = (np.cumsum(falling) - 1) / np.arange(1, len(falling) + 1)
    last = np.flatnonzero(falling > shifts)[-1]
    projected: npt.NDArray[np.float64] = np.maximum(
        frequencies - frequencies.max() - shifts[last], 0
    )
    return projected
