"""The gate: a private test of how far a slot is from its forecast, called a look in the code."""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.adaptive.gap_errors import SUM
from streamveil.mechanisms.adaptive.jumps import VARIES
from streamveil.mechanisms.adaptive.slot import Slot
from streamveil.mechanisms.adaptive.state import AdaptiveState
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import Units, to_epsilon

# Forecasts are limited to this size, so that they fit 64-bit integers on every machine.
MOST_EXPECTED = 2.0**61


def look(state: AdaptiveState, here: Slot, offers: Units) -> tuple[Units, float]:
    """Look how far the slot is from the forecast.

    Returns:
        (units spent, shape (K,); surprise, in noise scales above the usual distance).
    """
    terms, forecast = here.terms, here.forecast
    possible = terms.choices(offers)
    if not possible.thresholds.size:
        return np.zeros_like(offers), 0.0
    scale, typical = state.bank.scale, terms.bank.mixture(state.bank).typical
    weighting = terms.weighting(possible.best(typical, here.risk), offers)
    dispersion, factor = weighting.dispersion, weighting.factor
    bias, doubt = terms.correlation.bias(state.correlation, scale, dispersion)
    expected = np.maximum((forecast.mean + bias) / factor, -MOST_EXPECTED)
    target = np.rint(np.minimum(expected, MOST_EXPECTED)).astype(np.int64)
    distance = np.abs(weighting.weights @ here.counts - target).sum(keepdims=True)
    noisy = weighting.add_noise(distance, here.noise, "gate", target.tobytes())
    deviation = float(noisy[0]) * factor
    spread = np.sqrt(forecast.variance + forecast.white + dispersion * scale + doubt)
    usual = np.sqrt(2 / np.pi) * spread.sum()
    varies = VARIES * varying(spread)
    blur = factor / float(to_epsilon(weighting.unit))
    return weighting.spent, float((deviation - usual - varies) / blur)


def varying(spread: Floats) -> float:
    """Standard deviation of the sum of deviations that have these standard deviations."""
    # Counts of a complete histogram add up: one of them is known from the others.
    freedom = len(spread) / np.sqrt(max(len(spread) - 1, 1))
    return float(np.sqrt(1 - 2 / np.pi) * (spread.sum() / len(spread)) * freedom)


def noise_scale(terms: Terms) -> float:
    """Noise scale of a look with the gate's full share of one slot, inf if it has none."""
    possible = terms.plan.looks(1)
    if not possible.thresholds.size:
        return np.inf
    return float(np.sqrt(possible.noise.min() / 2)) * terms.rates.alert


def moved(here: Slot, seen: list[Observed], kind: int) -> Floats:
    """How far the counts of each bin jumped, shape (d,)."""
    jumped = np.any([observed.jumped for observed in seen], axis=0)
    change: Floats = np.where(jumped, seen[-1].mean - here.forecast.mean, 0.0)
    # Half of it happened before a sum ended, on average.
    return 2 * change if kind == SUM else change
