"""More bins for a stream of the adaptive mechanism that has begun, such as keys that were found.

Guarantee: that of `fixed.py`, over windows with any number of changes.
Sensitivity: a user adds at most D contributions to a slot, whatever its bins are: a new bin takes
events that another bin had before, and takes them from its first slot on. So the histogram of each
slot has the sensitivity that it has without changes, and so has each sum over slots, which begins
after the last change.
Proof: which bins a slot has is known before it from what was published. So everything that is
measured of the slot is a function of its counts with this sensitivity, and what it is charged stays
in the accounts, which do not know of bins. Beliefs are functions of what was published, and those
about new bins are constants. A sum that the change cuts is never published, so it may as well not
exist, and its charges stay.
The first release after the change is due in its first slot, if the accounts allow for one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamveil.mechanisms.adaptive.gap_errors import POINT, SUM
from streamveil.mechanisms.adaptive.state import AdaptiveState
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.protocol import carried

_BANK = ("level", "level_var", "slope", "slope_var", "correlation", "scores", "scale")
_CORRELATION = ("mean", "deviation")
_MISFIT = ("own", "own_variance", "usual")
_DEPTHS = ("mean", "variance")
_LOADINGS = ("information", "product", "of_level")


def grown(
    state: AdaptiveState, fresh: AdaptiveState, origin: Integers, *, at_once: bool
) -> AdaptiveState:
    """The state with more bins.

    Args:
        state: after the last slot with fewer bins, without revisions.
        fresh: nothing released yet, of the mechanism with more bins.
        origin: see :meth:`streamveil.mechanisms.protocol.Growing.grown`.
        at_once: whether every window is one slot, so that each gap ends with a sum.
    """
    if not state.slots:
        fresh.accounts = state.accounts
        return fresh
    bank = _carried(state.bank, fresh.bank, _BANK, origin)
    correlation = _carried(state.correlation, fresh.correlation, _CORRELATION, origin)
    misfit = _carried(state.misfit, fresh.misfit, _MISFIT, origin)
    if len(state.cycle.depths.mean):
        state.cycle.depths = _carried(state.cycle.depths, fresh.cycle.depths, _DEPTHS, origin)
    factor = fresh.factor
    if factor and state.factor:
        loadings = _carried(state.factor.loadings, factor.loadings, _LOADINGS, origin)
        factor = replace(state.factor, loadings=loadings, released=None)
    elif factor:
        factor.total.round()  # as it is saved
    return replace(
        state,
        bank=bank,
        correlation=correlation,
        misfit=misfit,
        factor=factor,
        running=None,
        since=1 if state.running else state.since,
        gap=1,
        kind=SUM if at_once else POINT,
        begun=None,
        watching=None,
        foretold=None,
    )


def _carried(before: Any, fresh: Any, names: tuple[str, ...], origin: Integers) -> Any:
    """The state before, in which new bins have what a fresh one has."""
    made = {name: carried(getattr(fresh, name), getattr(before, name), origin) for name in names}
    return replace(before, **made)
