"""Ledgers of fixed requirements: one for each class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from streamveil.engine.count.event_codes import BlockCounts, Layout, slot_tables
from streamveil.engine.messages import Message
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import LedgerEntry
from streamveil.mechanisms.core.user_table import stated_users
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.driver.stream import ReleaseStream, StreamState
from streamveil.mechanisms.protocol import Mechanism, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource


class ByClass(ReleaseStream):
    """Fixed requirements: counts are BlockCounts, then tables of shape (K, d)."""

    def __init__(
        self,
        mechanism: Mechanism[Any],
        noise: NoiseSource,
        layout: Layout,
        context: Parts,
        unknown: int | None = None,
    ) -> None:
        super().__init__(mechanism, noise, context=context)
        self.layout, self.unknown = layout, unknown

    @property
    def parts(self) -> int:
        """Shards, of which each tells its counts."""
        return self.layout.parts

    @property
    def quiet(self) -> Integers:
        """Counts of a slot without events."""
        return np.zeros((self.layout.classes, self.layout.bins), dtype=np.int64)

    def slots(self, block: int, parts: Iterable[Message]) -> Iterator[tuple[int, Integers | None]]:
        """Tables of a block of slots."""
        for slot, table in slot_tables(block, map(BlockCounts.of, parts), self.layout):
            yield slot, table if table.any() else None

    def next_slot(self, state: StreamState) -> int | None:
        """The slot that comes next."""
        return state.next_slot

    def use(self, state: StreamState) -> float:
        """Largest share of any class's window that is spent."""
        return state.filter.use()

    def entry(self, state: StreamState, slot: int, release: SlotRelease) -> LedgerEntry:
        """What the slot cost every class."""
        population = self.mechanism.population
        users = population.sizes
        if self.unknown is not None:
            users = stated_users(users, self.unknown)
        return LedgerEntry(
            slot,
            population.requirements,
            users,
            to_epsilon(release.spent),
            to_epsilon(state.filter.in_window),
        )
