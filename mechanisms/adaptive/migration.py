"""Continue a stream of fixed requirements as one whose requirements may change.

The fixed ledgers remember what every slot of the longest window spent. This is entered, slot by
slot, into ledgers that follow changes, as if these had existed from the start. So no requirement is
forgotten and nothing is charged twice. A mechanism can be continued if it is both in `MECHANISMS`
and in `DYNAMIC_MECHANISMS`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.changing import DynamicAdaptive
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.driver.dynamic_stream import DynamicState, DynamicStream
from streamveil.mechanisms.driver.stream import ReleaseStream, StreamState
from streamveil.mechanisms.randomness.noise import digest

_GOES_ON = b"requirements may change from here on"


def migrated(fixed: ReleaseStream, state: StreamState, stream: DynamicStream) -> DynamicState:
    """The state of `stream` that continues the state of `fixed`.

    Every class becomes a ledger with the same requirement and the same past. If the horizon is
    longer than the longest window of the classes, slots before that window are not remembered. Each
    class is assumed to have spent its full budget in them. This only matters to users who request a
    longer window than any user had before.

    Args:
        fixed: what released the slots so far.
        state: its state.
        stream: what releases the next slot, over the same classes.

    Raises:
        TypeError: for a mechanism that cannot be continued.
    """
    before, after = fixed.mechanism, stream.mechanism
    if not isinstance(before, Adaptive) or not isinstance(after, DynamicAdaptive):
        raise TypeError(f"{after.name} cannot go on where {before.name} stood")
    begun = stream.start()
    asked = begun.interned.asked
    spent = _last_rows(state.filter.ring, state.filter.slots)
    forgotten = min(state.filter.slots, stream.setting.horizon) - len(spent)
    windows, caps = asked[:, 2], asked[:, 3]
    unknown = -(-forgotten // windows) * caps
    for amounts in spent:
        begun.filter.charge(amounts, asked)
    begun.filter.assume(unknown)
    return DynamicState(
        begun.interned,
        after.taken_over(before, state.mechanism, spent, unknown),
        begun.filter,
        digest(state.history, begun.history, _GOES_ON),
        state.next_slot,
    )


def _last_rows(ring: Units, slots: int) -> npt.NDArray[np.int64]:
    """What is remembered of the last slots, oldest first."""
    kept = min(slots, len(ring))
    rows: npt.NDArray[np.int64] = ring[np.arange(slots - kept, slots) % len(ring)]
    return rows
