"""Baselines that release by the calendar, never by the data: constant, doubling, horizon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units, to_units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.infinite.held_distribution import (
    FIELDS,
    Held,
    lifetime_of,
    paid,
    spent_epsilon,
)
from streamveil.mechanisms.infinite.series import Series
from streamveil.mechanisms.infinite.shrinkage import SHRINKAGES
from streamveil.mechanisms.protocol import Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise, discrete_laplace, laplace_variance


@dataclass(frozen=True, eq=False)
class PlannedState:
    """How far the plan is: public."""

    held: Held
    slots: int = 0
    """Slots released so far."""


class Planned:
    """Release a slot's counts with Laplace noise at the price that a plan has for it.

    Guarantee: epsilon-DP for everything that a user ever contributes, if all prices of the plan
    together are at most epsilon. Adjacency and sensitivity are those of `gated.py`.
    """

    SCHEMAS = {1: state_codec.record_schema("Planned", **FIELDS, slots="long")}

    _SHRINK = "none"

    def __init__(self, name: str, population: Population, total: int) -> None:
        self.name = name
        self.population = population
        self.units = to_units(lifetime_of(name, population).epsilon)
        if total < 0:
            raise ConfigurationError(f"mechanism {name!r}: a total of {total} is negative")
        self._total = total

    def term(self, slots: int) -> int:
        """Units for a slot before which there were this many."""
        raise NotImplementedError

    def price(self, state: PlannedState) -> Units:
        """What the slot costs, which is known: nothing if that is too little for any noise."""
        units = self.term(state.slots)
        return paid(units if units >= self.population.sensitivity else 0)

    def start(self) -> PlannedState:
        """Nothing measured yet."""
        return PlannedState(Held.uniform(self.population.bins, self._total))

    def step(
        self, state: PlannedState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[PlannedState, SlotRelease]:
        """Release one slot."""
        held, spent = state.held, int(self.price(state)[0])
        if rate := spent // self.population.sensitivity:
            drawn = discrete_laplace(rate, self.population.bins, noise.words("release"))
            noisy = (slot_input.counts[0] + drawn).astype(np.float64)
            total = max(int(noisy.sum()), 0)
            variance = laplace_variance(rate)
            known = self._total or int(held.counts.sum())
            shares = SHRINKAGES[self._SHRINK](noisy, variance, held.shares, known)
            error = np.full(noisy.size, math.sqrt(variance))
            held = held.measured(
                shares, self._total or total, error, slot_input.slot, spent_epsilon(spent)
            )
        state = PlannedState(held, state.slots + 1)
        return state, held.release(slot_input.slot, state.slots, spent, {})

    def encode(self, state: PlannedState) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(self.SCHEMAS, {**state.held.record(), "slots": state.slots})

    def decode(self, data: bytes) -> PlannedState:
        """State of bytes. Raises ConfigurationError for those of other bins."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        return PlannedState(Held.of_record(record, self.population.bins), record["slots"])


class Constant(Planned):
    """All bins alike forever, whatever happens. It costs nothing: what is worse is useless."""

    def __init__(self, name: str, population: Population, *, total: int = 0) -> None:
        super().__init__(name, population, total)

    def term(self, slots: int) -> int:
        """Nothing."""
        return 0


class Doubling(Planned):
    """Release slots 1, 2, 4, 8, ... from a convergent series, and hold in between.

    Each is drawn to the one before as far as it may be noise.
    """

    _SHRINK = "james-stein"

    def __init__(
        self, name: str, population: Population, *, p: float = 1.5, total: int = 0
    ) -> None:
        super().__init__(name, population, total)
        self._series = Series(self.units, p)

    def term(self, slots: int) -> int:
        """The k-th term for slot 2**(k - 1), from slot 1 on."""
        number = slots + 1
        return 0 if number & (number - 1) else self._series.term(number.bit_length())


class Horizon(Planned):
    """NOT INFINITE: an even part of the budget for every slot up to a horizon, then none at all.

    It keeps its promise forever by releasing nothing new after the horizon.
    """

    def __init__(
        self, name: str, population: Population, *, slots: int = 1000, total: int = 0
    ) -> None:
        super().__init__(name, population, total)
        if slots < 1:
            raise ConfigurationError(f"mechanism {name!r}: a horizon of {slots} slots is not 1 up")
        self._slots = slots

    def term(self, slots: int) -> int:
        """An even part within the horizon."""
        return self.units // self._slots if slots < self._slots else 0
