"""Releases of a single slot or of a sum, and what is learnt from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamveil.mechanisms.adaptive import kalman
from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.adaptive.gap_errors import GAPS, SUM
from streamveil.mechanisms.adaptive.kalman import LAST_SLOT
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.adaptive.slot import Bill, Slot
from streamveil.mechanisms.adaptive.state import AdaptiveState
from streamveil.mechanisms.adaptive.weighting import NO_RISK, Weighting
from streamveil.mechanisms.core.arrays import Floats

# The reserve is divided by these on an alarm, and when the plan turns to much shorter gaps.
RESERVE_ON_ALARM, RESERVE_ON_HASTE = 2, 4
HASTE = 0.6
# No sum is of more slots.
LONGEST = int(GAPS[-1])
# A release is useless if its noise variance is this many times the forecast's variance.
USELESS = 10.0
# Audits use the most unequal weights only if they are at least this unequal without a bias.
WORTH_LEARNING = 0.1


def summing(state: AdaptiveState, here: Slot) -> bool:
    """Whether the slot belongs to a sum; a gap's first slot begins it."""
    terms = here.terms
    if state.running is None and state.kind == SUM and state.since == 1:
        scale = float(state.bank.scale.mean())
        possible, slots = terms.plan.sums, max(min(state.gap, LONGEST), 1)
        if possible.thresholds.size:
            threshold = possible.best(scale, here.risk, slots)
            if _audited(state, terms):
                # The plan does not know the cost of a cycle: weights are equal up to this offer.
                left = terms.choices(terms.rates.offers(1)).thresholds
                threshold = int(left[0] if left.size else possible.thresholds[0])
            state.running = RunningSum.begin(here.slot, threshold, LONGEST, terms.crowd)
    return state.running is not None


def _audited(state: AdaptiveState, terms: Terms) -> bool:
    """Whether the present sum is an audit."""
    return terms.at_once is not None and terms.at_once.audits(state.misfit.releases)


def add(state: AdaptiveState, here: Slot, bill: Bill) -> None:
    """Add the slot to the sum, and its price to the bill."""
    assert state.running is not None
    terms = here.terms
    main, lent = bill.saved(terms, 1, looks=True)
    weighting = state.running.weighting(terms.fair(main + lent), terms.crowd)
    state.running.add(weighting, here.counts)
    bill.add(weighting.spent, main)


def sum_up(state: AdaptiveState, here: Slot, alarmed: bool) -> list[Observed]:
    """End the sum and learn from it, unless all weights are 0.

    A slot with an alarm is not a part of it.
    """
    assert state.running is not None
    running, state.running = state.running, None
    released = running.release(here.noise)
    if released is None:
        return []
    before, state.epsilon, state.dispersion = state.dispersion, running.epsilon, released.dispersion
    bias, _ = here.terms.correlation.bias(state.correlation, state.bank.scale, released.dispersion)
    shares = np.append(released.shares, 0.0) if alarmed else released.shares
    error = released.scatter * state.bank.scale
    seen = observe(state, here, released.mean - bias, released.noise, error, shares)
    if _audited(state, here.terms):
        learn_of_sums(state, here.terms, seen, before, released.dispersion)
    return [seen]


def best_weighting(
    state: AdaptiveState, here: Slot, bill: Bill, saved: int, alarmed: bool
) -> Weighting | None:
    """The best weighting for what `saved` slots saved up, or None if it would be useless.

    Its price is entered in the bill.
    """
    terms = here.terms
    main, reserve = bill.saved(terms, saved, looks=state.gap > 1)
    if alarmed or state.gap < HASTE * state.usual_gap:
        divisor = RESERVE_ON_ALARM if alarmed else RESERVE_ON_HASTE
        reserve = np.maximum(reserve, terms.from_reserve(divisor))
    offers = main + reserve
    possible = terms.choices(offers)
    if not possible.thresholds.size:
        return None
    auditing = terms.audit is not None
    scale = state.bank.scale
    threshold = possible.best(
        float(scale.sum() / len(scale)),
        NO_RISK if auditing and terms.crowd.guessed is None else here.risk,
    )
    weighting = terms.weighting(threshold, offers)
    if auditing and weighting.dispersion > WORTH_LEARNING * terms.correlation.reference:
        # Bias is learnt from a comparison of the audit with the most unequal weights.
        weighting = Weighting.at(int(possible.thresholds[-1]), offers, terms.crowd)
    guessed = terms.crowd.guessed
    if guessed is not None and not weighting.spent[guessed] and terms.rates.main[guessed]:
        # The others alone would be scaled up by a number that may be ten times too large.
        return None
    doubt = float((here.forecast.variance + here.forecast.white).sum() / len(scale))
    if weighting.noise_variance > USELESS * doubt and not alarmed:
        return None
    bill.add(weighting.spent, main)
    return weighting


