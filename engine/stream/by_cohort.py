"""Ledgers of requirements that change: one for each cohort."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from streamveil.engine.count.event_codes import BlockCounts, Layout, ShardCounts, slot_tables
from streamveil.engine.messages import (
    Message,
    compressed,
    expanded,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.engine.stream.drivers import JOINED, is_joined
from streamveil.mechanisms.adaptive.migration import migrated
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import DynamicLedgerEntry, Revised
from streamveil.mechanisms.core.user_table import stated_users
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicState, DynamicStream
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import SlotRelease


@dataclass(frozen=True, eq=False)
class _SlotCounts:
    """Counts of a slot and who moved before it."""

    counts: CohortCounts
    moves: Moves


@dataclass(frozen=True)
class ByCohort:
    """Requirements that change: counts by cohort, one slot at a time.

    If nobody can change, they still come as BlockCounts by class, and classes are the cohorts.
    """

    stream: DynamicStream
    layout: Layout
    joined: bool
    """Whether counts come by cohort, with who moved."""
    unknown: int | None = None
    """The class of which nobody said how many users it has."""
    fixed: ReleaseStream | None = None
    """What may have released the slots before, over requirements that did not change yet."""

    @property
    def parts(self) -> int:
        """Shards, of which each tells its counts."""
        return self.layout.parts

    @property
    def quiet(self) -> _SlotCounts:
        """Counts of a slot without events, before which no user moved."""
        nothing = np.zeros(0, np.int64)
        return _SlotCounts(CohortCounts(nothing, nothing, nothing), Moves.none())

    def start(self) -> DynamicState:
        """State before the first slot."""
        return self.stream.start()

    def encode(self, state: DynamicState, kept: Iterable[Message] = ()) -> bytes:
        """Bytes of the state, compressed: many ledgers have much in common.

        With them goes what shards keep, in any order.
        """
        written = self.stream.pack(state)
        if not self.joined:
            return self.stream.keeper.write(compressed(written))
        parts = several_to_bytes(written, *sorted(message.to_bytes() for message in kept))
        return JOINED + self.stream.keeper.write(compressed(parts))

    def decode(self, data: bytes) -> DynamicState:
        """State of bytes, also of those that were written while nobody could change."""
        if is_joined(data):
            return self.stream.unpack(self._parts(data)[0])
        if self.joined and self.fixed is not None:
            return migrated(self.fixed, self.fixed.decode(data), self.stream)
        return self.stream.unpack(expanded(self.stream.keeper.read(data)))

    def kept(self, data: bytes) -> list[Message]:
        """What each shard kept, of the bytes of a state."""
        return list(map(Message.from_bytes, self._parts(data)[1:]))

    def _parts(self, data: bytes) -> list[bytes]:
        return several_from_bytes(expanded(self.stream.keeper.read(data.removeprefix(JOINED))))

    def slots(
        self, block: int, parts: Iterable[Message]
    ) -> Iterator[tuple[int, _SlotCounts | None]]:
        """Counts and moves of all shards in a slot; or of a block of slots without moves."""
        if self.joined:
            yield block, self._of_shards(list(map(ShardCounts.of, parts)))
            return
        for slot, table in slot_tables(block, map(BlockCounts.of, parts), self.layout):
            classes, bins = np.nonzero(table)
            counts = CohortCounts(classes, bins, table[classes, bins])
            yield slot, _SlotCounts(counts, Moves.none()) if len(classes) else None

    def _of_shards(self, shards: list[ShardCounts]) -> _SlotCounts | None:
        if not any(len(one.counts) or len(one.moves.users) for one in shards):
            return None
        places, bins = np.divmod(
            np.concatenate([one.cells for one in shards]), np.int64(self.layout.bins)
        )
        sizes = [len(one.cells) for one in shards]
        before = np.cumsum([0, *(len(one.cohorts) for one in shards)])[:-1]
        cohorts = np.concatenate([one.cohorts for one in shards])
        counts = np.concatenate([one.counts for one in shards])
        moves = (tuple(vars(one.moves).values()) for one in shards)
        return _SlotCounts(
            CohortCounts(cohorts[places + np.repeat(before, sizes)], bins, counts),
            Moves(*map(np.concatenate, zip(*moves, strict=True))),
        )

    def release(
        self, state: DynamicState, slot: int, counted: _SlotCounts
    ) -> tuple[DynamicState, SlotRelease]:
        """Release the next slot."""
        return self.stream.release(state, slot, counted.counts, counted.moves)

    def rest(self, state: DynamicState) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised: the stream ends."""
        return self.stream.rest(state)

    def next_slot(self, state: DynamicState) -> int | None:
        """The slot that comes next."""
        return state.next_slot

    def use(self, state: DynamicState) -> float:
        """Largest share of any window looking back that is spent, but for those broken before."""
        return state.filter.use(state.interned.asked)

    def entry(self, state: DynamicState, slot: int, release: SlotRelease) -> DynamicLedgerEntry:
        """What the slot cost every ledger with users."""
        sizes = state.interned.sizes
        users = stated_users(sizes, state.interned.ledger_of(self.unknown))
        some = sizes > 0
        asked = state.interned.asked[some]
        spent = state.filter.in_window(state.interned.asked)[some]
        figures = asked.astype(np.float64)
        figures[:, [1, 3]] = to_epsilon(asked[:, [1, 3]])
        return DynamicLedgerEntry(
            slot,
            figures,
            users[some],
            to_epsilon(release.spent[some]),
            to_epsilon(spent),
            spent > asked[:, 1],
        )
