"""The gate: a private look at how far a slot is from its forecast."""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.adaptive.budget_plan import choices
from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.adaptive.gap_errors import SUM
from streamveil.mechanisms.adaptive.slot import Slot
from streamveil.mechanisms.adaptive.state import AdaptiveState
from streamveil.mechanisms.adaptive.weighting import Weighting
from streamveil.mechanisms.core.budgets import Units, to_epsilon

# An alarm is a deviation so many noise scales and standard deviations above the expected one.
ALARM = 3.0
# A jump of so many noise scales of the gate is one that it would show.
LEAP = 2.4
# What a look compares with is an integer of 64 bits on every machine.
MOST_EXPECTED = 2.0**61


def look(state: AdaptiveState, here: Slot, offers: Units) -> tuple[Units, float]:
    """Look how far the slot is from the forecast.

    Returns:
        (units spent, shape (K,); surprise in noise scales above what is usual).
    """
    terms, forecast = here.terms, here.forecast
    found = choices(offers, terms.crowd, terms.assume_independent)
    if not found.thresholds.size:
        return np.zeros_like(offers), 0.0
    scale = state.bank.scale
    weighting = Weighting.at(found.best(float(scale.mean()), here.risk), offers, terms.crowd)
    dispersion = weighting.dispersion
    bias, doubt = terms.correlation.bias(state.correlation, scale, dispersion)
    expected = np.clip((forecast.mean + bias) / weighting.factor, -MOST_EXPECTED, MOST_EXPECTED)
    target = np.rint(expected).astype(np.int64)
    distance = np.abs(weighting.weights @ here.counts - target).sum(keepdims=True)
    noisy = weighting.add_noise(distance, here.noise, "gate", target.tobytes())
    deviation = float(noisy[0]) * weighting.factor
    spread = np.sqrt(forecast.variance + forecast.white + dispersion * scale + doubt)
    usual = np.sqrt(2 / np.pi) * spread.sum()
    # Counts of a complete histogram add up: one of them is known from the others.
    freedom = len(spread) / np.sqrt(max(len(spread) - 1, 1))
    varies = 3 * np.sqrt(1 - 2 / np.pi) * spread.mean() * freedom
    noise_scale = weighting.factor / float(to_epsilon(weighting.unit))
    return weighting.spent, float((deviation - usual - varies) / noise_scale)


def leapt(state: AdaptiveState, here: Slot, seen: list[Observed], kind: int) -> bool:
    """Whether a jump was of a size that a look with all of the gate's share would show."""
    terms, last = here.terms, seen[-1]
    found = choices(terms.rates.gate, terms.crowd, terms.assume_independent)
    if not found.thresholds.size:
        return False
    noise_scale = float(np.sqrt(found.noise.min() / 2)) * state.alert
    jumped = np.any([one.jumped for one in seen], axis=0)
    size = float(np.abs(last.mean - here.forecast.mean)[jumped].sum())
    if kind == SUM:  # half of it happened before, on average
        size *= 2
    return size > LEAP * noise_scale
