"""The algorithm of the adaptive mechanism: weighted releases now and then, a filter in between.

Nothing is sampled and no budget is switched between distribution and absorption: it is scheduled.
A gap ends with a release when the filter expects that to lower the error most, of its last slot or
of all its slots together; every other slot gets the filter's forecast. What may be spent comes as
`Terms`, from the accounts of `fixed.py` or `changing.py`; a guarantee is stated there.

Sensitivity: of the weighted integer histogram and of its L1 distance from public integers alike,
m_k per contribution (`weighting.py`); of a sum over slots, the same slot by slot
(`running_sum.py`).
Source: our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.budget_plan import Terms, choices
from streamveil.mechanisms.adaptive.filter_bank import Forecast, Observed
from streamveil.mechanisms.adaptive.gap_errors import GAPS, POINT, SUM
from streamveil.mechanisms.adaptive.intervals import Misfit
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.adaptive.shrinkage import Shrinkage
from streamveil.mechanisms.adaptive.weighting import Choices, CorrelationState, Risk, Weighting
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED
from streamveil.mechanisms.protocol import Members, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise

Floats = npt.NDArray[np.float64]

# An alarm is a deviation so many noise scales and standard deviations above the expected one.
ALARM = 3.0
# The reserve is divided by these on an alarm, and when the plan turns to much shorter gaps.
RESERVE_ON_ALARM, RESERVE_ON_HASTE = 2, 4
HASTE = 0.6
AFTER_JUMP = 1
SLOW = 0.02
REPLAN_EVERY = 4
# Slots that the first gap may have; each may then be as long as all before.
SOON = 2
# No sum is of more slots.
LONGEST = int(GAPS[-1])
# After so many slots without a jump gate and reserve go to the releases; in so many steps.
CALM, ALERTS = 400, 8
# A look costs what the gate's whole share saves up in so many slots; in one if jumps are frequent.
LOOKS = 2
# A jump of so many noise scales of the gate is one that it would show.
LEAP = 2.4
# A release whose noise variance exceeds the forecast's so many times tells nothing.
USELESS = 10.0
# A release comes early when the curve is so many times less certain than planned.
IMPATIENCE = 3.0
# Variance of rounding to whole counts.
ROUNDING = 1 / 12
NO_RISK = Risk(0.0, 0.0)
# Bias is not looked for where weights would be nearly equal even if there were none.
WORTH_LEARNING = 0.1

_BYTES_LIST = {"type": "array", "items": "bytes"}
_KEPT = {
    "slots": "long",
    "since": "long",
    "gap": "long",
    "kind": "long",
    "patience": "double",
    "usual_gap": "double",
    "published_slot": ["null", "long"],
    "epsilon": "double",
    "dispersion": "double",
    "unwatched": "long",
    "leaps": "long",
}


def schemas(**accounts: Any) -> dict[int, state_codec.Schema]:
    """Schemas of a state whose accounts are written in fields of these types."""
    return {
        1: state_codec.record_schema(
            "Adaptive",
            bank=_BYTES_LIST,
            correlation=_BYTES_LIST,
            **accounts,
            slots="long",
            since="long",
            unseen="long",
            gap="long",
            patience="double",
            usual_gap="double",
            published_slot=["null", "long"],
            epsilon="double",
            dispersion="double",
        ),
        2: state_codec.record_schema(
            "Adaptive",
            bank=filter_bank.SCHEMA,
            correlation=_BYTES_LIST,
            running=["null", RunningSum.SCHEMA],
            misfit=Misfit.SCHEMA,
            shrinkage=Shrinkage.SCHEMA,
            **accounts,
            **_KEPT,
        ),
    }


@dataclass
class AdaptiveState:
    """What the next slot needs to know: everything in it is public but a running sum."""

    bank: filter_bank.BankState
    correlation: CorrelationState
    accounts: Any
    """What was spent of each part of the budgets."""
    misfit: Misfit
    """Of the variances that the bank states."""
    shrinkage: Shrinkage = field(default_factory=Shrinkage)
    running: RunningSum | None = None
    """The sum of a gap that has begun: SECRET."""
    slots: int = 0
    since: int = 1
    """Slots of the gap up to this one."""
    gap: int = 1
    """Planned slots between releases."""
    kind: int = POINT
    """What the gap ends with, POINT or SUM."""
    patience: float = 0.0
    """Expected variance of the curve between releases, in parts of that of a release."""
    usual_gap: float = 0.0
    """Slow average of `gap`."""
    published_slot: int | None = None
    epsilon: float = 0.0
    dispersion: float = 0.0
    """Of the weights of the last release."""
    unwatched: int = 1
    """Slots from the last look to this one."""
    leaps: int = 0
    """Jumps that a look with the whole share of the gate would have shown."""

    @property
    def alert(self) -> float:
        """Share of gate and reserve that is kept for jumps: the less, the fewer have been seen."""
        often = CALM * (1 + 2 * self.leaps) / max(self.slots, 1)
        return float(min(np.ceil(ALERTS * often**2) / ALERTS, 1.0))

    @property
    def watch(self) -> int:
        """Slots from one look to the next: few good ones show more than many bad ones."""
        return 1 if self.leaps and self.alert == 1 else int(LOOKS / self.alert)


def pack(
    state: AdaptiveState,
    versions: Mapping[int, state_codec.Schema],
    accounts: Mapping[str, Any],
) -> bytes:
    """Bytes of a state under :func:`schemas`."""
    record = {
        **{name: getattr(state, name) for name in _KEPT},
        "bank": filter_bank.record(state.bank),
        "correlation": [part.tobytes() for part in vars(state.correlation).values()],
        "running": state.running.record() if state.running else None,
        "misfit": state.misfit.record(),
        "shrinkage": state.shrinkage.record(),
        **accounts,
    }
    return state_codec.pack(versions, record)


def unpack(
    data: bytes,
    versions: Mapping[int, state_codec.Schema],
    state: AdaptiveState,
    accounts: Callable[[dict[str, Any]], Any],
) -> AdaptiveState:
    """State of bytes, read into a fresh `state` of the same configuration.

    Raises ConfigurationError for another number of bins or classes.
    """
    version, record = state_codec.unpack(versions, data)
    if version == 1:
        filter_bank.read_former(state.bank, record["bank"])
        record |= {"kind": POINT, "running": None, "unwatched": 1, "leaps": 0}
    else:
        filter_bank.read(state.bank, record["bank"])
        state.misfit = Misfit.read(record["misfit"], len(state.bank.scale))
        state.shrinkage = Shrinkage(**record["shrinkage"])
    beliefs = vars(state.correlation)
    shapes = [(part.dtype, part.shape) for part in beliefs.values()]
    if version == 1:
        shapes = [(np.dtype(np.float64), shape) for _, shape in shapes]
    read = [
        np.frombuffer(stored, dtype).reshape(shape).copy()
        for stored, (dtype, shape) in zip(record["correlation"], shapes, strict=True)
    ]
    state.correlation = (CorrelationState.of if version == 1 else CorrelationState)(*read)
    if record["running"]:
        state.running = RunningSum.read(record["running"], len(state.bank.scale))
    state.accounts = accounts(record)
    for name in _KEPT:
        setattr(state, name, record[name])
    return state


@dataclass(frozen=True, eq=False)
class _Slot:
    """What a slot has to go by; all but the counts is public."""

    slot: int
    counts: npt.NDArray[np.int64]
    noise: SlotNoise
    terms: Terms
    forecast: Forecast
    risk: Risk


@dataclass
class _Bill:
    """What the slot spends, each of shape (K,)."""

    main: Units
    reserve: Units
    audit: Units

    def add(self, spent: Units, main: Units) -> None:
        """Enter a release that spends at most so much of the main part, the rest of the reserve."""
        from_main = np.minimum(spent, main)
        self.main = self.main + from_main
        self.reserve = self.reserve + spent - from_main


class AdaptiveRelease:
    """See the module.

    A subclass says what a slot may spend (`terms`) and books what it did (`book`).
    """

    def __init__(self, name: str, bins: int) -> None:
        self.name = name
        # Counts of a complete histogram add up: one of them is known from the others.
        self._freedom = bins / np.sqrt(max(bins - 1, 1))

    def terms(self, state: AdaptiveState, slot_input: SlotInput) -> Terms:
        """What the slot may spend, and on whom."""
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
        terms = self.terms(state, SlotInput(0, np.zeros((0, 0), np.int64), members))
        looks = terms.rates.gate * state.watch * (state.unwatched >= state.watch)
        # Without a sum all that was saved up may be spent; an alarm takes a part of the reserve.
        saved = np.minimum(1 if state.running else state.since, terms.windows)
        main, lent = terms.rates.saved(saved, state.gap > 1)
        reserve = np.maximum(np.minimum(lent, terms.reserve), terms.from_reserve(RESERVE_ON_ALARM))
        audit = terms.audit.spent if terms.audit else 0
        most: Units = np.minimum(looks + main, terms.main) + reserve + audit
        return most

    def step(
        self, state: AdaptiveState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[AdaptiveState, SlotRelease]:
        """Release one slot."""
        terms = self.terms(state, slot_input)
        if not state.slots:
            state.bank = terms.bank.start()
            state.correlation = terms.correlation.start(state.bank.scale)
        forecast = terms.bank.forecast(state.bank)
        risk = terms.correlation.risk(state.correlation, state.bank.scale)
        here = _Slot(slot_input.slot, slot_input.counts, noise, terms, forecast, risk)
        started, kind = state.published_slot is not None, state.kind
        seen, bill, surprise = self._seen(state, here)
        self.book(state, bill.main, bill.reserve, bill.audit)
        if started:
            for one in seen:
                state.misfit.learn(one)
                state.shrinkage.learn(one)
        if seen:
            state.published_slot = slot_input.slot
        if seen or state.slots % REPLAN_EVERY == 0:
            self._replan(state, terms)
        jumped = started and any(bool(one.jumped.any()) for one in seen)
        if jumped:  # to a new level or on a new slope: the next release tells
            state.leaps += self._leapt(state, here, seen, kind)
            state.gap, state.kind = min(state.gap, AFTER_JUMP), POINT
        state.slots += 1
        state.bank.elapsed += 1
        return state, self._told(state, here, seen, bill, surprise, jumped)

    def _seen(self, state: AdaptiveState, here: _Slot) -> tuple[list[Observed], _Bill, float]:
        """Look, add up and release.

        Returns (what was observed, what it cost, how surprising the look was).
        """
        terms = here.terms
        due = (
            terms.audit is not None
            or state.since >= (min(state.gap, LONGEST) if state.running else state.gap)
            or self._impatient(state, here)
        )
        summing = self._summing(state, here)
        nothing = np.zeros_like(terms.main)
        bill, surprise = _Bill(nothing, nothing, nothing), 0.0
        if terms.audit is None and (summing or not due) and state.unwatched >= state.watch:
            offers = np.minimum(terms.rates.gate * state.watch, terms.main)
            bill.main, surprise = self._look(state, here, offers)
            state.unwatched = 0
        state.unwatched += 1
        alarmed = surprise > ALARM or not state.slots
        seen: list[Observed] = []
        ended = False
        if summing:
            if not alarmed:
                self._add(state, here, bill)
            if ended := due or alarmed:
                seen += self._sum_up(state, here, alarmed)
        weighting = None
        if alarmed or (due and not summing):
            saved = 1 if summing else state.since
            weighting = self._weighting(state, here, bill, saved, alarmed)
            ended = ended or weighting is not None
        seen += self._release(state, here, weighting, summing, alarmed)
        if terms.audit:
            bill.audit = terms.audit.spent
        state.since = 1 if ended else state.since + 1
        return seen, bill, surprise

    def _summing(self, state: AdaptiveState, here: _Slot) -> bool:
        """Whether the slot belongs to a sum; a gap's first slot begins it."""
        terms = here.terms
        if state.running is None and state.kind == SUM and state.since == 1:
            scale = float(state.bank.scale.mean())
            errors = terms.plan.errors(SUM, max(min(state.gap, LONGEST), 1), scale, here.risk)
            if errors.size:
                threshold = int(terms.plan.sums.thresholds[errors.argmin()])
                state.running = RunningSum.begin(here.slot, threshold, LONGEST, terms.crowd)
        return state.running is not None

    def _add(self, state: AdaptiveState, here: _Slot, bill: _Bill) -> None:
        """Add the slot to the sum, and its price to the bill."""
        assert state.running is not None
        terms = here.terms
        main, lent = self._saved(terms, bill, 1, looks=True)
        weighting = state.running.weighting(terms.fair(main + lent), terms.crowd)
        state.running.add(weighting, here.counts)
        bill.add(weighting.spent, main)

    def _saved(self, terms: Terms, bill: _Bill, slots: int, *, looks: bool) -> tuple[Units, Units]:
        """What so many slots have saved up of main part and reserve, as far as there is room.

        As many looks must remain possible.
        """
        slots_saved = np.minimum(slots, terms.windows)
        main, lent = terms.rates.saved(slots_saved, looks)
        room = terms.main - bill.main - terms.rates.gate * (slots_saved - 1) * looks
        return np.minimum(main, np.maximum(room, 0)), np.minimum(lent, terms.reserve)

    def _sum_up(self, state: AdaptiveState, here: _Slot, alarmed: bool) -> list[Observed]:
        """End the sum and learn from it, unless nobody had any weight.

        A slot with an alarm is no part of it.
        """
        assert state.running is not None
        running, state.running = state.running, None
        found = running.release(here.noise)
        if found is None:
            return []
        state.epsilon, state.dispersion = running.epsilon, found.dispersion
        bias, _ = self._bias(state, here.terms, found.dispersion)
        shares = np.append(found.shares, 0.0) if alarmed else found.shares
        error = found.scatter * state.bank.scale
        return [here.terms.bank.observe(state.bank, found.mean - bias, found.noise, error, shares)]

    def _release(
        self,
        state: AdaptiveState,
        here: _Slot,
        weighting: Weighting | None,
        summed: bool,
        alarmed: bool,
    ) -> list[Observed]:
        """Make the releases of this slot alone, and learn from them."""
        terms, bank, audit = here.terms, state.bank, here.terms.audit
        if weighting is None and audit is None:
            return []
        released = weighting.release(here.counts, here.noise, "release") if weighting else None
        if audit is None:
            assert weighting is not None
            assert released is not None
            found = self._corrected(state, terms, weighting, released)
        else:
            audited, laplace = audit.release(here.counts, here.noise, "audit"), audit.noise_variance
            found = audited, laplace, np.zeros_like(audited)
            if weighting is not None and released is not None:
                found = self._compared(state, terms, weighting, released, audited, laplace)
            elif summed:
                self._learn_of_sums(state, terms, audited, laplace)
        if weighting:
            state.epsilon, state.dispersion = weighting.epsilon, weighting.dispersion
        elif audit and not summed:
            state.epsilon, state.dispersion = audit.epsilon, 0.0
        return [terms.bank.observe(bank, *found, alarmed=alarmed)]

    def _compared(
        self,
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
            scale = terms.bank.scale(audited)
            state.bank.scale = filter_bank.rounded(scale)
            state.correlation = terms.correlation.start(scale)
        scale = state.bank.scale
        error = laplace + weighting.noise_variance + weighting.dispersion * scale
        terms.correlation.learn(
            state.correlation, released - audited, scale, weighting.dispersion, error
        )
        released, noise_variance, other = self._corrected(state, terms, weighting, released)
        _, doubt = self._bias(state, terms, weighting.dispersion)
        share = laplace / (laplace + noise_variance + other + doubt)
        both = share * released + (1 - share) * audited
        laplaces = share**2 * noise_variance + (1 - share) ** 2 * laplace
        # What was released before has the bias that the audit has not.
        return both, float(laplaces.mean()), share**2 * other + (1 - share) ** 2 * doubt

    def _learn_of_sums(
        self, state: AdaptiveState, terms: Terms, audited: Floats, laplace: float
    ) -> None:
        """Learn the bias of sums: what is believed after them, uncorrected, beside an audit."""
        now = terms.bank.forecast(state.bank)
        bias, _ = self._bias(state, terms, state.dispersion)
        terms.correlation.learn(
            state.correlation,
            now.mean + bias - audited,
            state.bank.scale,
            state.dispersion,
            laplace + now.variance + now.white,
        )

    def _weighting(
        self, state: AdaptiveState, here: _Slot, bill: _Bill, saved: int, alarmed: bool
    ) -> Weighting | None:
        """The best weighting for what `saved` slots left, or None if it would tell nothing.

        Its price is entered in the bill.
        """
        terms = here.terms
        main, reserve = self._saved(terms, bill, saved, looks=state.gap > 1)
        if alarmed or state.gap < HASTE * state.usual_gap:
            divisor = RESERVE_ON_ALARM if alarmed else RESERVE_ON_HASTE
            reserve = np.maximum(reserve, terms.from_reserve(divisor))
        offers = main + reserve
        found = choices(offers, terms.crowd, terms.assume_independent)
        if not found.thresholds.size:
            return None
        auditing = terms.audit is not None
        weighting = self._chosen(state, terms, offers, found, NO_RISK if auditing else here.risk)
        if auditing and weighting.dispersion > WORTH_LEARNING * terms.correlation.reference:
            # What an audit shows is learnt of the most unequal weights.
            weighting = Weighting.at(int(found.thresholds[-1]), offers, terms.crowd)
        doubt = float((here.forecast.variance + here.forecast.white).mean())
        if weighting.noise_variance > USELESS * doubt and not alarmed:
            return None
        bill.add(weighting.spent, main)
        return weighting

    def _chosen(
        self, state: AdaptiveState, terms: Terms, offers: Units, found: Choices, risk: Risk
    ) -> Weighting:
        errors = found.errors(float(state.bank.scale.mean()), risk)
        return Weighting.at(int(found.thresholds[errors.argmin()]), offers, terms.crowd)

    def _leapt(self, state: AdaptiveState, here: _Slot, seen: list[Observed], kind: int) -> bool:
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

    def _bias(self, state: AdaptiveState, terms: Terms, dispersion: float) -> tuple[Floats, Floats]:
        """Mean and variance of the bias of releases with such weights, both of shape (d,)."""
        return terms.correlation.bias(state.correlation, state.bank.scale, dispersion)

    def _look(self, state: AdaptiveState, here: _Slot, offers: Units) -> tuple[Units, float]:
        """The gate: how far the slot is from the forecast, privately.

        Returns:
            (units spent, shape (K,); surprise in noise scales above what is usual).
        """
        terms, forecast = here.terms, here.forecast
        found = choices(offers, terms.crowd, terms.assume_independent)
        if not found.thresholds.size:
            return np.zeros_like(offers), 0.0
        weighting = self._chosen(state, terms, offers, found, here.risk)
        scale, dispersion = state.bank.scale, weighting.dispersion
        bias, doubt = self._bias(state, terms, dispersion)
        target = np.rint((forecast.mean + bias) / weighting.factor).astype(np.int64)
        distance = np.abs(weighting.weights @ here.counts - target).sum(keepdims=True)
        noisy = weighting.add_noise(distance, here.noise, "gate", target.tobytes())
        deviation = float(noisy[0]) * weighting.factor
        spread = np.sqrt(forecast.variance + forecast.white + dispersion * scale + doubt)
        usual = np.sqrt(2 / np.pi) * spread.sum()
        varies = 3 * np.sqrt(1 - 2 / np.pi) * spread.mean() * self._freedom
        noise_scale = weighting.factor / float(to_epsilon(weighting.unit))
        return weighting.spent, float((deviation - usual - varies) / noise_scale)

    def _corrected(
        self, state: AdaptiveState, terms: Terms, weighting: Weighting, released: Floats
    ) -> tuple[Floats, float, Floats]:
        """Take the expected bias off a release: (counts, variance of noise, other variance).

        The bias that remains is the same in all releases: the filter cannot average it out.
        """
        bias, _ = self._bias(state, terms, weighting.dispersion)
        return released - bias, weighting.noise_variance, weighting.dispersion * state.bank.scale

    def _impatient(self, state: AdaptiveState, here: _Slot) -> bool:
        """Whether the curve is much less certain than the plan expects between releases."""
        if not state.patience:
            return False
        scale = float(state.bank.scale.mean())
        kind = SUM if state.running else POINT
        error = here.terms.plan.error_after(kind, state.since, scale, here.risk)
        return bool(here.forecast.variance.mean() > IMPATIENCE * state.patience * error)

    def _replan(self, state: AdaptiveState, terms: Terms) -> None:
        """Plan the gap: afresh when it begins, only its length later."""
        risk = terms.correlation.risk(state.correlation, state.bank.scale)
        if state.since > 1:
            kinds: tuple[int, ...] = (SUM if state.running else POINT,)
        elif state.leaps and state.alert == 1:
            # A jump is met with what is saved up for the next release: sums save nothing.
            kinds = (POINT,)
        else:
            kinds = (POINT, SUM)
        best = terms.plan.best_gap(self._beliefs(state, terms), state.bank.scale, risk, kinds)
        if best is not None:
            state.gap, state.kind, state.patience = best
            # Plans are for streams that have settled: until then releases must follow soon.
            state.gap = min(state.gap, state.slots + SOON)
        state.usual_gap += SLOW * (state.gap - state.usual_gap) if state.slots else state.gap

    def _beliefs(self, state: AdaptiveState, terms: Terms) -> Floats:
        """Belief in each member of the bank over all bins, shape (members,)."""
        scale = state.bank.scale
        beliefs: Floats = terms.bank.weights(state.bank) @ scale / scale.sum()
        return beliefs

    def _told(
        self,
        state: AdaptiveState,
        here: _Slot,
        seen: list[Observed],
        bill: _Bill,
        surprise: float,
        jumped: bool,
    ) -> SlotRelease:
        """What leaves: the last observation of the slot, or the forecast."""
        forecast, terms = here.forecast, here.terms
        share = 0.0
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
        variance = variance + doubt
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
            diagnostics=self._diagnostics(state, terms, surprise) | {"believed": share},
        )

    def _diagnostics(self, state: AdaptiveState, terms: Terms, surprise: float) -> dict[str, float]:
        beliefs = self._beliefs(state, terms)
        beta, _ = terms.correlation.belief(state.correlation)
        return {
            "gap": float(state.gap),
            "sum": float(state.kind == SUM),
            "alert": state.alert,
            "surprise": surprise,
            "trend": float(beliefs @ filter_bank.TRENDING[:, 0]),
            "white": float(beliefs @ filter_bank.WHITE[:, 0]),
            "correlation": float(np.sqrt(np.mean(beta**2))),
        }
