"""Other bins for a running stream of the adaptive mechanism, for example for discovered keys.

Guarantee: that of `fixed.py`, over windows with any number of changes.
Sensitivity: a user makes at most D contributions to a slot, whatever its bins are. From its first
slot on, a new bin gets events that another bin would have got, and from its end on, another bin
gets the events of a bin that left. So the histogram of each slot has the same sensitivity as
without changes. The same holds for each sum over slots, because a sum contains only slots after the
last change.
Proof: the bins of a slot are a function of what was published before the slot. So everything that
is measured in the slot is a function of its counts with this sensitivity. The accounts of spent
budget do not depend on the bins. The beliefs are functions of what was published, and the beliefs
about new bins are constants. To drop those about a bin that left is post-processing, too: which bin
leaves was decided by what was published. With other bins, a total may be followed instead of
measured, or the other way round (`fixed.py`). Each slot is charged by the sensitivity of its own
histogram. If bins change during a sum over slots, this sum is never published, and its charges
remain.
The first release after the change is in the first slot with new bins, if the budget allows it.
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
    """The state with other bins.

    Args:
        state: after the last slot with the earlier bins, without revisions.
        fresh: a state without releases, of the mechanism with the other bins.
        origin: see :meth:`streamveil.mechanisms.protocol.Growing.grown`.
        at_once: whether every window is one slot long, so that each gap ends with a sum.
    """
    if not state.slots:
        fresh.accounts = state.accounts
        return fresh
    bank = _carried(state.bank, fresh.bank, _BANK, origin)
    correlation = _carried(state.correlation, fresh.correlation, _CORRELATION, origin)
    misfit = _carried(state.misfit, fresh.misfit, _MISFIT, origin)
    if not (state.cycle.candidates and fresh.cycle.candidates):
        state.cycle = fresh.cycle  # a few bins may be too few to look for one
    else:
        state.cycle.depths = _carried(state.cycle.depths, fresh.cycle.depths, _DEPTHS, origin)
    factor = fresh.factor
    if factor and state.factor:
        loadings = _carried(state.factor.loadings, factor.loadings, _LOADINGS, origin)
        # The weeks of all bins are learnt anew: means and variances of new bins have no start.
        factor = replace(state.factor, loadings=loadings, phases=factor.phases, released=None)
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
    """The earlier state, in which new bins have the values of a fresh state."""
    made = {name: carried(getattr(fresh, name), getattr(before, name), origin) for name in names}
    return replace(before, **made)
