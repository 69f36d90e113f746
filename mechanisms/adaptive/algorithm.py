"""The algorithm of the adaptive mechanism: weighted releases now and then, a filter in between.

Nothing is sampled and no budget is switched between distribution and absorption: it is scheduled.
A slot is released when the filter expects that to lower the error most; every other slot gets the
filter's forecast. What may be spent comes as `Terms`, from the accounts of `fixed.py` or
`changing.py`; a guarantee is stated there.

Sensitivity: of the weighted integer histogram and of its L1 distance from public integers alike,
m_k per contribution (`weighting.py`).
Source: our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.budget_plan import Terms, choices
from streamveil.mechanisms.adaptive.filter_bank import Forecast, weights_of
from streamveil.mechanisms.adaptive.revisions import Ring
from streamveil.mechanisms.adaptive.weighting import Choices, CorrelationState, Risk, Weighting
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED, Revised
from streamveil.mechanisms.protocol import SlotInput, SlotRelease
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


def schemas(**accounts: Any) -> dict[int, state_codec.Schema]:
    """Schemas of a state whose accounts are written in fields of these types."""
    first = {
        "bank": _BYTES_LIST,
        "correlation": _BYTES_LIST,
        **accounts,
        "slots": "long",
        "since": "long",
        "unseen": "long",
        "gap": "long",
        "patience": "double",
        "usual_gap": "double",
        "published_slot": ["null", "long"],
        "epsilon": "double",
        "dispersion": "double",
    }
    return {
        1: state_codec.record_schema("Adaptive", **first),
        2: state_codec.record_schema("Adaptive", **first, ring=["null", Ring.SCHEMA]),
    }


_PLAIN = (
    "slots",
    "since",
    "unseen",
    "gap",
    "patience",
    "usual_gap",
    "published_slot",
    "epsilon",
    "dispersion",
)


@dataclass
class AdaptiveState:
    """What the next slot needs to know: everything in it is public."""

    bank: filter_bank.BankState
    correlation: CorrelationState
    accounts: Any
    """What was spent of each part of the budgets."""
    slots: int = 0
    since: int = 1
    """Slots from the last scheduled release to this one: budget is saved up for so long."""
    unseen: int = 1
    """Slots from the last release of any kind to this one."""
    gap: int = 1
    """Planned slots between releases."""
    patience: float = 0.0
    """Expected variance of the curve between releases, in parts of that of a release."""
    usual_gap: float = 0.0
    """Slow average of `gap`."""
    published_slot: int | None = None
    epsilon: float = 0.0
    dispersion: float = 0.0
    """Of the weights of the last release."""
    ring: Ring | None = None
    """What revisions need; None without any."""


def pack(
    state: AdaptiveState,
    versions: Mapping[int, state_codec.Schema],
    accounts: Mapping[str, Any],
) -> bytes:
    """Bytes of a state under :func:`schemas`; figures of beliefs as 64-bit floats."""
    record = {
        **{name: getattr(state, name) for name in _PLAIN},
        "bank": [part.tobytes() for part in vars(state.bank).values()],
        "correlation": [part.tobytes() for part in vars(state.correlation).values()],
        "ring": state.ring and state.ring.record(),
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
    _, record = state_codec.unpack(versions, data)
    scale = np.frombuffer(record["bank"][-1], dtype=np.float64)
    state_codec.check_length(scale, state.bank.scale.size, "bins")
    for belief in ("bank", "correlation"):
        parts = vars(getattr(state, belief))
        for (name, part), stored in zip(parts.items(), record[belief], strict=True):
            read = np.frombuffer(stored, dtype=np.float64)
            parts[name] = read.reshape(part.shape).copy()
    state.accounts = accounts(record)
    for name in _PLAIN:
        setattr(state, name, record[name])
    ring = record.get("ring")
    state.ring = Ring.read(ring, state.bank.scale.size) if ring else None
    return state


class AdaptiveRelease:
    """See the module.

    A subclass says what a slot may spend (`terms`) and books what it did (`book`).
    """

    revise = 0
    """How many slots later a slot is revised; 0 for never."""

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

    def step(
        self, state: AdaptiveState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[AdaptiveState, SlotRelease]:
        """Release one slot."""
        counts, terms = slot_input.counts, self.terms(state, slot_input)
        most = int(terms.crowd.sizes.sum()) * terms.crowd.sensitivity
        bank, audit, room = terms.bank, terms.audit, terms.main
        if not self.revise:
            state.ring = None
        if state.slots:
            bank.advance(state.bank)
        else:
            state.bank = bank.start()
            state.correlation = terms.correlation.start(state.bank.scale)
            state.ring = Ring.start(state.bank, slot_input.slot) if self.revise else None
        forecast = bank.forecast(state.bank)
        risk = terms.correlation.risk(state.correlation, state.bank.scale)
        due = (
            audit is not None
            or state.since >= state.gap
            or self._impatient(state, terms, forecast, risk)
        )
        looked, surprise = np.zeros_like(room), 0.0
        if not due:
            offers = np.minimum(terms.gate, room)
            looked, surprise = self._look(state, terms, forecast, risk, offers, counts, noise)
        alarmed = surprise > ALARM or not state.slots
        weighting, regular = None, np.zeros_like(room)
        if due or alarmed:
            rate = terms.rate if state.gap > 1 else terms.full_rate
            saved = rate * np.minimum(state.since, terms.windows)
            regular = np.minimum(room - looked, saved)
            offers = regular
            if alarmed or state.gap < HASTE * state.usual_gap:
                offers = regular + terms.from_reserve(
                    RESERVE_ON_ALARM if alarmed else RESERVE_ON_HASTE
                )
            weighting = self._weighting(state, terms, forecast, risk, offers)
        seen = self._observe(state, terms, weighting, counts, noise)
        jumped = False
        status = PUBLISHED
        if seen is None:
            status, mean, variance = self._predicted(state, forecast)
        else:
            estimate, laplace, other = seen
            started = state.published_slot is not None
            gap = state.unseen if started else 0
            scale = state.bank.scale
            jumps = bank.observe(state.bank, estimate, laplace, other, gap)
            opened = jumps * (estimate - forecast.mean) ** 2
            if self.revise:
                error = laplace + other
                self._remember(state, slot_input.slot, gap, estimate, error, opened, scale)
            jumped = started and bool(jumps.any())
            mean, variance = bank.estimate(state.bank, estimate, laplace + other)
            state.published_slot = slot_input.slot
        spent = weighting.spent if weighting else np.zeros_like(room)
        from_main = np.minimum(spent, regular)
        audited = audit.spent if audit else np.zeros_like(room)
        self.book(state, looked + from_main, spent - from_main, audited)
        if weighting:
            state.epsilon, state.dispersion = weighting.epsilon, weighting.dispersion
        elif audit:
            state.epsilon, state.dispersion = audit.epsilon, 0.0
        state.since = 1 if weighting else state.since + 1
        state.unseen = 1 if seen is not None else state.unseen + 1
        if seen is not None or state.slots % REPLAN_EVERY == 0:
            self._replan(state, terms)
        if jumped:  # to a new level or on a new slope: the next release tells
            state.gap = min(state.gap, AFTER_JUMP)
        state.slots += 1
        doubt = self._bias(state, terms, state.dispersion)[1]
        revisions: tuple[Revised, ...] = ()
        if state.ring:
            state.ring.passed(slot_input.slot, most, doubt)
            revisions = tuple(self._revised(state, slot_input.slot - self.revise))
        return state, SlotRelease(
            np.rint(np.clip(mean, 0, most)).astype(np.int64),
            status,
            state.published_slot,
            state.epsilon,
            np.sqrt(variance + doubt + ROUNDING),
            spent=looked + spent + audited,
            alarm=jumped,
            diagnostics=self._diagnostics(state, terms, surprise),
            revisions=revisions,
        )

    def rest(self, state: AdaptiveState) -> tuple[Revised, ...]:
        """The slots that are still to be revised, with what there is: the stream ends."""
        return tuple(self._revised(state, state.ring.last_slot if state.ring else 0))

    def _remember(
        self,
        state: AdaptiveState,
        slot: int,
        gap: int,
        counts: Floats,
        error: Floats,
        opened: Floats,
        scale: Floats,
    ) -> None:
        """Keep for revisions a release that the bank has observed."""
        if state.ring is None:  # they were not asked for before: those of the slots that follow
            state.ring = Ring.start(state.bank, slot + 1)
        else:
            state.ring.note(slot, 1, gap, counts, error, opened, scale)

    def _revised(self, state: AdaptiveState, until: int) -> Iterator[Revised]:
        """Revise all slots up to one that have not been."""
        ring = state.ring
        while ring is not None and ring.next_slot <= until:
            slot, mean, variance = ring.revise(weights_of(state.bank.scores), state.bank.scale)
            if state.published_slot is None:
                mean, variance = np.zeros_like(mean), np.full_like(mean, np.nan)
            counts = np.rint(np.clip(mean, 0, ring.most)).astype(np.int64)
            yield Revised(slot, counts, np.sqrt(variance + ring.doubt + ROUNDING))

    def _predicted(self, state: AdaptiveState, forecast: Forecast) -> tuple[str, Floats, Floats]:
        """Status, mean and variance of a slot without a release; nothing is known before one."""
        if state.published_slot is None:
            nothing = np.zeros_like(forecast.mean)
            return SKIPPED, nothing, np.full_like(nothing, np.nan)
        return PREDICTED, forecast.mean, forecast.variance + forecast.white

    def _chosen(
        self, state: AdaptiveState, terms: Terms, offers: Units, found: Choices, risk: Risk
    ) -> Weighting:
        errors = found.errors(float(state.bank.scale.mean()), risk)
        return Weighting.at(int(found.thresholds[errors.argmin()]), offers, terms.crowd)

    def _weighting(
        self, state: AdaptiveState, terms: Terms, forecast: Forecast, risk: Risk, offers: Units
    ) -> Weighting | None:
        """The best weighting for the offers, or None if its release would tell nothing."""
        found = choices(offers, terms.crowd, terms.assume_independent)
        if not found.thresholds.size:
            return None
        auditing = terms.audit is not None
        weighting = self._chosen(state, terms, offers, found, NO_RISK if auditing else risk)
        if auditing and weighting.dispersion > WORTH_LEARNING * terms.correlation.reference:
            # What an audit shows is learnt of the most unequal weights.
            weighting = Weighting.at(int(found.thresholds[-1]), offers, terms.crowd)
        doubt = float((forecast.variance + forecast.white).mean())
        return weighting if weighting.noise_variance <= USELESS * doubt else None

    def _bias(self, state: AdaptiveState, terms: Terms, dispersion: float) -> tuple[Floats, Floats]:
        """Mean and variance of the bias of releases with such weights, both of shape (d,)."""
        return terms.correlation.bias(state.correlation, state.bank.scale, dispersion)

    def _look(
        self,
        state: AdaptiveState,
        terms: Terms,
        forecast: Forecast,
        risk: Risk,
        offers: Units,
        counts: npt.NDArray[np.int64],
        noise: SlotNoise,
    ) -> tuple[Units, float]:
        """The gate: how far the slot is from the forecast, privately.

        Returns:
            (units spent, shape (K,); surprise in noise scales above what is usual).
        """
        found = choices(offers, terms.crowd, terms.assume_independent)
        if not found.thresholds.size:
            return np.zeros_like(offers), 0.0
        weighting = self._chosen(state, terms, offers, found, risk)
        scale, dispersion = state.bank.scale, weighting.dispersion
        bias, doubt = self._bias(state, terms, dispersion)
        target = np.rint((forecast.mean + bias) / weighting.factor).astype(np.int64)
        distance = np.abs(weighting.weights @ counts - target).sum(keepdims=True)
        noisy = weighting.add_noise(distance, noise, "gate", target.tobytes())
        deviation = float(noisy[0]) * weighting.factor
        spread = np.sqrt(forecast.variance + forecast.white + dispersion * scale + doubt)
        usual = np.sqrt(2 / np.pi) * spread.sum()
        varies = 3 * np.sqrt(1 - 2 / np.pi) * spread.mean() * self._freedom
        noise_scale = weighting.factor / float(to_epsilon(weighting.unit))
        return weighting.spent, float((deviation - usual - varies) / noise_scale)

    def _observe(
        self,
        state: AdaptiveState,
        terms: Terms,
        weighting: Weighting | None,
        counts: npt.NDArray[np.int64],
        noise: SlotNoise,
    ) -> tuple[Floats, float, Floats] | None:
        """Make the slot's releases and put them together.

        Returns:
            (estimated counts, variance of the Laplace noise, variance of all other errors), or
            None if there is no release; counts and errors have shape (d,).
        """
        released, audit = None, terms.audit
        if weighting:
            released = weighting.release(counts, noise, "release")
            if not audit:
                return self._corrected(state, terms, weighting, released)
        elif not audit:
            return None
        audited, laplace = audit.release(counts, noise, "audit"), audit.noise_variance
        if weighting is None or released is None:
            return audited, laplace, np.zeros_like(audited)
        if state.published_slot is None:
            state.bank.scale = terms.bank.scale(audited)
            state.correlation = terms.correlation.start(state.bank.scale)
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

    def _corrected(
        self, state: AdaptiveState, terms: Terms, weighting: Weighting, released: Floats
    ) -> tuple[Floats, float, Floats]:
        """Take the expected bias off a release: (counts, variance of noise, other variance).

        The bias that remains is the same in all releases: the filter cannot average it out.
        """
        bias, _ = self._bias(state, terms, weighting.dispersion)
        return released - bias, weighting.noise_variance, weighting.dispersion * state.bank.scale

    def _impatient(
        self, state: AdaptiveState, terms: Terms, forecast: Forecast, risk: Risk
    ) -> bool:
        """Whether the curve is much less certain than the plan expects between releases."""
        if not state.patience:
            return False
        scale = float(state.bank.scale.mean())
        error = terms.plan.error_after(state.since, scale, risk)
        return bool(forecast.variance.mean() > IMPATIENCE * state.patience * error)

    def _replan(self, state: AdaptiveState, terms: Terms) -> None:
        risk = terms.correlation.risk(state.correlation, state.bank.scale)
        best = terms.plan.best_gap(self._beliefs(state, terms), state.bank.scale, risk)
        if best is not None:
            state.gap, state.patience = best
        state.usual_gap += SLOW * (state.gap - state.usual_gap) if state.slots else state.gap

    def _beliefs(self, state: AdaptiveState, terms: Terms) -> Floats:
        """Belief in each member of the bank over all bins, shape (members,)."""
        scale = state.bank.scale
        beliefs: Floats = terms.bank.weights(state.bank) @ scale / scale.sum()
        return beliefs

    def _diagnostics(self, state: AdaptiveState, terms: Terms, surprise: float) -> dict[str, float]:
        beliefs = self._beliefs(state, terms)
        beta, _ = terms.correlation.belief(state.correlation)
        return {
            "gap": float(state.gap),
            "surprise": surprise,
            "trend": float(beliefs @ filter_bank.TRENDING[:, 0]),
            "white": float(beliefs @ filter_bank.WHITE[:, 0]),
            "correlation": float(np.sqrt(np.mean(beta**2))),
        }
