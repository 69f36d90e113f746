"""What leaves a slot of the adaptive mechanism: its release, and earlier ones revised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.cycle import Cycle
from streamveil.mechanisms.adaptive.filter_bank import Bank, Observed
from streamveil.mechanisms.adaptive.gap_errors import POINT, SUM
from streamveil.mechanisms.adaptive.kalman import TRENDING, WHITE
from streamveil.mechanisms.adaptive.slot import Bill, Slot
from streamveil.mechanisms.adaptive.state import AdaptiveState
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED, Revised
from streamveil.mechanisms.protocol import SlotRelease

# Variance of rounding to whole counts.
ROUNDING = 1 / 12
# More than any count, where others may join.
UNBOUNDED = 1 << 62


def told(
    state: AdaptiveState,
    here: Slot,
    seen: list[Observed],
    bill: Bill,
    surprise: float,
    jumped: bool,
) -> SlotRelease:
    """What leaves: the last observation of the slot, or the forecast."""
    forecast, terms = here.forecast, here.terms
    every = _every(state)
    if seen:
        status, mean = PUBLISHED, seen[-1].mean
        variance = state.misfit.after(seen[-1], forecast, every)
        error = np.maximum(seen[-1].variance - forecast.white, 0.0)
    elif state.published_slot is None:  # nothing is known before a release
        mean = np.zeros_like(forecast.mean)
        status, variance, error = SKIPPED, np.full_like(mean, np.nan), forecast.variance
    else:
        status, mean = PREDICTED, forecast.mean
        variance, error = state.misfit.of(forecast, every), forecast.variance
    most = int(terms.crowd.sizes.sum()) * terms.crowd.sensitivity
    if terms.crowd.joined:
        most = UNBOUNDED
    # Before the first release the scale was a guess, and beliefs in bias follow the new one.
    scale = state.bank.scale if state.slots == 1 else forecast.scale
    doubt = terms.correlation.doubt(state.correlation, scale, state.dispersion)
    if state.ring:
        state.ring.passed(here.slot, most, doubt)
    variance, error, share = variance + doubt, error + doubt, 1.0
    if status != SKIPPED:
        mean, variance, share = state.shrinkage.shrunk(mean, variance, error)
    return SlotRelease(
        np.rint(np.clip(mean, 0, most)).astype(np.int64),
        status,
        state.published_slot,
        state.epsilon,
        np.sqrt(variance + ROUNDING),
        spent=bill.main + bill.reserve + bill.audit,
        alarm=jumped,
        diagnostics=_diagnostics(state, terms, surprise) | {"believed": share},
    )


def revised(state: AdaptiveState, cycle: Cycle | None, until: int) -> Iterator[Revised]:
    """Revise all slots up to one that have not been."""
    ring, scale = state.ring, state.bank.scale.astype(np.float64)
    levels = Bank(1.0, len(scale))
    weights, every = levels.weights(state.bank), _every(state)
    while ring is not None and ring.next_slot <= until:
        slot, known = ring.revise(weights, scale)
        bank = cycle.over(state.cycle, levels, slot, 1) if cycle else levels
        known = bank.of_level(known)
        mean, variance = known.mean, state.misfit.of(known, every) + ring.doubt
        if state.published_slot is None:
            mean, variance = np.zeros_like(mean), np.full_like(mean, np.nan)
        else:
            error = known.variance + ring.doubt
            mean, variance, _ = state.shrinkage.shrunk(mean, variance, error)
        counts = np.rint(np.clip(mean, 0, ring.most)).astype(np.int64)
        yield Revised(slot, counts, np.sqrt(variance + ROUNDING))


def _every(state: AdaptiveState) -> bool:
    """Whether every slot is released."""
    return state.kind == POINT and state.gap == 1


def _diagnostics(state: AdaptiveState, terms: Terms, surprise: float) -> dict[str, float]:
    beliefs = terms.bank.beliefs(state.bank)
    beta, _ = terms.correlation.belief(state.correlation, state.bank.scale)
    chosen = state.cycle.chosen
    found = {"cycle": float(chosen.length if chosen else 0)} if state.cycle.candidates else {}
    return {
        **found,
        "gap": float(state.gap),
        "sum": float(state.kind == SUM),
        "alert": state.alert,
        "surprise": surprise,
        "trend": float(beliefs @ TRENDING[:, 0]),
        "white": float(beliefs @ WHITE[:, 0]),
        "correlation": float(np.sqrt(np.mean(beta**2))),
    }
