"""Ledgers where users count in a few slots only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streamveil.engine.count.chosen_limits import choice_message, count_chosen, limits_from
from streamveil.engine.count.event_codes import BlockCounts, Layout, slot_tables, slots_beyond
from streamveil.engine.count.participants import migrated_counters
from streamveil.engine.messages import (
    Kind,
    Message,
    compressed,
    expanded,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.engine.stream.drivers import JOINED, is_joined
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import LedgerEntry, Revised
from streamveil.mechanisms.core.user_table import stated_users
from streamveil.mechanisms.driver.present_stream import PresentState, PresentStream
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.presence.limits import known_sizes
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.randomness.noise import digest


class _PresentCounts(NamedTuple):
    """Counts of a slot, and what does not count."""

    counts: Integers
    beyond: Beyond


class ByPresence:
    """Users count in a few slots only: counts are BlockCounts, with what does not count.

    Args:
        make: gives the stream under the limit of each class.
        layout: how counts are coded.
        limits: of each class; where they are to be chosen, as long as they are not.
        fixed: where users may move from class to class, gives what may have released the slots
            before, when nobody could.
    """

    def __init__(
        self,
        make: Callable[[tuple[Limit, ...]], PresentStream],
        layout: Layout,
        limits: tuple[Limit, ...],
        fixed: Callable[[], ByPresence] | None = None,
        unknown: int | None = None,
    ) -> None:
        self.layout, self.unknown = layout, unknown
        self.stream, self.limits = make(limits), limits
        self._make, self._fixed = make, fixed

    def chosen(self, choice: Message) -> ByPresence:
        """The same under limits that were chosen."""
        limits = limits_from(choice)
        return ByPresence(self._make, self.layout, limits, self._fixed, self.unknown)

    def tell_chosen(self) -> None:
        """Count the users under each of the limits that were chosen: all of it is public."""
        population, asked = self.stream.mechanism.population, self.stream.asked
        count_chosen(population.sizes, self.limits, asked)

    @property
    def _choices(self) -> list[Message]:
        """What the state keeps of limits that were chosen, if they were."""
        return [choice_message(self.limits)] if any(one.chosen for one in self.limits) else []

    @property
    def parts(self) -> int:
        """Shards, of which each tells its counts."""
        return self.layout.parts

    @property
    def quiet(self) -> _PresentCounts:
        """Counts of a slot without events."""
        nothing = np.zeros((self.layout.classes, self.layout.bins), np.int64)
        return _PresentCounts(nothing, Beyond.none())

    def start(self) -> PresentState:
        """State before the first slot."""
        state = self.stream.start()
        if not self._choices:
            return state
        # Were other limits chosen, the same counts would draw other noise.
        history = digest(state.stream.history, b"chosen limits", self._choices[0].payload)
        return replace(state, stream=replace(state.stream, history=history))

    def encode(self, state: PresentState, kept: Iterable[Message] = ()) -> bytes:
        """Bytes of the state; with it goes what shards keep of who counted, in any order."""
        written = self.stream.pack(state)
        messages = (*kept, *self._choices)
        parts = several_to_bytes(written, *sorted(message.to_bytes() for message in messages))
        joined = b"" if self._fixed is None else JOINED
        return joined + self.stream.keeper.write(compressed(parts))

    def decode(self, data: bytes) -> PresentState:
        """State of bytes, also of those that were written while nobody could change."""
        if self._fixed is not None and not is_joined(data):
            return self.stream.migrated(self._fixed().decode(data))
        return self.stream.unpack(self._parts(data)[0])

    def kept(self, data: bytes) -> list[Message]:
        """What each shard kept, of the bytes of a state."""
        if self._fixed is not None and not is_joined(data):
            return [
                migrated_counters(one, self.layout.key(one.shard)[0])
                for one in self._fixed().kept(data)
            ]
        return [one for one in self._messages(data) if one.kind is Kind.KEPT]

    def gone_on(self, data: bytes) -> ByPresence:
        """The same under the limits that were chosen before a state was written."""
        made = [one for one in self._messages(data) if one.kind is Kind.CHOICE]
        return self.chosen(made[0]) if made else self

    def _messages(self, data: bytes) -> list[Message]:
        return list(map(Message.from_bytes, self._parts(data)[1:]))

    def _parts(self, data: bytes) -> list[bytes]:
        if self._fixed is not None:
            data = data.removeprefix(JOINED)
        return several_from_bytes(expanded(self.stream.keeper.read(data)))

    def slots(
        self, block: int, parts: Iterable[Message]
    ) -> Iterator[tuple[int, _PresentCounts | None]]:
        """Tables of a block of slots, and what does not count."""
        counted = list(map(BlockCounts.of, parts))
        tables = slot_tables(block, counted, self.layout)
        for (slot, table), beyond in zip(tables, slots_beyond(counted, self.layout), strict=True):
            some = table.any() or len(beyond.events)
            yield slot, _PresentCounts(table, beyond) if some else None

    def release(
        self, state: PresentState, slot: int, counted: _PresentCounts
    ) -> tuple[PresentState, SlotRelease]:
        """Release the next slot."""
        return self.stream.release(state, slot, *counted)

    def rest(self, state: PresentState) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised: the stream ends."""
        return self.stream.rest(state)

    def next_slot(self, state: PresentState) -> int | None:
        """The slot that comes next."""
        return state.stream.next_slot

    def use(self, state: PresentState) -> float:
        """Largest share of any class's budget that is spent."""
        return float(state.stream.filter.use())

    def entry(self, state: PresentState, slot: int, release: SlotRelease) -> LedgerEntry:
        """What the slot cost whoever of a class counted in it."""
        booked = state.stream.filter
        sizes = known_sizes(self.stream.mechanism.population.sizes)
        sizes = stated_users(sizes, self.unknown)
        spent = to_epsilon(release.spent)
        return LedgerEntry(slot, booked.requirements, sizes, spent, to_epsilon(booked.in_window))
