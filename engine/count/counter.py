"""What a host of counting needs to know: how the events of a block are bounded and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

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
from streamveil.engine.encode.dead_letters import late_slots, losses_of
from streamveil.engine.messages import REJECTED, TALLIES, Kind, Message, Output
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.core.user_table import Registry

_LOGGER = logging.getLogger("streamveil")

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
    make: Callable[[bytes], Counter] | None = None
    """Makes, on a worker, what counts if keys are discovered first; None where all are known."""

    def of(self, keys: bytes) -> Counter:
        """What counts events by the keys that were discovered, if there are any."""
        return self if self.make is None else self.make(keys)

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

    def by_query(self, tally: EventTally, events: Any) -> EventTally:
        """The tally of mapped events, with what each query could read, if there are any."""
        return tally

    @property
    def by_shard(self) -> bool:
        """Whether :meth:`messages` go to a shard, or else to the stream."""
        return self.by_user

    def messages(self, key: BlockKey, visits: Visits) -> Sequence[tuple[Any, Message]]:
        """(stream, BlockCounts), or (shard, Visits) if by user."""
        shard, block = key[:2], key[2]
        if self.by_user:
            return [(shard, self.layout.message(Kind.COUNTS, block, shard, visits.to_bytes()))]
        counts = count(key[0], visits, self.layout, self.registry.classes_with_other)
        return [(self.stream, self.layout.message(Kind.COUNTS, block, shard, counts.to_bytes()))]

    def late(self, key: BlockKey, events: int) -> pa.RecordBatch:
        """Dead letters for events of a block that came after it was closed."""
        return late_slots({key[2]: events})


class Maps(Protocol):
    """What turns batches into integers."""

    @property
    def slots(self) -> Slots:
        """How time is cut."""

    def map(self, batch: pa.RecordBatch, latest: int | None = None) -> tuple[Any, pa.RecordBatch]:
        """What is packed of a batch, and its dead letters: see :meth:`EventMapper.map`."""


def map_batch(
    mapper: Maps, counter: Counter, batch: pa.RecordBatch, latest: int | None = None
) -> Iterator[Output]:
    """A batch with rows to the events of each block and shard.

    On the side dead letters, and last an `EventTally` of the rows.
    """
    events, rejected = mapper.map(batch, latest)
    metrics.count(metrics.EVENTS_READ, batch.num_rows)
    losses = losses_of(rejected) if rejected.num_rows else {}
    if losses:
        for reason, some in losses.items():
            metrics.count(metrics.REJECTED_PREFIX + reason, some.events)
        yield Output(rejected, REJECTED)
    beyond = sent = 0
    layout = counter.layout
    for block, key, packed, dropped in counter.pack(events, layout, counter.bounding):
        beyond += dropped
        sent += 1
        yield Output(((*key, block), layout.message(Kind.EVENTS, block, key, packed.to_bytes())))
    tally = EventTally(batch.num_rows, losses, beyond, messages=sent)
    tally = counter.by_query(tally, events)
    metrics.count(metrics.EVENTS_BOUNDED_AWAY, tally.beyond_bound)
    metrics.count(metrics.EVENTS_COUNTED, tally.counted)
    yield Output(tally, TALLIES)


def warn_of_range(first_slot: int | None, last_slot: int | None) -> None:
    """Say so where the range of slots follows from the events."""
    if first_slot is None or last_slot is None:
        _LOGGER.warning(
            "the range of slots is taken from the events, so a single event can extend it: "
            "give its start and end to keep that private"
        )


def count_block(
    counter: Counter, key: BlockKey, messages: Iterable[Message], keys: bytes | None = None
) -> Iterator[Output]:
    """All events of a block and shard to what :class:`Counter` emits; on the side a tally.

    `keys` are those that were discovered, if there are any.
    """
    if keys is not None:
        counter = counter.of(keys)
    taken = list(messages)
    visits = counter.bound(key, taken)
    outputs = counter.messages(key, visits)
    tally = counter.tally(key, visits, len(outputs) - len(taken))
    yield Output(tally.to_bytes(), TALLIES)
    yield from map(Output, outputs)


@dataclass(frozen=True, eq=False)
class VisitCounter(Counter):
    """Tells who was where, for the devices of an edge stage to perturb."""

    @property
    def by_shard(self) -> bool:
        """Whether :meth:`messages` go to a shard, or else to the stream."""
        return False

    def messages(self, key: BlockKey, visits: Visits) -> Sequence[tuple[Any, Message]]:
        """(stream, Visits of registered users)."""
        shard, block = key[:2], key[2]
        return [(self.stream, self.layout.message(Kind.COUNTS, block, shard, visits.to_bytes()))]
