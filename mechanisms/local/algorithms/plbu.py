"""LDP budget uniform (LBU), and with everybody's own budget (PLBU): an even part every slot.

For comparison only.

Guarantee: any w_k slots cost class k at most w_k * floor(E_k / w_k) units; LBU keeps the strictest
requirement, which implies everybody's own.
Adjacency: any values of a user, in the slots of a window, for any others.
Sensitivity: a user has one symbol in a slot.
Source: Du et al., "Infinite stream estimation under personalized w-event privacy" (2025);
for LBU Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
Changed: it is unbiased. The published one counts perturbed answers as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED
from streamveil.mechanisms.local.algorithms.schedule import best_oracles, oracles_of
from streamveil.mechanisms.local.protocol import Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.local.server.combination import combine
from streamveil.mechanisms.local.server.last_publication import FIELDS, LocalPublication
from streamveil.mechanisms.randomness.noise import SlotNoise


@dataclass(frozen=True, eq=False)
class UniformState:
    """What was published last, and which slot is under way."""

    last: LocalPublication
    slot: int | None = None
    """The slot whose reports are awaited; None between slots."""


class Uniform:
    """Every user reports in every slot at the same price; PFO publishes every slot."""

    SCHEMAS = {1: state_codec.record_schema("LocalUniform", slot=["null", "long"], **FIELDS)}

    def __init__(self, name: str, users: Users, prices: Units, project: bool) -> None:
        self.name = name
        self.users = users
        self._project = project
        self._everybody = np.arange(users.class_of.size, dtype=np.int32)
        self._prices = prices
        self._kinds = best_oracles(prices, users.symbols)

    def start(self) -> UniformState:
        """Nothing published yet."""
        return UniformState(LocalPublication.nothing(self.users.symbols))

    def begin(self, state: UniformState, slot: int, random: SlotNoise) -> tuple[UniformState, Ask]:
        """Ask everybody."""
        return UniformState(state.last, slot), self._ask(slot)

    def _ask(self, slot: int) -> Ask:
        return Ask(slot, 1, self._everybody, self._prices, self._kinds)

    def take(
        self, state: UniformState, tally: Tally, random: SlotNoise
    ) -> tuple[UniformState, LocalRelease]:
        """Publish; without any report, repeat. Raises ValueError when no ask is open."""
        if state.slot is None:
            raise ValueError("reports arrived before any user was asked: begin the slot first")
        if not tally.reports.any():
            return UniformState(state.last), state.last.release(SKIPPED)
        oracles = oracles_of(self._ask(state.slot), self.users.symbols)
        frequencies, variances = combine(tally, oracles)
        epsilon = float(to_epsilon(self._prices.max()))
        last = LocalPublication.of(
            frequencies, variances, state.slot, epsilon, project=self._project
        )
        return UniformState(last), last.release(PUBLISHED)

    def encode(self, state: UniformState) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(self.SCHEMAS, {"slot": state.slot, **state.last.record()})

    def decode(self, data: bytes) -> UniformState:
        """State of bytes. Raises ConfigurationError for those of other symbols."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        last = LocalPublication.of_record(record, self.users.symbols)
        return UniformState(last, record["slot"])


class PLBU(Uniform):
    """Every user reports in every slot at E_k / w_k."""

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        super().__init__(name, users, users.classes.shares, project)


class LBU(Uniform):
    """Every user reports in every slot at min E / max w."""

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        super().__init__(name, users, users.classes.strictest.shares, project)
