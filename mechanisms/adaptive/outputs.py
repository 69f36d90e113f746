"""What leaves a slot of the adaptive mechanism: its release, and earlier ones revised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.cycle import Cycle, CyclicBank
from streamveil.mechanisms.adaptive.filter_bank import Bank, Observed
from streamveil.mechanisms.adaptive.gap_errors import SUM
from streamveil.mechanisms.adaptive.kalman import TRENDING, WHITE
from streamveil.mechanisms.adaptive.slot import Bill, Slot
from streamveil.mechanisms.adaptive.state import AdaptiveState
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED, Revised
from streamveil.mechanisms.protocol import SlotRelease

# Variance of rounding to whole counts.
ROUNDING = 1 / 12


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
    if seen:
        status, mean = PUBLISHED, seen[-1].mean
        variance = state.misfit.after(seen[-1], forecast)
    elif state.published_slot is None:  # nothing is known before a release
        mean = np.zeros_like(forecast.mean)
        status, variance = SKIPPED, np.full_like(mean, np.nan)
    else:
        status, mean = PREDICTED, forecast.mean
        variance = state.misfit.of(forecast)
    most = int(terms.crowd.sizes.sum()) * terms.crowd.sensitivity
    doubt = terms.correlation.doubt(state.correlation, forecast.scale, state.dispersion)
    if state.ring:
        state.ring.passed(here.slot, most, doubt)
    variance, share = variance + doubt, 1.0
    if status != SKIPPED:
        mean, variance, share = state.shrinkage.shrunk(mean, variance)
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
    weights = levels.weights(state.bank)
    while ring is not None and ring.next_slot <= until:
        slot, known = ring.revise(weights, scale)
        bank = cycle.over(state.cycle, levels, slot, 1) if cycle else levels
        if isinstance(bank, CyclicBank):
            known = bank.of_level(known)
        mean, variance = known.mean, state.misfit.of(known) + ring.doubt
        if state.published_slot is None:
            mean, variance = np.zeros_like(mean), np.full_like(mean, np.nan)
        else:
            mean, variance, _ = state.shrinkage.shrunk(mean, variance)
        counts = np.rint(np.clip(mean, 0, ring.most)).astype(np.int64)
        yield Revised(slot, counts, np.sqrt(variance + ROUNDING))


def _diagnostics(state: AdaptiveState, terms: Terms, surprise: float) -> dict[str, float]:
    beliefs = terms.bank.beliefs(state.bank)
    beta, _ = terms.correlation.belief(state.correlation)
    return {
        "gap": float(state.gap),
        "sum": float(state.kind == SUM),
        "alert": state.alert,
        "surprise": surprise,
        "trend": float(beliefs @ TRENDING[:, 0]),
        "white": float(beliefs @ WHITE[:, 0]),
        "correlation": float(np.sqrt(np.mean(beta**2))),
    }
