"""Gated: measure again only when what is released has become wrong. The default forever.

Slot 1 measures the total. Then epoch c = 1, 2, ... gets the c-th term of a convergent series, which
hardly decays for as many epochs as the measured total makes worth while, and then ever faster. A
part of it pays for a gate, which watches how far the counts of recent slots are from the released
distribution; the rest pays for one release of them when the gate opens, and that begins epoch
c + 1. However long an epoch lasts, it costs its term. What is released at first is that all bins
are alike.

The gate is the sparse vector technique: the noisy distance is compared with a noisy threshold,
and only the slot that passes it costs anything beyond the threshold's noise. A guard that grows
with the logarithm of the epoch's age keeps false alarms rare forever. It is data that makes an
epoch long, and not its price.

Guarantee: epsilon-DP for everything that a user ever contributes, pure, for infinitely many slots.
Adjacency: streams that differ in one user's events in any or all of the slots, all added or
removed; replaced with twice the sensitivity.
Sensitivity: with s contributions in a slot, s for a slot's total and for the mean of the counts of
m slots, 2 s for the distance from a released distribution: one user may be in all m slots.
Source: none; the sparse vector technique is Algorithm 1 of Lyu, Su, Li, "Understanding the sparse
vector technique" (2017), with a cutoff of 1.

In integers: distances are whole parts of a count, rounded down, which keeps the sensitivity; the
released distribution enters them as whole numbers of 2**-24 that sum to 2**24 at most; means are
released as sums of m slots with noise for m s. The gate's threshold and the recent counts are
private: they are in the state and are never released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import UNITS_PER_EPSILON, Units, to_units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.infinite.distance import GRID, MAX_EVENTS, Reference, largest_distance
from streamveil.mechanisms.infinite.held_distribution import (
    FIELDS,
    Held,
    lifetime_of,
    paid,
    spent_epsilon,
)
from streamveil.mechanisms.infinite.series import Harmonic, Series
from streamveil.mechanisms.infinite.shrinkage import SHRINKAGES
from streamveil.mechanisms.protocol import Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import (
    SlotNoise,
    armed,
    discrete_laplace,
    laplace_variance,
    passed,
)

# Most slots that are averaged.
RECENT = 8
# Part of the budget that measures the total.
TOTAL_PARTS, PARTS = 2, 100
# Slots of an epoch, for a guess of what its gate will see.
TYPICAL_AGE = 100
# Spans of slots that a gate watches.
SPANS = (1, 2, 4, RECENT)


@dataclass(frozen=True)
class Prices:
    """Units of an epoch."""

    threshold: int
    query: int
    release: int

    @property
    def gate(self) -> int:
        """What arming the gate costs."""
        return self.threshold + self.query


@dataclass(frozen=True, eq=False)
class GatedState:
    """An epoch under way; `threshold` and `recent` are private."""

    reference: Reference
    """What is released until the gate opens."""
    recent: tuple[Integers, ...] = field(default=(), repr=False)
    """Counts of up to 8 slots since the last release, each of shape (d,)."""
    total: int = 0
    epoch: int = 1
    slots: int = 0
    """Slots released so far."""
    since: int = 0
    """Slots that the gate was armed for."""
    threshold: int = field(default=0, repr=False)
    """The gate's noise on its threshold, in units of 1 / `GRID` counts."""


