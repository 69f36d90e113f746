"""What a host of counting needs to know: how a block's events are bounded, counted and told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from streamveil.engine import metrics
from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.event_codes import (
    Layout,
    Packed,
    ShardKey,
    Visits,
    bound_block,
    count,
    pack,
)
from streamveil.engine.encode.dead_letters import late_slots
from streamveil.engine.messages import Kind, Message
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.user_table import Registry

BlockKey = tuple[int, int, int]
"""(MEMBERS or STRANGERS, shard of these, block)"""

Pack = Callable[[Any, Any, Bounding], Iterator[tuple[int, ShardKey, Packed, int]]]
"""As :func:`pack`, of the layout of the counter that has it."""


@dataclass(frozen=True, eq=False)
class Counter:
    """Bounds the codes of a block and shard, and emits them."""

    registry: Registry
    layout: Layout
    make_bounding: Callable[[], Bounding]
    """Gives, on a worker, which contributions of a user in a slot are kept: it holds a secret."""
    stream: str
    by_user: bool
    """Whether users cannot be counted by class here: requirements change, or presence is limited.
    """
    max_rejected: float = 1.0
    """Share of the events that may be lost before somebody has to look."""
    pack: Pack = pack
    """Turns what a batch is mapped to into arrays to shuffle."""

    @cached_property
    def bounding(self) -> Bounding:
        """Which contributions of a user in a slot are kept."""
        return self.make_bounding()

    def bound(self, key: BlockKey, messages: Iterable[Message]) -> Visits:
        """Bounded events of some of the block's users."""
        kind, _, block = key
        parts = [Packed.from_bytes(message.payload) for message in messages]
        if not parts:
            return Visits.none(kind, block, self.layout)
        return bound_block(kind, block, parts, self.layout, self.bounding)

    def tally(self, key: BlockKey, visits: Visits, messages: int) -> EventTally:
        """What became of a block's events; and tell the counters.

        Where a later step counts, some of those kept may still be rejected or left out. `messages`
        are those that were sent on, less those that came.
        """
        counted = 0 if self.by_user else int(visits.kept.sum())
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, visits.dropped)
        metrics.count(metrics.EVENTS_COUNTED, counted)
        return EventTally(beyond_bound=visits.dropped, counted=counted, messages=messages)

    def by_question(self, tally: EventTally, events: Any) -> EventTally:
        """The tally of mapped events, with what each question could read, if there are any."""
        return tally

    @property
    def by_shard(self) -> bool:
        """Whether what :meth:`told` gives goes to a shard, or else to the stream."""
        return self.by_user

    def told(self, key: BlockKey, visits: Visits) -> Sequence[tuple[Any, Message]]:
        """(stream, BlockCounts), or (shard, Visits) if by user."""
        shard, block = key[:2], key[2]
        if self.by_user:
            return [(shard, self.layout.message(Kind.COUNTS, block, shard, visits.to_bytes()))]
        counts = count(key[0], visits, self.layout, self.registry.classes_with_other)
        return [(self.stream, self.layout.message(Kind.COUNTS, block, shard, counts.to_bytes()))]

    def late(self, key: BlockKey, events: int) -> pa.RecordBatch:
        """Dead letters for events of a block that came after it was closed."""
        return late_slots({key[2]: events})


@dataclass(frozen=True, eq=False)
class VisitCounter(Counter):
    """Tells who was where, for the devices of an edge stage to perturb."""

    @property
    def by_shard(self) -> bool:
        """Whether what :meth:`told` gives goes to a shard, or else to the stream."""
        return False

    def told(self, key: BlockKey, visits: Visits) -> Sequence[tuple[Any, Message]]:
        """(stream, Visits of registered users)."""
        shard, block = key[:2], key[2]
        return [(self.stream, self.layout.message(Kind.COUNTS, block, shard, visits.to_bytes()))]
