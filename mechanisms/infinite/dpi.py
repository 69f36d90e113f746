"""DPI repaired: draw one of many public synopses in every slot. For comparison only.

Every slot draws from a public pool by the exponential mechanism: the score of a synopsis a is
minus the L1 distance of the slot's counts from n~ a, in the cumulative mode the sum of that over
all slots so far. The budgets of the slots are the terms of a convergent series, in an order that
no data has a part in. With `queries` half of a slot's budget draws a query, preferring what the
last release answers badly, and synopses are also scored by how they answer it. Several draws of a
slot share its budget and are averaged.

Guarantee: epsilon-DP for everything that a user ever contributes, pure, for infinitely many slots.
Adjacency: streams that differ in one user's events in any or all of the slots, all added or
removed; replaced with twice the sensitivity.
Sensitivity: with s contributions in a slot, s for a slot's score if the total n~ is public, and 2 s
if it is the slot's own; t times that for the sum over t slots. In the code it is in units of
1 / precision of a count.
Source: "DPI: ensuring strict differential privacy for infinite data streaming" (IEEE S&P, 2024).
Changed: the sum over t slots has t times the sensitivity, which the paper forgets: as published
the loss has no bound (docs/explanation/papers.md). Good synopses are preferred, not bad ones; the
pool's size and precision are public; the draw is exact; the series is that of `series.py`.
It errs more than releasing that all bins are alike: a pool of synopses that knows no data has
none that is near.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS, Units, to_units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.infinite import query_pool, spending_orders
from streamveil.mechanisms.infinite.held_distribution import (
    FIELDS,
    Held,
    lifetime_of,
    paid,
    spent_epsilon,
)
from streamveil.mechanisms.infinite.query_pool import SCALE
from streamveil.mechanisms.infinite.series import Series
from streamveil.mechanisms.infinite.synopses import synopses
from streamveil.mechanisms.protocol import Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.exponential import draw
from streamveil.mechanisms.randomness.noise import FINE_BITS, SlotNoise

MODES = ("instantaneous", "cumulative")
# Sums of losses stop here, which no sensitivity grows by.
_MOST = 1 << 60
# Counts stop here for the same reason: with a precision of 2**14 losses and answers stay below
# 2**60.
_MOST_EVENTS = 1 << 34
_MOST_PRECISION = 1 << 14
# Cells of the pool that are scored at once: 32 MB.
_CELLS = 1 << 22


@dataclass(frozen=True, eq=False)
class DPIState:
    """`losses` and `query_gains` are private."""

    held: Held
    taken: spending_orders.Taken = ()
    """Terms of the series that were spent."""
    slots: int = 0
    """Slots released so far."""
    losses: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """In the cumulative mode, losses of the synopses in all slots so far, shape (N,)."""
    query_gains: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """The same of the queries, shape (Q,)."""


class DPI:
    """The mechanism of the module.

    Args:
        name: with all options.
        population: one :class:`Lifetime` requirement.
        pool: number of synopses.
        precision: items of each synopsis, at most 16384.
        seed: public, of the pool and the order.
        mode: one of `MODES`.
        order: one of `orders.ORDERS`.
        scale: of the order `exponential`.
        p: power of the series.
        draws: how many synopses a slot draws.
        queries: whether queries are reweighted too.
        total: public number of events in a slot; 0 to use each slot's own, at twice the price. It
            also gives counts: they are zeros without it.

    Raises:
        ConfigurationError: for options out of range, or other requirements.
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "DPI",
            **FIELDS,
            taken=state_codec.LONGS,
            slots="long",
            losses="bytes",
            query_gains="bytes",
        )
    }

    def __init__(
        self,
        name: str,
        population: Population,
        *,
        pool: int = 10_000,
        precision: int = 1000,
        seed: int = 0,
        mode: str = "instantaneous",
        order: str = "decaying",
        scale: float = 1e-8,
        p: float = 2.0,
        draws: int = 1,
        queries: bool = False,
        total: int = 0,
    ) -> None:
        self.name = name
        self.population = population
        if mode not in MODES or not 1 <= precision <= _MOST_PRECISION or draws < 1 or total < 0:
            raise ConfigurationError(
                f"mechanism {name!r}: mode must be one of {', '.join(MODES)}, precision from 1 to "
                f"{_MOST_PRECISION}, draws 1 or more, total not negative"
            )
        self._cumulative = mode == "cumulative"
        self._order = spending_orders.order(order, seed, scale)
        self._series = Series(to_units(lifetime_of(name, population).epsilon), p)
        self._pool = synopses(population.bins, pool, precision, seed)
        self._precision = precision
        self._draws = draws
        self._queries = query_pool.queries(population.bins) if queries else None
        self._total = total

    def start(self) -> DPIState:
        """Nothing measured yet."""
        return DPIState(Held.uniform(self.population.bins, self._total))

    def price(self, state: DPIState) -> Units:
        """The slot's term of the series."""
        return paid(self._series.term(self._order.take(state.slots, state.taken)[0]))

    def step(
        self, state: DPIState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[DPIState, SlotRelease]:
        """Release one slot."""
        counts = np.minimum(slot_input.counts[0], _MOST_EVENTS // self.population.bins)
        term, taken = self._order.take(state.slots, state.taken)
        units = self._series.term(term)
        rounds = state.slots + 1 if self._cumulative else 1
        losses, gains, chosen = state.losses, state.query_gains, None
        budget = units
        if self._queries is not None:
            budget = units // 2
            pool = query_pool.with_top(self._queries, state.held.shares)
            gains = self._summed(gains, self._badly_answered(pool, counts, state.held.shares))
            rate = self._rate(budget, rounds, SCALE)
            chosen = pool[draw(-gains, rate, noise.words("query"))[0]] if rate else None
        rate = self._rate(budget // self._draws, rounds, 1 if self._queries is None else 2)
        held, spent = state.held, 0
        if rate or self._cumulative:
            losses = self._summed(losses, self._losses(counts, chosen))
        if rate:
            spent = units
            rows = draw(losses, rate, noise.words("synopsis"), self._draws)
            shares = self._pool[rows].mean(axis=0) / self._precision
            held = Held.of(shares, self._total, slot=slot_input.slot, epsilon=spent_epsilon(units))
        state = DPIState(held, taken, state.slots + 1)
        if self._cumulative:
            state = replace(state, losses=losses, query_gains=gains)
        facts = {"term": float(term)}
        return state, held.release(slot_input.slot, state.slots, spent, facts)

    def _rate(self, units: int, rounds: int, width: int) -> int:
        """Rate of a draw that costs at most these units, for losses `width` times as sensitive."""
        secret_total = 1 if self._total else 2
        change = self.population.sensitivity * self._precision * secret_total * rounds * width
        return (units << (FINE_BITS - UNIT_BITS)) // (2 * change)

    def _summed(self, before: Integers, now: Integers) -> Integers:
        """Losses so far and now; sums stop at a public number."""
        if not self._cumulative or not before.size:
            return now
        summed: Integers = np.clip(before + now, -_MOST, _MOST)
        return summed

    def _losses(self, counts: Integers, query: Integers | None) -> Integers:
        """Distance of each synopsis in 1 / precision counts, shape (N,).

        With a query also by how much its answer is wrong, on average over coefficients of 1.
        """
        n = self._total or int(counts.sum())
        n = min(n, _MOST_EVENTS)
        scaled = counts * self._precision
        found = np.empty(len(self._pool), dtype=np.int64)
        step = max(1, _CELLS // counts.size)
        for first in range(0, found.size, step):
            apart = scaled - n * self._pool[first : first + step].astype(np.int64)
            found[first : first + step] = np.abs(apart).sum(axis=1)
            if query is not None:  # floor(|x| / SCALE) is as sensitive as |x| / SCALE, rounded up
                found[first : first + step] += np.abs(apart @ query) // SCALE
        return found

    def _badly_answered(
        self, pool: Integers, counts: Integers, shares: npt.NDArray[np.float64]
    ) -> Integers:
        """By how much the last release is wrong about each query, in 1 / (precision SCALE)."""
        n = min(self._total or int(counts.sum()), _MOST_EVENTS)
        whole = np.floor(shares * self._precision).astype(np.int64)
        gains: Integers = np.abs(pool @ (counts * self._precision - n * whole))
        return gains

    def encode(self, state: DPIState) -> bytes:
        """Bytes of the state."""
        record: dict[str, Any] = {
            **state.held.record(),
            "taken": [edge for run in state.taken for edge in run],
            "slots": state.slots,
            "losses": state_codec.table_to_bytes(state.losses),
            "query_gains": state_codec.table_to_bytes(state.query_gains),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> DPIState:
        """State of bytes. Raises ConfigurationError for those of other bins."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        edges = record["taken"]
        losses, gains = (
            state_codec.table_from_bytes(record[name], (-1,)) for name in ("losses", "query_gains")
        )
        return DPIState(
            Held.of_record(record, self.population.bins),
            tuple(zip(edges[::2], edges[1::2], strict=True)),
            record["slots"],
            losses,
            gains,
        )