class Gated:
    """The mechanism of the module.

    Args:
        name: with all options.
        population: one :class:`Lifetime` requirement.
        epochs: how many epochs share half of the budget; 0 for as many as the total makes worth
            while: n epochs that see what is an n-th of the largest distance.
        p: power of a series c**-p of epochs in place of that one; 0 for none.
        gl: slope of the guard, above 1: less of it reacts sooner and is wrong more often.
        f_s: part of an epoch's budget that pays for its gate.
        worth: how many times the noise of a new release a distance must be.
        chance: how many times the distance that is expected by chance is taken off.
        spans: watch the last 1, 2, 4 and 8 slots (true), or 8 alone.
        latest: how many of the last slots are released as their mean.
        shrink: how a new release is drawn to the old one: see `shrinkage.py`.
        total: public number of events in a slot; 0 to measure it in the first slot.

    Raises:
        ConfigurationError: for options out of range, or other requirements.
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "Gated",
            **FIELDS,
            recent={"type": "array", "items": "bytes"},
            total="long",
            epoch="long",
            slots="long",
            since="long",
            threshold="long",
        )
    }

    def __init__(
        self,
        name: str,
        population: Population,
        *,
        epochs: int = 0,
        p: float = 0.0,
        gl: float = 1.1,
        f_s: float = 0.3,
        worth: float = 1.0,
        chance: float = 1.0,
        spans: bool = True,
        latest: int = 1,
        shrink: str = "bayes",
        total: int = 0,
    ) -> None:
        self.name = name
        self.population = population
        if not (gl > 1 and 0 < f_s < 1 and 0 <= worth < math.inf and 0 <= chance < math.inf):
            raise ConfigurationError(
                f"mechanism {name!r}: gl must be above 1, f_s between 0 and 1, worth and chance "
                "not negative"
            )
        if not (1 <= latest <= RECENT and total >= 0 and shrink in SHRINKAGES):
            raise ConfigurationError(
                f"mechanism {name!r}: latest must be from 1 to {RECENT}, total not negative, and "
                f"shrink one of {', '.join(SHRINKAGES)}"
            )
        if epochs < 0 or (epochs and p):
            raise ConfigurationError(
                f"mechanism {name!r}: epochs must be 0 or more, and p is for another series: leave "
                "one of them out"
            )
        self._guard_slope = gl
        self._gate_part = Fraction(f_s)
        self._worth = worth
        self._chance = chance
        self._spans = SPANS if spans else SPANS[-1:]
        self._latest = latest
        self._shrink = SHRINKAGES[shrink]
        self.public_total = total
        units = to_units(lifetime_of(name, population).epsilon)
        self.total_price = 0 if total else units * TOTAL_PARTS // PARTS
        self._units = units - self.total_price
        self._epochs = epochs
        self._power = Series(self._units, p) if p else None
        self._cached: tuple[tuple[int, int], Prices | None] = ((0, 0), None)

    def prices(self, epoch: int, total: int) -> Prices | None:
        """What an epoch costs; None when its budget is too small for any noise.

        With any total, which is public once it is measured, all epochs together cost at most what
        there is.
        """
        if self._cached[0] != (epoch, total):
            series = self._power or Harmonic(self._units, self._epochs or self._half(total))
            prices = self._divided(series.term(epoch))
            enough = prices.threshold >= self._step and prices.release >= self._width(RECENT)
            self._cached = ((epoch, total), prices if enough else None)
        return self._cached[1]

    def _divided(self, whole: int) -> Prices:
        threshold = math.floor(whole * self._gate_part) // 3
        return Prices(threshold, 2 * threshold, whole - 3 * threshold)

    def _half(self, total: int) -> int:
        """How many epochs share half of the budget.

        An epoch with an n-th of the budget has a gate that opens at n times the distance at which
        it would with all of it. That should be an n-th of the largest distance, which is 2 totals.
        """
        prices = self._divided(self._units)
        if not prices.threshold:
            return 1
        opens = self.guard(prices, TYPICAL_AGE) + self._least(prices)
        return max(1, math.isqrt(int(2 * total / opens)))

    @property
    def least_total(self) -> int:
        """About how many events a slot must have for any change to be measured; public.

        With fewer, the first gate stays shut even if all of them leave their bins.
        """
        prices = self.prices(1, self.public_total)
        if prices is None:
            return MAX_EVENTS
        opens = self.guard(prices, TYPICAL_AGE) + self._least(prices)
        return math.ceil(opens / 2)  # the largest distance is two totals

    @property
    def _step(self) -> int:
        """Sensitivity of a distance in units of 1 / `GRID` counts."""
        return 2 * self.population.sensitivity * GRID

    def _width(self, slots: int) -> int:
        """Sensitivity of the sum of the counts of some slots."""
        return slots * self.population.sensitivity

    def guard(self, prices: Prices, since: int) -> float:
        """How far above its threshold the gate opens, in counts; public."""
        unit = 2 * self.population.sensitivity * UNITS_PER_EPSILON
        query = 2 * unit / prices.query
        return unit / prices.threshold + self._guard_slope * query * math.log(since + 2)

    def start(self) -> GatedState:
        """Nothing measured yet."""
        total = self.public_total
        held = Held.uniform(self.population.bins, total)
        return GatedState(self._reference(held, total), total=total)

    def _reference(self, held: Held, total: int) -> Reference:
        return Reference.of(held, total, self._latest)

    def price(self, state: GatedState) -> Units:
        """What the slot costs if the gate opens, and the total if it is still to be measured.

        The larger the total is, the less the first epoch costs.
        """
        measures = self.total_price if state.slots == 0 else 0
        prices = self.prices(state.epoch, 0 if measures else state.total)
        if prices is None:
            return paid(measures)
        return paid(measures + (prices.gate if state.since == 0 else 0) + prices.release)

    def step(
        self, state: GatedState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[GatedState, SlotRelease]:
        """Release one slot. Raises ValueError for more than 2**34 events in it."""
        counts = slot_input.counts[0].copy()  # the state keeps it
        if counts.sum() >= MAX_EVENTS:
            raise ValueError(f"slot {slot_input.slot} has more than {MAX_EVENTS} events")
        spent = 0
        if state.slots == 0 and self.total_price:
            state, spent = self._measured_total(state, counts, noise)
        prices = self.prices(state.epoch, state.total)
        if prices is None:
            state = replace(state, slots=state.slots + 1)
        else:
            if state.since == 0:
                spent += prices.gate
                state = replace(state, threshold=self._threshold(prices, noise))
            state = _with(state, counts)
            if self._opens(state, prices, noise):
                state = self._released(state, prices, slot_input.slot, noise)
                spent += prices.release
        facts = {"epoch": float(state.epoch), "total": float(state.total)}
        return state, state.reference.held.release(slot_input.slot, state.slots, spent, facts)

    def _measured_total(
        self, state: GatedState, counts: Integers, noise: SlotNoise
    ) -> tuple[GatedState, int]:
        rate = self.total_price // self.population.sensitivity
        if rate == 0:
            return state, 0
        measured = counts.sum(keepdims=True) + discrete_laplace(rate, 1, noise.words("total"))
        total = max(int(measured[0]), 0)
        held = Held.uniform(self.population.bins, total)
        return replace(state, reference=self._reference(held, total), total=total), self.total_price

    def _threshold(self, prices: Prices, noise: SlotNoise) -> int:
        rate = prices.threshold // self._step
        words = noise.words("threshold")
        drawn = int(discrete_laplace(rate, 1, words)[0])
        armed(rate, words)
        return drawn

    def _opens(self, state: GatedState, prices: Prices, noise: SlotNoise) -> bool:
        """Whether the noisy distance passes the noisy threshold: all that a slot tells."""
        rate = prices.query // (2 * self._step)
        found = largest_distance(state.recent, self._spans, state.reference, self._chance)
        words = noise.words("query")
        noisy = found + int(discrete_laplace(rate, 1, words)[0])
        base = self.guard(prices, state.since - 1) + self._least(prices)
        return passed(found, rate, noisy >= state.threshold + math.ceil(GRID * base), words)

    def _least(self, prices: Prices) -> float:
        """The distance that is not worth a release, in counts; public."""
        scale = self.population.sensitivity * UNITS_PER_EPSILON / prices.release
        return self._worth * self.population.bins * scale

    def _released(
        self, state: GatedState, prices: Prices, slot: int, noise: SlotNoise
    ) -> GatedState:
        recent = state.recent[-self._latest :]
        slots = len(recent)
        rate = prices.release // self._width(slots)
        bins = self.population.bins
        drawn = discrete_laplace(rate, bins, noise.words("release"))
        mean = (np.sum(recent, axis=0) + drawn) / slots
        variance = laplace_variance(rate) / slots**2
        held = state.reference.held
        shares = self._shrink(mean, variance, held.shares, state.total)
        error = np.full(bins, math.sqrt(variance))
        held = held.measured(shares, state.total, error, slot, spent_epsilon(prices.release))
        return replace(
            state,
            reference=self._reference(held, state.total),
            recent=(),
            epoch=state.epoch + 1,
            since=0,
        )

    def encode(self, state: GatedState) -> bytes:
        """Bytes of the state."""
        record: dict[str, Any] = {
            name: getattr(state, name) for name in ("total", "epoch", "slots", "since", "threshold")
        }
        held = state.reference.held.record()
        recent = [state_codec.table_to_bytes(counts) for counts in state.recent]
        return state_codec.pack(self.SCHEMAS, {**record, **held, "recent": recent})

    def decode(self, data: bytes) -> GatedState:
        """State of bytes. Raises ConfigurationError for those of other bins."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        bins = self.population.bins
        recent = (state_codec.table_from_bytes(row, (bins,)) for row in record["recent"])
        return GatedState(
            self._reference(Held.of_record(record, bins), record["total"]),
            tuple(recent),
            **{name: record[name] for name in ("total", "epoch", "slots", "since", "threshold")},
        )


def _with(state: GatedState, counts: Integers) -> GatedState:
    """The state with one more recent slot."""
    recent = (*state.recent, counts)[-RECENT:]
    return replace(state, recent=recent, slots=state.slots + 1, since=state.since + 1)
