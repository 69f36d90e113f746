"""The algorithm of the adaptive mechanism: weighted releases now and then, forecasts in between.

Users are not sampled, and budget is scheduled: a gap between releases is as long as the filters
expect to lower the error most. It ends with a release of its last slot, or of all its slots
together. Every other slot gets the filters' forecast. What may be spent comes as `Terms`, from the
accounts of `fixed.py` or `changing.py`, where the guarantees are stated.

The steps of a slot are a change test (`gate.py`), releases of the slot or of a sum (`releases.py`),
the slot's part in a cycle (`cycle.py`), a plan for the next gap (`budget_plan.py`), and the outputs
(`outputs.py`). The state is in `state.py`.

Sensitivity: of the weighted integer histogram and of its L1 distance from public integers alike,
m_k per contribution (`weighting.py`); of a sum over slots, the same slot by slot
(`running_sum.py`).
Source: our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np

from streamveil.mechanisms.adaptive import gate, outputs, releases
from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.cycle import Cycle, CycleSlot, CyclicBank
from streamveil.mechanisms.adaptive.factor import Factor, FactorBank
from streamveil.mechanisms.adaptive.filter_bank import Bank, Observed
from streamveil.mechanisms.adaptive.gap_errors import POINT, SUM
from streamveil.mechanisms.adaptive.jumps import ALARM, Watch
from streamveil.mechanisms.adaptive.kalman import Forecast
from streamveil.mechanisms.adaptive.pooling import FEWEST_BINS
from streamveil.mechanisms.adaptive.revisions import Ring
from streamveil.mechanisms.adaptive.slot import Bill, Slot
from streamveil.mechanisms.adaptive.slot_total import with_total
from streamveil.mechanisms.adaptive.state import AdaptiveState
from streamveil.mechanisms.adaptive.totals import Layout
from streamveil.mechanisms.adaptive.weighting import NO_RISK
from streamveil.mechanisms.core.arrays import Floats, Singles
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.protocol import Members, SlotInput, SlotRelease, SlotRevision
from streamveil.mechanisms.randomness.noise import SlotNoise

AFTER_JUMP = 1
SLOW = 0.02
REPLAN_EVERY = 4
# Slots that the first gap may have; each may then be as long as all before.
SOON = 2
# A release comes early when the variance of the curve is this many times the planned one.
IMPATIENCE = 3.0
# A look in place of a release costs 1 / UNAFFORDED of what a slot saves up for releases.
UNAFFORDED = 4
# One in `n` releases of a single slot comes later than planned, by up to this part of the gap: the
# pairs (n, part) if a window has room for two gaps, and if it has not.
ROOM, NO_ROOM = (3, 0.25), (2, 0.5)
# A ratio is assumed to move by this part of its range, and to stay there for `RATIO_LASTS` slots.
# Noise hides such moves if releases at this distance show them in less than `HALF_SEEN` of the
# ratios.
RATIO_MOVES, RATIO_LASTS, HALF_SEEN = 0.1, 4, 0.5


def _rescaled(forecast: Forecast, scale: Floats) -> Forecast:
    """The forecast with another scale of the slot's own deviation."""
    return forecast._replace(white=forecast.white * (scale / forecast.scale), scale=scale)


def _drawn(gap: int, level: Singles, window: int) -> int:
    """A gap that now and then is longer than planned, drawn from what was released last.

    Releases after equal gaps may see the same hours again and again where counts come in waves, and
    the other hours would be taken to be like these. In a window with no room for two gaps an
    earlier release would find the budget spent, so it is always a later one.

    Args:
        gap: as planned.
        level: what a member believes since the last release, shape (d,).
        window: slots that budget is saved up for at most.
    """
    one_in, part = ROOM if 2 * gap <= window else NO_ROOM
    chance = crc32(level.tobytes()) * one_in / 2**32
    return gap if gap == 1 or chance >= 1 else gap + 1 + int(chance * gap * part)


def _size(state: AdaptiveState, terms: Terms) -> float:
    """The expected total of the current slot, or 0 before the first release."""
    if state.published_slot is None:
        return 0.0
    return float(terms.bank.forecast(state.bank, state.gap - state.since + 1).mean.sum())


