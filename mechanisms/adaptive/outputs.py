"""The outputs of a slot of the adaptive mechanism: its release, and revisions of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.cycle import Cycle
from streamveil.mechanisms.adaptive.filter_bank import Bank, Observed
from streamveil.mechanisms.adaptive.gap_errors import POINT, SUM
from streamveil.mechanisms.adaptive.kalman import Forecast
from streamveil.mechanisms.adaptive.slot import Bill, Slot
from streamveil.mechanisms.adaptive.slot_total import ROUNDING, UNKNOWN, with_cell
from streamveil.mechanisms.adaptive.state import AdaptiveState, Foretold
from streamveil.mechanisms.adaptive.totals import Layout, published
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED
from streamveil.mechanisms.protocol import Lasting, SlotRelease, SlotRevision
from streamveil.mechanisms.protocol import Observed as ObservedCounts

# More than any count, where the number of users is assumed.
UNBOUNDED = 1 << 62
_LEAST = 1e-9


def released(
    state: AdaptiveState,
    here: Slot,
    seen: list[Observed],
    bill: Bill,
    surprise: float,
    jumped: bool,
    layout: Layout,
) -> SlotRelease:
    """The release of a slot: its last observation, or the forecast."""
    forecast, terms = here.forecast, here.terms
    every = _every(state)
    if seen:
        status, mean = PUBLISHED, seen[-1].mean
        variance = state.misfit.after(seen[-1], forecast, every)
        error = np.maximum(seen[-1].variance - forecast.white, 0.0)
        if seen[-1].slots == 1:
            variance = np.minimum(variance, _by_itself(seen[-1]))
    elif state.published_slot is None:  # nothing is known before a release
        mean = np.zeros_like(forecast.mean)
        status, variance, error = SKIPPED, np.full_like(mean, np.nan), forecast.variance
    else:
        status, mean = PREDICTED, forecast.mean
        variance, error = _variance(state, forecast, every), forecast.variance
    most = most_of(terms)
    # Before the first release the scale was a guess, and beliefs in bias follow the new one.
    scale = state.bank.scale if state.slots == 1 else here.level.scale
    doubt = terms.correlation.doubt(state.correlation, scale, state.dispersion)
    if forecast is not here.level:  # a bias changes with the counts
        doubt = doubt * (forecast.scale / here.level.scale) ** 2
    if state.ring:
        state.ring.passed(here.slot, most, doubt)
    unsure, variance, error, share = variance, variance + doubt, error + doubt, 1.0
    before = mean, variance
    if status != SKIPPED:
        mean, variance, share = published(state.shrinkage, layout, mean, variance, error)
    quantum = terms.crowd.quantum
    counts, stderr, estimates = _in_counts(mean, variance, quantum, most)
    return SlotRelease(
        counts,
        status,
        state.published_slot,
        state.epsilon,
        stderr,
        spent=bill.main + bill.reserve + bill.audit,
        alarm=jumped,
        diagnostics=_diagnostics(state, terms, surprise, share),
        observed=tuple(
            ObservedCounts(
                result.observed * quantum, (result.noise + result.error) * quantum**2, result.slots
            )
            for result in seen
        ),
        unshrunk=_if_shrunk(*before, quantum, share),
        lasting=_lasting(state, here, seen, unsure, variance) if terms.crowd.summed else None,
        estimates=estimates,
    )


def _by_itself(seen: Observed) -> Floats:
    """Variance of a slot's estimate, computed from the slot's own release alone, shape (d,).

    It is used until several releases have shown how much counts vary.
    """
    missed = seen.observed - seen.mean
    return np.asarray(missed**2 + seen.noise + seen.error)


def most_of(terms: Terms) -> int:
    """The largest possible count."""
    return UNBOUNDED if terms.crowd.assumed else terms.most


def _variance(state: AdaptiveState, forecast: Forecast, every: bool) -> Floats:
    """Stated variance of a forecast, shape (d,): computed for all forecasts made with it."""
    several, known = forecast.several, state.foretold
    if several is None:
        variance = state.misfit.of(forecast, every)
    else:
        if known is None or known.several is not several or known.every is not every:
            known = state.foretold = Foretold(several, every, state.misfit.of(several, every))
        variance = known.variance[forecast.place]
    raised: Floats = np.maximum(variance, state.misfit.swing(forecast.mean))
    return raised


def _lasting(
    state: AdaptiveState, here: Slot, seen: list[Observed], unsure: Floats, variance: Floats
) -> Lasting:
    """How errors of the slot last: see :class:`Lasting`.

    Args:
        state: after the slot.
        here: the slot.
        seen: what was observed with it.
        unsure: variance of the slot's estimates without doubt and shrinkage, shape (d,).
        variance: with these.
    """
    curve, kept = _curve_after(state, here, seen)
    own = np.maximum(unsure - state.misfit.factor(here.forecast.variance) * curve, 0.0)
    return Lasting(kept, np.clip(1 - own / np.maximum(variance, _LEAST), 0.0, 1.0))


def _curve_after(state: AdaptiveState, here: Slot, seen: list[Observed]) -> tuple[Floats, Floats]:
    """The variance of the curve after the slot, and the part of earlier errors that lasts in it.

    Both have shape (d,). The remaining error is independent of what was learnt. So the covariance
    of an earlier error with that of the curve falls by the same factor as the curve's variance.
    """
    before = here.forecast.variance
    if not seen:
        return before, np.ones_like(before)
    curve = here.bank.of_level(here.terms.bank.forecast(state.bank)).variance
    kept = np.clip(curve / np.maximum(before, _LEAST), 0.0, 1.0)
    jumped = np.any([observed.jumped for observed in seen], axis=0)
    return curve, np.where(jumped, 0.0, kept)


def revised(
    state: AdaptiveState,
    cycle: Cycle | None,
    until: int,
    quantum: int,
    layout: Layout,
    tells_total: bool,
) -> Iterator[SlotRevision]:
    """Revise all slots up to `until` that have not been revised yet.

    If the total is a result too, it stays as released, because later slots add little to it.
    """
    ring, scale = state.ring, state.bank.scale.astype(np.float64)
    levels = Bank(1.0, len(scale))
    weights, every = levels.mixture(state.bank).weights, _every(state)
    while ring is not None and ring.next_slot <= until:
        slot, known = ring.revise(weights, scale)
        if cycle and state.cycle.chosen:
            known = cycle.over(state.cycle, levels, slot, 1).of_level(known)
        elif state.factor and len(state.factor.past) > ring.last_slot - slot:
            known = state.factor.past[slot - ring.last_slot - 1].counts(known)
        mean, variance, share = known.mean, state.misfit.of(known, every) + ring.doubt, 1.0
        before = mean, variance
        if state.published_slot is None:
            mean, variance = np.zeros_like(mean), np.full_like(mean, np.nan)
        else:
            error = known.variance + ring.doubt
            mean, variance, share = published(state.shrinkage, layout, mean, variance, error)
        figures = _in_counts(mean, variance, quantum, ring.most)
        revision = SlotRevision(slot, *figures, _if_shrunk(*before, quantum, share))
        if tells_total and state.factor:
            back = ring.last_slot - slot
            known_totals = state.factor.totals
            total = known_totals[-1 - back] if back < len(known_totals) else UNKNOWN
            revision = with_cell(revision, total, quantum, ring.most)
        yield revision


def _if_shrunk(mean: Floats, variance: Floats, quantum: int, share: float) -> ObservedCounts | None:
    """Estimates in quanta that were shrunk, by a factor, or cut off at 0; None if none was."""
    if share < 1 or np.count_nonzero(mean < 0):
        return ObservedCounts(mean * quantum, variance * quantum**2)
    return None


def _in_counts(
    mean: Floats, variance: Floats, quantum: int, most: int
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Whole counts from 0 to `most`, their standard errors and the same not rounded.

    Of estimates in quanta.
    """
    if quantum > 1:
        mean, variance = mean * quantum, variance * quantum**2
    estimates = np.minimum(np.maximum(mean, 0.0), most)
    return np.rint(estimates).astype(np.int64), np.sqrt(variance + ROUNDING), estimates


def _every(state: AdaptiveState) -> bool:
    """Whether every slot is released."""
    return state.kind == POINT and state.gap == 1


def _diagnostics(
    state: AdaptiveState, terms: Terms, surprise: float, believed: float
) -> dict[str, float]:
    mixture = terms.bank.mixture(state.bank)
    belief = terms.correlation.belief(state.correlation, state.bank.scale)
    optional = {}
    if state.cycle.candidates:
        chosen = state.cycle.chosen
        optional["cycle"] = float(chosen.length if chosen else 0)
    if state.factor:
        optional["factor"] = float(state.factor.used)
    return {
        **optional,
        "gap": float(state.gap),
        "sum": float(state.kind == SUM),
        "alert": state.alert,
        "surprise": surprise,
        "trend": mixture.trend,
        "white": mixture.deviating,
        "correlation": belief.typical,
        "believed": believed,
    }
