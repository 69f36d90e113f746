"""The dynamic personalized window size mechanism (DPWSM): the frame of DPBD and DPBA.

Source: Du et al., "Personalized w-event privacy for infinite stream estimation", Section 5, with
the schedule (Algorithms 6 and 7) as a part of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.schedule import DynamicSchedule, Offer
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import PUBLISHED
from streamveil.mechanisms.protocol import Members, Setting, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise
from streamveil.mechanisms.wevent.last_publication import Publication
from streamveil.mechanisms.wevent.pwsm import PWSM, PublicationState, decide

S = TypeVar("S")


class DPWSM(Generic[S]):
    """PWSM for requirements that change.

    Guarantee: pure. For every user and slot t with the requirement (w_B, E_B, w_F, E_F), the
    releases of the slots t to t + w_F - 1 differ in distribution by at most exp(E_F), and those of
    t - w_B + 1 to t by at most exp(E_B) unless earlier slots have already spent more: then slot t
    costs the user nothing.
    Adjacency and sensitivity: those of :class:`PWSM`. Requirements, and when they change, are
    public.
    Each slot costs `dissimilarity`, and `publication` on top if it publishes; the schedule keeps
    both within every window but for what `Offer.limit` takes off, and the filter checks the sum.
    """

    SCHEMAS = PWSM.SCHEMAS

    def __init__(
        self, schedule: Callable[[int], DynamicSchedule[S]], name: str, setting: Setting
    ) -> None:
        self.name = name
        self.setting = setting
        self.schedule = schedule(setting.horizon)

    def start(self) -> PublicationState[S]:
        """Nothing published yet: the estimate is zero everywhere."""
        return PublicationState(self.schedule.start(), Publication.nothing(self.setting.bins))

    def regroup(
        self, state: PublicationState[S], parents: npt.NDArray[np.int64]
    ) -> PublicationState[S]:
        """Fork, merge and drop ledgers."""
        return PublicationState(self.schedule.regroup(state.schedule, parents), state.last)

    def canonical(self, state: PublicationState[S], ledgers: npt.NDArray[np.int64]) -> Units:
        """All that the future of some ledgers depends on, shape (A, S)."""
        return self.schedule.canonical(state.schedule, ledgers)

    def price(self, state: PublicationState[S], members: Members) -> Units:
        """Begin the slot: what it costs if it publishes."""
        offer = self._offer(state, members)
        state.begun = members, offer
        return offer.dissimilarity + offer.publication

    def _offer(self, state: PublicationState[S], members: Members) -> Offer:
        return self.schedule.offer(state.schedule, members.asked).within_limit()

    def step(
        self, state: PublicationState[S], slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[PublicationState[S], SlotRelease]:
        """Release one slot."""
        members = slot_input.members
        assert members is not None
        begun, state.begun = state.begun, None
        offer = begun[1] if begun and begun[0] is members else self._offer(state, members)
        infeasible = members.sizes[offer.infeasible].sum() if offer.infeasible is not None else 0
        status = decide(state, offer, members, slot_input, noise)
        spent = offer.dissimilarity + (status == PUBLISHED) * offer.publication
        state.schedule = self.schedule.commit(state.schedule, offer, status == PUBLISHED)
        return state, state.last.release(status, spent, {"infeasible": float(infeasible)})

    def encode(self, state: PublicationState[S]) -> bytes:
        """Bytes of the state."""
        record = {"schedule": self.schedule.encode(state.schedule), **state.last.record()}
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> PublicationState[S]:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        last = Publication.of_record(record, self.setting.bins)
        return PublicationState(self.schedule.decode(record["schedule"]), last)
