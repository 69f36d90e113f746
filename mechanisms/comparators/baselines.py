"""Baselines that publish by the calendar and never look at the data first. For comparison only.

Guarantee: (w, E)-EPDP, pure, of PLBU and LBU in the local model: in exact integers

- `Uniform`, `PLBU`: any w_k slots cost class k at most w_k * floor(E_k / w_k) units;
- `LBU`: the same under the strictest requirement, which implies everybody's own;
- `Sample`: publications are max w_k slots apart, so any w_k slots hold at most one, which costs
  class k its E_k.

Adjacency: streams that differ in one user's events, all added or removed; replaced with twice the
sensitivity.
Sensitivity: 1 per contribution; above 1, budgets are divided by it (see `sampling.py`), or a user
sends so many reports a slot (see `randomized_response.py`).
Source: Kellaris et al., "Differentially private event sequences over infinite streams" (2014), for
`Uniform` and `Sample` under one requirement, with users sampled as in Du et al., "Personalized
w-event privacy for infinite stream estimation", Section 4.2; Ren et al., "LDP-IDS: local
differential privacy for infinite data streams" (2022), for `LBU`, and Section 6 of the journal
version of the former for `PLBU`.
Changed: shares, budgets and so the period are the users' own, and noise is discrete. Reports are
simulated from the true counts, debiased (in print they are counted as they are) and weighted by
their precision; absent users report too, so that reporting does not show who is present.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.comparators.randomized_response import RandomizedResponse
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED
from streamveil.mechanisms.protocol import Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise
from streamveil.mechanisms.wevent.last_publication import FIELDS, Publication, Publisher
from streamveil.mechanisms.wevent.sampling import Sampling


@dataclass
class PeriodicState:
    """When the next publication is due: public."""

    last: Publication
    slots: int = 0
    """Slots released so far."""


class Periodic:
    """Publish in the first slot and in every `period`-th slot after it, whatever the counts are.

    Guarantee: a publication costs class k `cost[k]`, all other slots nothing. So over any w slots
    ceil(w / period) * cost[k] is spent: choose both so that this is at most E_k.
    Where `publisher` cannot publish, every slot is skipped and nothing is spent.
    """

    SCHEMAS = {1: state_codec.record_schema("Periodic", slots="long", **FIELDS)}

    def __init__(
        self, name: str, population: Population, publisher: Publisher, cost: Units, period: int
    ) -> None:
        self.name = name
        self.population = population
        self.publisher = publisher
        self.cost = cost
        self.period = period

    def start(self) -> PeriodicState:
        """Nothing published yet."""
        return PeriodicState(Publication.nothing(self.population.bins))

    def price(self, state: PeriodicState) -> Units:
        """What the slot costs, which is known."""
        due = state.slots % self.period == 0 and self.publisher.epsilon > 0
        return self.cost if due else np.zeros_like(self.cost)

    def step(
        self, state: PeriodicState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[PeriodicState, SlotRelease]:
        """Release one slot."""
        status, last, spent = SKIPPED, state.last, self.price(state)
        if spent.any():
            last = Publication.by(self.publisher, slot_input.slot, slot_input.counts, noise)
            status = PUBLISHED
        return PeriodicState(last, state.slots + 1), last.release(status, spent)

    def encode(self, state: PeriodicState) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(self.SCHEMAS, {"slots": state.slots, **state.last.record()})

    def decode(self, data: bytes) -> PeriodicState:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        return PeriodicState(Publication.of_record(record, self.population.bins), record["slots"])


class Uniform(Periodic):
    """Every slot publishes with E_k / w_k, by SM at the threshold that OBS chooses.

    Its `stderr` is complete: noise, sampling, and the bias of sampling if classes are equally busy.
    """

    def __init__(self, name: str, population: Population) -> None:
        cost = population.requirements.shares
        super().__init__(name, population, Sampling.choose(cost, population), cost, period=1)


class Sample(Periodic):
    """One publication every max w_k slots with E_k, repeated in between (status `skipped`).

    Its `stderr` is that of the publication; a repeated count also misses what changed since.
    """

    def __init__(self, name: str, population: Population) -> None:
        cost = population.requirements.budgets
        period = population.requirements.longest
        super().__init__(name, population, Sampling.choose(cost, population), cost, period)


class PLBU(Periodic):
    """Personalised LDP budget uniform: all report in every slot by randomised response, E_k / w_k.

    That holds even towards whoever collects the reports.
    """

    def __init__(self, name: str, population: Population) -> None:
        cost = self.asked(population.requirements).shares
        publisher = RandomizedResponse.choose(cost, population)
        super().__init__(name, population, publisher, cost, period=1)

    def asked(self, requirements: Requirements) -> Requirements:
        """What the reports of each class keep."""
        return requirements


class LBU(PLBU):
    """LDP budget uniform: PLBU when everybody asks for the strictest, min E / max w."""

    def asked(self, requirements: Requirements) -> Requirements:
        """The strictest for all."""
        return requirements.strictest
