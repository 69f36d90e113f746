"""The personalized window size mechanism (PWSM): the frame of BD, BA, PBD and PBA.

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Algorithm 2,
with the schedule (Algorithms 4 and 5) as a part of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.schedule import Offer, Schedule
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import NULLIFIED, PUBLISHED, SKIPPED, Requirement
from streamveil.mechanisms.protocol import Crowd, Members, Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise
from streamveil.mechanisms.wevent.dissimilarity import dissimilarity
from streamveil.mechanisms.wevent.last_publication import FIELDS, Publication
from streamveil.mechanisms.wevent.sampling import Sampling

S = TypeVar("S")

_MOST_CHOSEN = 256


@dataclass
class PublicationState(Generic[S]):
    """What the next slot needs to know: everything in it is public."""

    schedule: S
    """The schedule's own state."""
    last: Publication
    begun: tuple[Members, Offer] | None = None
    """What the next slot may spend, and on whom, once its price was asked where requirements
    change: not saved."""
    chosen: tuple[Crowd, dict[bytes, Sampling]] | None = None
    """How users of these slots were sampled, by their budgets: not saved."""


def decide(
    state: PublicationState[S],
    offer: Offer,
    crowd: Crowd,
    slot_input: SlotInput,
    noise: SlotNoise,
) -> str:
    """Publish, skip or nullify a slot, and remember what is published. Returns the status."""
    if offer.nullified:
        return NULLIFIED
    looking, publishing = _samplings(state, offer, crowd)
    moved = dissimilarity(slot_input.counts, state.last.counts, looking, noise)
    if not moved > np.sqrt(publishing.error):
        return SKIPPED
    state.last = Publication.by(publishing, slot_input.slot, slot_input.counts, noise)
    return PUBLISHED


def _samplings(state: PublicationState[S], offer: Offer, crowd: Crowd) -> tuple[Sampling, ...]:
    """For the dissimilarity and for a publication: in many slots budgets are those of earlier ones.

    Each slot since a publication has others, but after the next one they come again.
    """
    if state.chosen is None or state.chosen[0] is not crowd or len(state.chosen[1]) > _MOST_CHOSEN:
        state.chosen = crowd, {}
    known, found = state.chosen[1], []
    for budgets in (offer.dissimilarity, offer.publication):
        key = budgets.tobytes()
        if key not in known:
            known[key] = Sampling.choose(budgets, crowd)
        found.append(known[key])
    return tuple(found)


class PWSM(Generic[S]):
    """Publish when the private dissimilarity exceeds the error a publication would have.

    Guarantee: (w, E)-EPDP, pure: over any `window` consecutive slots, the releases of a user of
    class k differ in distribution by at most a factor exp(epsilon_k).
    Adjacency: streams that differ in one user's events, all added or removed (sensitivity 1 for
    one contribution a slot); replaced with twice the sensitivity.
    Sensitivity: 1 per contribution, of the histogram and of the dissimilarity alike.
    Each slot costs `dissimilarity`, and `publication` on top if it publishes; the schedule keeps
    both within the window, and the filter checks the sum.
    """

    SCHEMAS = {1: state_codec.record_schema("Publication", schedule="bytes", **FIELDS)}

    def __init__(
        self,
        schedule: Callable[[Sequence[Requirement]], Schedule[S]],
        name: str,
        population: Population,
    ) -> None:
        self.name = name
        self.schedule = schedule(population.requirements)
        self.population = population

    def start(self) -> PublicationState[S]:
        """Nothing published yet: the estimate is zero everywhere."""
        return PublicationState(self.schedule.start(), Publication.nothing(self.population.bins))

    def price(self, state: PublicationState[S]) -> Units:
        """What the slot costs if it publishes."""
        offer = self.schedule.offer(state.schedule)
        return offer.dissimilarity + offer.publication

    def step(
        self, state: PublicationState[S], slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[PublicationState[S], SlotRelease]:
        """Release one slot."""
        offer = self.schedule.offer(state.schedule)
        status = decide(state, offer, self.population, slot_input, noise)
        spent = offer.dissimilarity + (status == PUBLISHED) * offer.publication
        state.schedule = self.schedule.commit(state.schedule, offer, status == PUBLISHED)
        return state, state.last.release(status, spent)

    def grown(
        self, state: PublicationState[S], origin: npt.NDArray[np.int64]
    ) -> PublicationState[S]:
        """Turn a state with other bins into one of this mechanism, with 0 published for new bins.

        The dissimilarity of later slots is the distance from public counts, whatever the bins are,
        so its sensitivity stays the same. The schedule does not depend on the bins.
        """
        return PublicationState(state.schedule, state.last.grown(origin))

    def encode(self, state: PublicationState[S]) -> bytes:
        """Bytes of the state."""
        record = {"schedule": self.schedule.encode(state.schedule), **state.last.record()}
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> PublicationState[S]:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        last = Publication.of_record(record, self.population.bins)
        return PublicationState(self.schedule.decode(record["schedule"]), last)