class AdaptiveRelease:
    """See the module.

    A subclass says what a slot may spend (`terms`) and books what it did (`book`).
    """

    revise = 0
    """How many slots later a slot is revised; 0 for never."""
    quantum = 1
    """The most that one event adds to a bin: estimates are in these until they leave."""
    ratio = 0
    """As in :class:`Population`."""
    layout = Layout()
    """Of the histogram's cells."""

    factor: Factor | None = None
    """The common factor that is looked for."""

    def __init__(self, name: str, cycle: Cycle | None) -> None:
        self.name = name
        self.cycle = cycle

    def look_for_factor(
        self, bins: int, slot_length: int | None, longest: int, tells_total: bool = False
    ) -> None:
        """Follow the total too, unless a cycle is requested or every window is one slot long.

        If slots are short, a daily cycle may replace the common factor.

        Args:
            bins: of a histogram of counts.
            slot_length: of a slot in microseconds, if it is known.
            longest: the longest window that may be requested, in slots.
            tells_total: whether the total is a separate cell, after those of the bins.
        """
        if bins >= FEWEST_BINS and longest > 1 and not self.cycle:
            self.factor = Factor(bins, slot_length, tells_total)
            self.cycle = Cycle.of_hours(slot_length)

    def terms(self, state: AdaptiveState, members: Members | None) -> Terms:
        """What the slot may spend, and the users who are counted."""
        raise NotImplementedError

    def book(self, state: AdaptiveState, main: Units, reserve: Units, audit: Units) -> None:
        """Enter what the slot spent of each part, shape (K,)."""
        raise NotImplementedError

    def price(self, state: AdaptiveState, members: Members | None = None) -> Units:
        """The most that the next slot can cost each class, whatever its counts: shape (K,).

        Args:
            state: after the slots before.
            members: who is counted, where requirements change.
        """
        terms = self.terms(state, members)
        state.begun = members, terms
        # Without a sum all that was saved up may be spent, and an alarm takes a part of the
        # reserve. A slot without a release may have a change test.
        saved = np.minimum(1 if state.running else state.since, terms.windows)
        main, lent = terms.rates.saved(saved, state.gap > 1)
        reserve = np.maximum(
            np.minimum(lent, terms.reserve), terms.from_reserve(releases.RESERVE_ON_ALARM)
        )
        look = terms.rates.gate * (state.watch if state.unwatched >= state.watch else 0)
        main = main + np.maximum(look, terms.rates.main // UNAFFORDED)
        most: Units = np.minimum(main, terms.main) + reserve
        return most + terms.audit.spent if terms.audit else most

    def step(
        self, state: AdaptiveState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[AdaptiveState, SlotRelease]:
        """Release one slot."""
        begun, state.begun, members = state.begun, None, slot_input.members
        usual = begun[1] if begun and begun[0] is members else self.terms(state, members)
        if not state.slots:
            state.bank = usual.bank.start()
            state.correlation = usual.correlation.start(state.bank.scale)
        if not self.revise:
            state.ring = None
        elif state.ring is None:
            state.ring = Ring.start(state.bank, slot_input.slot)
        if self.factor and self.factor.tells_total:
            # The last cell is the total of the bins, so it is not read.
            slot_input = replace(slot_input, counts=slot_input.counts[:, :-1])
        slot, counts = slot_input.slot, slot_input.counts
        terms = usual
        bank: Bank | CyclicBank | FactorBank = usual.bank
        measured: Units = np.zeros(usual.main.shape, np.int64)
        cycle, factor = self._followed(state, usual)
        if factor and state.factor:
            terms, measured = self._measure(factor, state, slot_input, noise, usual)
            bank = factor.over(state.factor, usual.bank, slot)
        rate = terms.rates.main
        if cycle:
            terms = terms.less(cycle.share(state.cycle, usual.bank, state.bank))
        if cycle and state.cycle.chosen:
            bank = cycle.over(state.cycle, terms.bank, slot, state.bank.elapsed)
        level = terms.bank.forecast(state.bank, state.gap - state.since + 1)
        forecast = bank.of_level(level)
        risk = terms.correlation.belief(state.correlation, state.bank.scale).risk
        here = Slot(slot, counts, noise, terms, bank, level, forecast, risk)
        started, kind = state.published_slot is not None, state.kind
        seen, bill, surprise = self._seen(state, here)
        if seen and terms.bank.assumed and not started:
            here = here._replace(forecast=_rescaled(forecast, state.bank.scale))
        if cycle:
            in_cycle = CycleSlot(slot, counts, noise, rate, terms)
            bill.main = bill.main + cycle.step(state.cycle, in_cycle, terms.main - bill.main)
        bill.main = bill.main + measured
        self.book(state, bill.main, bill.reserve, bill.audit)
        if started:
            for observed in seen:
                if observed.taken:
                    state.misfit.learn(observed)
                    state.shrinkage.learn(observed, self.layout.totals)
        if seen:
            state.published_slot = slot_input.slot
        if seen or state.slots % REPLAN_EVERY == 0:
            self._replan(state, terms)
            if factor and state.factor:
                planned = terms.bank.forecast(state.bank), state.gap, state.kind == POINT
                if factor.plan(state.factor, usual, *planned, state.since == 1):
                    state.gap, state.kind, state.watch = 1, POINT, 1
        if factor and state.cycle.chosen:
            # The profile of the cycle takes the factor's place.
            state.factor, factor = factor.start(), None
        jumped = started and any(np.count_nonzero(observed.jumped) for observed in seen)
        # The next release shows whether to a new level or onto a new slope.
        if jumped and not self._hidden(state, terms):
            state.jumps.note(gate.moved(here, seen, kind))
            state.gap = min(state.gap, AFTER_JUMP)
            state.kind = SUM if terms.at_once else POINT
        if factor and state.factor:
            factor.end(factor.over(state.factor, usual.bank, slot), level, self.revise)
        state.slots += 1
        state.bank.elapsed += 1
        release = outputs.released(state, here, seen, bill, surprise, jumped, self.layout)
        if factor and state.factor and factor.tells_total:
            most = outputs.most_of(terms)
            release = with_total(release, state.factor.here, self.quantum, most)
        if state.ring:
            release = replace(release, revisions=tuple(self._revised(state, slot - self.revise)))
        return state, release

    def _followed(self, state: AdaptiveState, usual: Terms) -> tuple[Cycle | None, Factor | None]:
        """What the slot spends budget on: a cycle or a common factor, or both until one is found.

        Without the option `cycle`, a daily cycle is looked for if noise hides the total of a slot.
        The sum of a phase over many days has hardly more noise than a single total, but is much
        larger. Once a cycle is found, it is used instead of the factor.
        """
        if not (self.cycle and self.factor):
            return self.cycle, self.factor if state.factor else None
        if state.cycle.chosen:
            return self.cycle, None
        begun = any(candidate.running for candidate in state.cycle.candidates)
        if begun or (state.slots and not self.factor.telling(usual, _size(state, usual))):
            return self.cycle, self.factor
        return None, self.factor

    @staticmethod
    def _measure(
        factor: Factor, state: AdaptiveState, slot_input: SlotInput, noise: SlotNoise, usual: Terms
    ) -> tuple[Terms, Units]:
        """Measure the total: (what the rest of the slot may spend, what the total cost)."""
        known, slot = state.factor, slot_input.slot
        assert known is not None
        if state.bank.elapsed == 1:
            state.bank = factor.over(known, usual.bank, slot).renewed(state.bank, state.ring)
        factor.begin(known, slot, state.bank.elapsed)
        size = _size(state, usual)
        cost = factor.measure(known, slot, slot_input.counts, noise, usual, size)
        if not np.count_nonzero(cost):
            return usual, cost
        return usual.less(known.share, cost), cost

    def _seen(self, state: AdaptiveState, here: Slot) -> tuple[list[Observed], Bill, float]:
        """Test for a change, add the slot to a sum, and release.

        Returns (what was observed, what it cost, how surprising the result of the test was).
        """
        terms = here.terms
        due = (
            terms.audit is not None
            or state.since >= (min(state.gap, releases.LONGEST) if state.running else state.gap)
            or self._impatient(state, here)
        )
        summing = releases.summing(state, here)
        nothing = np.zeros(terms.main.shape, np.int64)
        bill, surprise = Bill(nothing, nothing, nothing), 0.0
        watched = terms.audit is None and not self._hidden(state, terms)
        if watched and (summing or not due) and state.unwatched >= state.watch:
            offers = np.minimum(terms.rates.gate * state.watch, terms.main)
            bill.main, surprise = gate.look(state, here, offers)
            state.unwatched = 0
        state.unwatched += 1
        alarmed = surprise > ALARM or not state.slots
        seen: list[Observed] = []
        ended = False
        if summing:
            if not alarmed:
                releases.add(state, here, bill)
            if ended := due or alarmed:
                seen += releases.sum_up(state, here, alarmed)
        weighting = None
        if alarmed or (due and not summing):
            saved = 1 if summing else state.since
            if state.gap == 1:
                # If the budget of a window was spent, and the next slot took all that becomes free,
                # the same slot of each later window would have no budget either.
                saved = (saved + 1) // 2
            weighting = releases.best_weighting(state, here, bill, saved, alarmed)
            if weighting is None and watched and not alarmed and terms.rates.gate.any():
                # No useful release can be afforded, but a jump must be detected all the same.
                offers = np.minimum(terms.rates.main // UNAFFORDED, terms.main)
                bill.main, surprise = gate.look(state, here, offers)
                state.unwatched = 1
                if surprise > ALARM:
                    alarmed = True
                    weighting = releases.best_weighting(state, here, bill, saved, alarmed)
            ended = ended or weighting is not None
        seen += releases.release(state, here, weighting, alarmed)
        if terms.audit:
            bill.audit = terms.audit.spent
        state.since = 1 if ended else state.since + 1
        return seen, bill, surprise

    def _impatient(self, state: AdaptiveState, here: Slot) -> bool:
        """Whether the curve is much less certain than planned, and less certain than a release.

        While little is known, earlier releases would only have more noise.
        """
        if not state.patience:
            return False
        scale = here.terms.bank.mixture(state.bank).typical
        kind = SUM if state.running else POINT
        plan = here.terms.plan
        # Of the level: what a cycle adds to the doubt of a slot does not grow with the gap.
        doubt = float(here.level.variance.sum() / len(here.level.variance))
        error = plan.error_after(kind, state.since, scale, here.risk)
        if doubt <= IMPATIENCE * state.patience * error:
            return False
        return doubt > plan.error_after(kind, state.since, scale, NO_RISK)

    def _replan(self, state: AdaptiveState, terms: Terms) -> None:
        """Plan the gap: afresh when it begins, only its length later."""
        risk = terms.correlation.belief(state.correlation, state.bank.scale).risk
        mixture, scale, cycle = terms.bank.mixture(state.bank), state.bank.scale, self.cycle
        beliefs, begun = mixture.beliefs, state.since > 1
        known = mixture, terms.plan, state.jumps.seen
        if begun and state.watching and state.watching[0] == known:
            watch = state.watching[1]
            watch.slots = state.slots
        else:
            watch = Watch(
                state.jumps,
                state.slots,
                gate.noise_scale(terms),
                gate.varying(np.sqrt(scale)),
                mixture.typical,
                len(scale),
                terms.rates.noise,
                state.alert if begun else None,
                largest=float(np.maximum(mixture.level, 0.0).sum()),
            )
            state.watching = (known, watch) if begun else None
        kinds = (SUM if state.running else POINT,) if begun else (POINT, SUM)
        if terms.at_once:
            kinds = (SUM,)
        best = terms.plan.best_gap(beliefs, scale, risk, watch, kinds)
        if best is not None and cycle and not begun and cycle.spans(state.cycle, best.gap):
            best = terms.plan.best_gap(beliefs, scale, risk, watch, (SUM,))
        if best is not None:
            state.gap, state.kind, state.patience, state.alert, state.watch = best
            if self._hidden(state, terms):
                state.gap, state.kind, state.patience = int(terms.windows.max()), SUM, 0.0
            if state.kind == POINT:
                state.gap = _drawn(state.gap, state.bank.level[0], int(terms.windows.min()))
            # Plans are for streams that have settled: until then releases must follow soon.
            state.gap = min(state.gap, state.slots + SOON)
            if cycle and state.kind == SUM:
                state.gap = cycle.whole(state.cycle, state.gap)
        state.usual_gap += SLOW * (state.gap - state.usual_gap) if state.slots else state.gap

    def _hidden(self, state: AdaptiveState, terms: Terms) -> bool:
        """Whether ratios are requested, and noise hides how they move from slot to slot.

        Then only usual ratios can be estimated. Sums over entire windows, to which each slot
        contributes a part of its budget, show these best.
        """
        if not self.ratio or not state.slots:
            return False
        cells = np.maximum(terms.bank.forecast(state.bank).mean, 0.0)
        events = cells.reshape(-1, self.ratio).sum(axis=1)
        scale = float(state.bank.scale.mean())
        noise = terms.plan.error_after(POINT, RATIO_LASTS, scale, NO_RISK)
        seen = np.minimum((RATIO_MOVES * events) ** 2 / noise, 1.0)
        return bool(seen.mean() < HALF_SEEN)

    def rest(self, state: AdaptiveState) -> tuple[SlotRevision, ...]:
        """At the end of the stream, revise all remaining slots by the releases so far."""
        if state.ring is None:
            return ()
        return tuple(self._revised(state, state.ring.last_slot))

    def _revised(self, state: AdaptiveState, until: int) -> Iterator[SlotRevision]:
        """Revise all slots up to `until` that have not been revised yet."""
        tells_total = self.factor is not None and self.factor.tells_total
        return outputs.revised(state, self.cycle, until, self.quantum, self.layout, tells_total)
