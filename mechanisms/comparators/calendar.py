"""Publishing by the calendar: the frame of the comparators that never look at the data first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED
from streamveil.mechanisms.core.units import Units
from streamveil.mechanisms.protocol import Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise
from streamveil.mechanisms.wevent.last_publication import FIELDS, Publication, Publisher


@dataclass
class PeriodicState:
    """When the next publication is due: public."""

    last: Publication
    slots: int = 0
    """Slots released so far."""


class Periodic:
    """Publish in the first slot and in every `period`-th slot after it, whatever the counts are.

    Guarantee: a publication costs class k `price[k]`, all other slots nothing. So over any w slots
    ceil(w / period) * price[k] is spent: choose both so that this is at most E_k.
    Where `publisher` cannot publish, every slot is skipped and nothing is spent.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "Periodic",
            "fields": [{"name": "slots", "type": "long"}, *FIELDS],
        }
    }

    def __init__(
        self, name: str, population: Population, publisher: Publisher, price: Units, period: int
    ) -> None:
        self.name = name
        self.population = population
        self.publisher = publisher
        self.price = price
        self.period = period

    def start(self) -> PeriodicState:
        """Nothing published yet."""
        return PeriodicState(Publication.nothing(self.population.bins))

    def step(
        self, state: PeriodicState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[PeriodicState, SlotRelease]:
        """Release one slot."""
        status, last, spent = SKIPPED, state.last, np.zeros_like(self.price)
        if state.slots % self.period == 0 and self.publisher.epsilon > 0:
            last = Publication.by(self.publisher, slot_input.slot, slot_input.counts, noise)
            status, spent = PUBLISHED, self.price
        return PeriodicState(last, state.slots + 1), last.release(status, spent)

    def encode(self, state: PeriodicState) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(self.SCHEMAS, {"slots": state.slots, **state.last.record()})

    def decode(self, data: bytes) -> PeriodicState:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        return PeriodicState(Publication.of_record(record, self.population.bins), record["slots"])
