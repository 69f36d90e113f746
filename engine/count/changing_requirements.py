"""Requirements that change: a shard's changes are joined with its bounded events, by cohort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from streamveil.engine.count.bounding import runs
from streamveil.engine.count.changes import NEVER, Changes, Keys, stranger_keys
from streamveil.engine.count.cohorts import Cohorts
from streamveil.engine.count.event_codes import MEMBERS, ShardKey, Visits, read_codes
from streamveil.engine.count.shards import NOTHING, ShardLogic, ShardOutput
from streamveil.engine.messages import Kind, Message
from streamveil.mechanisms.core.arrays import Integers


@dataclass(frozen=True, eq=False, kw_only=True)
class ChangingRequirements(ShardLogic):
    """Users are in cohorts by what they ask for in a slot, which public changes decide."""

    LABEL = "cohorts"

    longest_window: int
    """The longest window that a user may ask for, in slots."""

    @cached_property
    def sealing_key(self) -> bytes:
        """The secret of the mapper of changes."""
        assert self.change_mapper is not None
        return self.change_mapper().stranger_key

    @cached_property
    def _classes(self) -> Integers:
        """What the classes ask for, as in `Moves`."""
        return self.registry.classes.as_changing

    def shard(self, key: ShardKey) -> CohortShard:
        """A shard before its first slot."""
        return CohortShard(self, key)

    def cohorts(self, key: ShardKey) -> Cohorts:
        """The cohorts of a shard."""
        return Cohorts(
            key[0],
            self.layout.part(key),
            self.layout.parts,
            self._classes,
            self.registry.class_of,
            self.registry.default_class,
            self.longest_window,
            self.layout.bins,
        )


class _SlotEvents(NamedTuple):
    """Bounded events of one kind of users in one slot; all arrays of shape (n,)."""

    slot: int
    users: Keys
    bins: Integers
    kept: Integers


class CohortShard:
    """The users of one kind in a shard, slot by slot; before the first slot nobody has moved."""

    def __init__(self, logic: ChangingRequirements, key: ShardKey) -> None:
        self._logic = logic
        self._key = key
        self._cohorts = logic.cohorts(key)
        self._state = self._cohorts.start()

    def close(self, slot: int, visits: Message, changes: Changes) -> ShardOutput:
        """Close the next slot."""
        moves = len(changes.users) > 0 or self._cohorts.next_forgotten(self._state) <= slot
        output = self._close(slot, changes, list(self._slots(visits)))
        return output._replace(changed=moves)

    def close_blocks(self, blocks: dict[int, Message], changes: Changes) -> Iterator[ShardOutput]:
        """Close all slots of a bounded input; of those in which nothing happens nothing is said."""
        logic = self._logic
        assert logic.first_slot is not None
        last = NEVER - 1 if logic.last_slot is None else logic.last_slot
        events = chain.from_iterable(self._slots(blocks.pop(block)) for block in sorted(blocks))
        busy = next(events, None)
        while True:
            slot = min(
                max(changes.first, logic.first_slot),
                NEVER if busy is None else busy.slot,
                self._cohorts.next_forgotten(self._state),
            )
            if slot > last:
                break
            due, changes = changes.split(slot)
            there = [busy] if busy is not None and busy.slot == slot else []
            if there:
                busy = next(events, None)
            yield self._close(slot, due, there)
        if logic.keeps and (self._state.made or len(changes.users)):
            yield logic.kept(changes.first, self._key, self, changes)

    def to_bytes(self) -> bytes:
        """Who is in which cohort."""
        return self._cohorts.encode(self._state)

    def resume(self, data: bytes) -> None:
        """Go on from what :meth:`to_bytes` gave."""
        self._state = self._cohorts.decode(data)

    def _close(self, slot: int, changes: Changes, busy: list[_SlotEvents]) -> ShardOutput:
        """Apply changes, and count the events by cohort."""
        layout = self._logic.layout
        self._state, moves = self._cohorts.move(self._state, slot, changes)
        nothing = np.zeros(0, np.int64)
        users, bins, kept = (
            np.concatenate([getattr(one, name) for one in busy]) if busy else nothing
            for name in ("users", "bins", "kept")
        )
        counts, lost = self._cohorts.count(self._state, slot, moves, users, bins, kept)
        message = layout.message(Kind.COUNTS, slot, self._key, counts.to_bytes())
        no_requirement = {slot: lost} if lost else NOTHING
        return ShardOutput(message, int(counts.counts.sum()), 0, no_requirement)

    def _slots(self, message: Message) -> Iterator[_SlotEvents]:
        """Slots of a block with events, in order."""
        kind, layout = self._key[0], self._logic.layout
        visits = Visits.of(message)
        slots, users, bins = read_codes(kind, visits.codes, layout)
        keys = users if kind == MEMBERS else stranger_keys(visits.strangers)[users]
        order = np.argsort(slots, kind="stable")
        starts, lengths = runs(slots[order])
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            rows = order[start : start + length]
            slot = visits.block * layout.block + int(slots[rows[0]])
            yield _SlotEvents(slot, keys[rows], bins[rows], visits.kept[rows])