def release(
    state: AdaptiveState,
    here: Slot,
    weighting: Weighting | None,
    alarmed: bool,
) -> list[Observed]:
    """Make the releases of this slot alone, and learn from them."""
    terms, audit = here.terms, here.terms.audit
    if weighting is None and audit is None:
        return []
    released = weighting.release(here.counts, here.noise, "release") if weighting else None
    if audit is None:
        assert weighting is not None
        assert released is not None
        measured = corrected(state, terms, weighting, released)
    else:
        audited, laplace = audit.release(here.counts, here.noise, "audit"), audit.noise_variance
        measured = audited, laplace, np.zeros_like(audited)
        if weighting is not None and released is not None:
            measured = compared(state, terms, weighting, released, audited, laplace)
        elif state.published_slot is not None:
            learn_of_beliefs(state, here, audited, laplace)
    if weighting:
        state.epsilon, state.dispersion = weighting.epsilon, weighting.dispersion
    elif audit and state.published_slot is None:
        state.epsilon, state.dispersion = audit.epsilon, 0.0
    return [observe(state, here, *measured, alarmed=alarmed)]


def compared(
    state: AdaptiveState,
    terms: Terms,
    weighting: Weighting,
    released: Floats,
    audited: Floats,
    laplace: float,
) -> tuple[Floats, float, Floats]:
    """Learn the bias of a release from an audit of the same slot; put both together.

    Returns:
        (estimated counts, variance of the Laplace noise, variance of all other errors);
        counts and errors have shape (d,).
    """
    if state.published_slot is None:
        # Both together, weighted by their noise. With the audit alone, an audit that is too high by
        # chance would seem to show a bias that grows with the counts.
        part = laplace / (laplace + weighting.noise_variance)
        scale = terms.bank.scale(part * released + (1 - part) * audited)
        state.bank.scale = kalman.rounded(scale)
        state.correlation = terms.correlation.start(scale)
    scale = state.bank.scale
    error = laplace + weighting.noise_variance + weighting.dispersion * scale
    terms.correlation.learn(
        state.correlation, released - audited, scale, weighting.dispersion, error
    )
    released, noise_variance, other = corrected(state, terms, weighting, released)
    _, doubt = terms.correlation.bias(state.correlation, state.bank.scale, weighting.dispersion)
    share = laplace / (laplace + noise_variance + other + doubt)
    both = share * released + (1 - share) * audited
    laplaces = share**2 * noise_variance + (1 - share) ** 2 * laplace
    # What was released before has the bias that the audit has not.
    return both, float(laplaces.mean()), share**2 * other + (1 - share) ** 2 * doubt


def learn_of_beliefs(state: AdaptiveState, here: Slot, audited: Floats, laplace: float) -> None:
    """Learn the bias of releases: compare the uncorrected forecast with an audit.

    A sum is of other slots, and the little that was saved up since the last release shows less.
    """
    terms, now = here.terms, here.bank.forecast(state.bank)
    bias, _ = terms.correlation.bias(state.correlation, state.bank.scale, state.dispersion)
    terms.correlation.learn(
        state.correlation,
        now.mean + bias - audited,
        state.bank.scale,
        state.dispersion,
        laplace + now.variance + now.white,
    )


def learn_of_sums(
    state: AdaptiveState, terms: Terms, audit: Observed, before: float, now: float
) -> None:
    """Learn the bias of earlier sums from a sum with equal weights.

    Weights of an audit may differ a little, too. Then both have a bias, which was subtracted from
    both: the comparison shows the difference, and nothing if dispersions are equal.

    Args:
        state: changed in place.
        terms: of the slot.
        audit: the sum with equal weights.
        before: dispersion of the earlier sums.
        now: dispersion of the audit.
    """
    apart = max(before**0.5 - now**0.5, 0.0)
    earlier, own = (
        terms.correlation.bias(state.correlation, state.bank.scale, dispersion)[0]
        for dispersion in (before, now)
    )
    terms.correlation.learn(
        state.correlation,
        audit.expected + earlier - audit.observed - own,
        state.bank.scale,
        apart**2,
        audit.noise + audit.error + audit.foreseen,
    )


def corrected(
    state: AdaptiveState, terms: Terms, weighting: Weighting, released: Floats
) -> tuple[Floats, float, Floats]:
    """Subtract the expected bias from a release: (counts, variance of noise, other variance).

    The bias that remains is the same in all releases: the filter cannot average it out.
    """
    bias, _ = terms.correlation.bias(state.correlation, state.bank.scale, weighting.dispersion)
    return released - bias, weighting.noise_variance, weighting.dispersion * state.bank.scale


def observe(
    state: AdaptiveState,
    here: Slot,
    counts: Floats,
    noise: float,
    error: Floats,
    shares: Floats = LAST_SLOT,
    alarmed: bool = False,
) -> Observed:
    """Learn from a release, and remember it for revisions: see :meth:`Bank.observe`."""
    if here.terms.bank.assumed and state.published_slot is None and state.bank.elapsed:
        here.terms.bank.weigh(state.bank, counts, noise + error)
        if state.ring:
            state.ring.kept = replace(state.bank)
    elapsed, scale = state.bank.elapsed, state.bank.scale
    if state.factor:
        # A bias may be the same in all bins, so that it adds up in their sum.
        doubt = here.terms.correlation.doubt(state.correlation, scale, state.dispersion)
        state.factor.doubt = float(np.sqrt(doubt).sum()) ** 2
    rarity = state.jumps.rarity(state.slots)
    seen = here.bank.observe(
        state.bank, counts, noise, error, shares, alarmed=alarmed, rarity=rarity
    )
    if state.ring and seen.taken:
        state.ring.note(here.slot, elapsed, scale, seen.taken)
    return seen
