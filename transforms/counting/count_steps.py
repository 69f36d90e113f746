"""From batches of events to counts of blocks of slots: around the one shuffle of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints import KV, Tuple
from apache_beam.utils.timestamp import Timestamp

from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import MICROSECONDS
from streamveil.mechanisms.core.user_table import Registry
from streamveil.transforms import metrics
from streamveil.transforms.columns.dead_letters import late_slots, losses_of, tally_of
from streamveil.transforms.columns.event_mapper import EventMapper
from streamveil.transforms.counting.bounding import Bounding
from streamveil.transforms.counting.event_codes import (
    MEMBERS,
    STRANGERS,
    BlockCounts,
    Layout,
    ShardCounts,
    Visits,
    bound_block,
    count,
    pack,
)
from streamveil.transforms.counting.loss_limit import TALLIES, LossWatch
from streamveil.transforms.messages import (
    Part,
    counts_to_bytes,
    packed_from_bytes,
    packed_to_bytes,
    part_to_bytes,
    shard_counts_to_bytes,
    visits_to_bytes,
)
from streamveil.transforms.release.release_steps import REJECTED
from streamveil.transforms.slots.clock import Clock

# Clocks of devices are wrong by minutes. What is further ahead of a stream would wait in its state
# until its time comes, which for a broken clock may be years.
MOST_AHEAD = MICROSECONDS["d"]

BlockKey = tuple[int, int, int]
"""(kind, shard, block)"""

_OPEN = b""  # among the codes of a slot: its heartbeat


def open_blocks(tick: tuple[str, int], layout: Layout) -> Iterator[tuple[BlockKey, bytes]]:
    """Tell every shard that a slot is open; blocks are of one slot."""
    for kind in (MEMBERS, STRANGERS):
        for shard in range(layout.shards):
            yield (kind, shard, tick[1]), _OPEN


class _MapEventsFn(beam.DoFn):
    """Record batches to ((kind, shard, block), codes as bytes).

    On the side dead letters, and of a bounded input tallies as bytes.
    """

    def __init__(
        self,
        make_mapper: Callable[[], EventMapper],
        counter: Counter,
        *,
        bounded: bool,
        real_time: bool,
    ) -> None:
        self._make_mapper = make_mapper
        self._counter = counter
        self._bounded = bounded
        self._real_time = real_time

    def setup(self) -> None:
        self._mapper = self._make_mapper()
        self._mapper.warm()
        self._watch = LossWatch(self._counter.max_rejected)

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        lost = tally_of(element)
        if not element.num_rows:  # of no rows a column may have any type
            if self._bounded and lost.read:
                yield beam.pvalue.TaggedOutput(TALLIES, lost.to_bytes())
            return
        latest = None
        if self._real_time:
            latest = self._mapper.slots.index(Timestamp.now().micros + MOST_AHEAD)
        events, rejected = self._mapper.map(element, latest)
        metrics.count(metrics.EVENTS_READ, element.num_rows)
        losses = losses_of(rejected) if rejected.num_rows else {}
        if losses:
            for reason, some in losses.items():
                metrics.count(metrics.REJECTED_PREFIX + reason, some.events)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        beyond = 0
        counter = self._counter
        for block, (kind, shard), packed, dropped in pack(events, counter.layout, counter.bounding):
            beyond += dropped
            yield (kind, shard, block), packed_to_bytes(packed)
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, beyond)
        tally = EventTally(element.num_rows, losses, beyond)
        if self._bounded:
            told = EventTally.total([lost, tally]).to_bytes()
            yield beam.pvalue.TaggedOutput(TALLIES, told)
        else:
            self._watch.see(tally)


@dataclass(frozen=True, eq=False)
class Counter:
    """Bounds the codes of a block and shard, and tells them."""

    registry: Registry
    layout: Layout
    make_bounding: Callable[[], Bounding]
    """Gives, on a worker, which contributions of a user in a slot are kept: it holds a secret."""
    stream: str
    dynamic: bool
    """Whether requirements change, so that users cannot be counted by class here."""
    max_rejected: float = 1.0
    """Share of the events that may be lost before somebody has to look."""

    @cached_property
    def bounding(self) -> Bounding:
        """Which contributions of a user in a slot are kept."""
        return self.make_bounding()

    @cached_property
    def _class_of(self) -> npt.NDArray[np.int32]:
        return self.registry.classes_with_other()

    def bound(self, key: BlockKey, codes: Iterable[bytes]) -> Visits:
        """Bounded events of some of the block's users."""
        kind, _, block = key
        parts = list(map(packed_from_bytes, codes))
        if not parts:
            return Visits.none(kind, block, self.layout)
        return bound_block(kind, block, parts, self.layout, self.bounding)

    def tally(self, visits: Visits) -> EventTally:
        """What became of a block's events, and tell the counters.

        Where requirements change, some of those kept may still be rejected: they are not counted
        yet.
        """
        counted = 0 if self.dynamic else int(visits.kept.sum())
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, visits.dropped)
        metrics.count(metrics.EVENTS_COUNTED, counted)
        return EventTally(beyond_bound=visits.dropped, counted=counted)

    @property
    def told_type(self) -> Any:
        """Type of what :meth:`told` gives."""
        return KV[Tuple[int, int], bytes] if self.dynamic else KV[str, bytes]

    def told(self, key: BlockKey, visits: Visits) -> tuple[Any, bytes]:
        """(stream, part of BlockCounts), or ((kind, shard), Visits as bytes) if dynamic."""
        kind, shard, _ = key
        if self.dynamic:
            return (kind, shard), visits_to_bytes(visits)
        counts = count(kind, visits, self.layout, self._class_of)
        return self.stream, self._part(key, counts_to_bytes(counts))

    def _part(self, key: BlockKey, content: bytes) -> bytes:
        kind, shard, block = key
        return part_to_bytes(Part(block, self.layout.part(kind, shard), self.layout.parts), content)

    def nothing(self, slots: Iterable[int]) -> list[bytes]:
        """What says that slots are to be released without telling of any event."""
        if self.dynamic:
            return [
                self._part((MEMBERS, 0, slot), shard_counts_to_bytes(ShardCounts.empty(slot)))
                for slot in slots
            ]
        return [
            self._part((MEMBERS, 0, block), counts_to_bytes(BlockCounts.empty(block)))
            for block in self._blocks(slots)
        ]

    def _blocks(self, slots: Iterable[int]) -> list[int]:
        return sorted({slot // self.layout.block for slot in slots})


@dataclass(frozen=True, eq=False)
class VisitCounter(Counter):
    """Tells who was where, for the devices of an edge stage to perturb."""

    @property
    def told_type(self) -> Any:
        """Type of what :meth:`told` gives."""
        return KV[str, bytes]

    def told(self, key: BlockKey, visits: Visits) -> tuple[Any, bytes]:
        """(stream, part of Visits of registered users)."""
        return self.stream, self._part(key, visits_to_bytes(visits))

    def nothing(self, slots: Iterable[int]) -> list[bytes]:
        """Visits of nobody."""
        return [
            self._part(
                (MEMBERS, 0, block), visits_to_bytes(Visits.none(MEMBERS, block, self.layout))
            )
            for block in self._blocks(slots)
        ]


class _CountBlocksFn(beam.DoFn):
    """All codes of a block and shard to what :class:`Counter` tells, in a bounded input.

    On the side tallies as bytes.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def process(self, element: tuple[BlockKey, Iterable[bytes]]) -> Iterator[Any]:
        visits = self._counter.bound(*element)
        yield beam.pvalue.TaggedOutput(TALLIES, self._counter.tally(visits).to_bytes())
        yield self._counter.told(element[0], visits)


class _CountSlotsFn(beam.DoFn):
    """The same in a stream that never ends, when the slot closes; blocks are of one slot.

    Input: codes, and the heartbeat of every slot, once. Output: what :class:`Counter` tells of
    every slot and shard that has a heartbeat, busy or not, so that whoever has all of a slot need
    wait no longer.

    State, per slot and shard: the codes that wait; nothing stays of a slot that is closed. Beam
    itself never drops anything here as late, since the global window never closes.

    Timer `close`, in event time, armed by `process`: counts what came. Codes without the heartbeat
    came after it was used up, or have none. They were bounded without those that came before, so
    they must never be counted: they leave as dead letters. Whether an event is late hangs on the
    watermark and the heartbeat alone, never on the other events of its slot.
    """

    CODES = BagStateSpec("codes", BytesCoder())
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, counter: Counter, clock: Clock) -> None:
        self._counter = counter
        self._clock = clock

    def process(
        self,
        element: tuple[BlockKey, bytes],
        codes: Any = beam.DoFn.StateParam(CODES),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        (_, _, slot), data = element
        codes.add(data)
        close.set(self._clock.closing(slot))

    @on_timer(CLOSE)
    def _close_slot(
        self,
        key: Any = beam.DoFn.KeyParam,
        codes: Any = beam.DoFn.StateParam(CODES),
    ) -> Iterator[Any]:
        waiting = list(codes.read())
        codes.clear()
        some = [data for data in waiting if data != _OPEN]
        visits = self._counter.bound(key, some)
        if len(some) == len(waiting):
            late = int(visits.kept.sum()) + visits.dropped
            metrics.count(metrics.EVENTS_LATE, late)
            # The slot's own time is behind the watermark: windows after this would drop it.
            letters = TimestampedValue(late_slots({key[2]: late}), Timestamp.now())
            yield beam.pvalue.TaggedOutput(REJECTED, letters)
            return
        self._counter.tally(visits)
        yield self._counter.told(key, visits)
