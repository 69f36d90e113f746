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

from streamveil.mechanisms.records import MICROSECONDS
from streamveil.mechanisms.users import Registry
from streamveil.transforms import metrics
from streamveil.transforms.clock import Clock
from streamveil.transforms.counting import (
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
from streamveil.transforms.mapping import EventMapper
from streamveil.transforms.rejects import late_slots, reasons_of
from streamveil.transforms.release import REJECTED
from streamveil.transforms.wire import (
    array_from_bytes,
    array_to_bytes,
    counts_to_bytes,
    shard_counts_to_bytes,
    visits_to_bytes,
)

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
    """Record batches to ((kind, shard, block), codes as bytes), and dead letters on the side."""

    def __init__(
        self,
        make_mapper: Callable[[], EventMapper],
        layout: Layout,
        most: int,
        *,
        real_time: bool,
    ) -> None:
        self._make_mapper = make_mapper
        self._layout = layout
        self._most = most
        self._real_time = real_time

    def setup(self) -> None:
        self._mapper = self._make_mapper()
        self._mapper.warm()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        latest = None
        if self._real_time:
            latest = self._mapper.slots.index(Timestamp.now().micros + MOST_AHEAD)
        events, rejected = self._mapper.map(element, latest)
        metrics.count(metrics.EVENTS_READ, element.num_rows)
        metrics.count(metrics.EVENTS_ACCEPTED, len(events.slots))
        if rejected.num_rows:
            for reason, number in reasons_of(rejected):
                metrics.count(metrics.REJECTED_PREFIX + reason, number)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        for block, (kind, shard), codes, dropped in pack(events, self._layout, self._most):
            metrics.count(metrics.EVENTS_BOUNDED_AWAY, dropped)
            yield (kind, shard, block), array_to_bytes(codes)


@dataclass(frozen=True, eq=False)
class Counter:
    """Bounds the codes of a block and shard, and tells them."""

    registry: Registry
    layout: Layout
    most: int
    """Contributions to keep of a user in a slot."""
    stream: str
    dynamic: bool
    """Whether requirements change, so that users cannot be counted by class here."""

    @cached_property
    def _class_of(self) -> npt.NDArray[np.int32]:
        return self.registry.classes_with_other()

    def bound(self, key: BlockKey, codes: Iterable[bytes]) -> Visits:
        """Bounded events of some of the block's users."""
        kind, _, block = key
        arrays = list(map(array_from_bytes, codes))
        if not arrays:
            return Visits.none(kind, block, self.layout)
        return bound_block(kind, block, arrays, self.layout, self.most)

    @property
    def told_type(self) -> Any:
        """Type of what :meth:`told` gives."""
        return KV[Tuple[int, int], bytes] if self.dynamic else KV[str, bytes]

    def told(self, key: BlockKey, visits: Visits) -> tuple[Any, bytes]:
        """(stream, BlockCounts as bytes), or ((kind, shard), Visits as bytes) if dynamic."""
        kind, shard, _ = key
        if self.dynamic:
            return (kind, shard), visits_to_bytes(visits)
        counts = count(kind, visits, self.layout, self._class_of)
        return self.stream, counts_to_bytes(counts)

    def nothing(self, slots: Iterable[int]) -> list[bytes]:
        """What says that slots are to be released without telling of any event."""
        if self.dynamic:
            return [shard_counts_to_bytes(ShardCounts.empty(slot)) for slot in slots]
        blocks = sorted({slot // self.layout.block for slot in slots})
        return [counts_to_bytes(BlockCounts.empty(block)) for block in blocks]


@dataclass(frozen=True, eq=False)
class VisitCounter(Counter):
    """Tells who was where, for the devices of an edge stage to perturb."""

    @property
    def told_type(self) -> Any:
        """Type of what :meth:`told` gives."""
        return KV[str, bytes]

    def told(self, key: BlockKey, visits: Visits) -> tuple[Any, bytes]:
        """(stream, Visits of registered users as bytes)."""
        return self.stream, visits_to_bytes(visits)

    def nothing(self, slots: Iterable[int]) -> list[bytes]:
        """Visits of nobody."""
        blocks = sorted({slot // self.layout.block for slot in slots})
        return [visits_to_bytes(Visits.none(MEMBERS, block, self.layout)) for block in blocks]


class _CountBlocksFn(beam.DoFn):
    """All codes of a block and shard to what :class:`Counter` tells, in a bounded input."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def process(self, element: tuple[BlockKey, Iterable[bytes]]) -> Iterator[tuple[Any, bytes]]:
        visits = self._counter.bound(*element)
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, visits.dropped)
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
            late = int(visits.kept.sum())
            metrics.count(metrics.EVENTS_LATE, late)
            # The slot's own time is behind the watermark: windows after this would drop it.
            letters = TimestampedValue(late_slots({key[2]: late}), Timestamp.now())
            yield beam.pvalue.TaggedOutput(REJECTED, letters)
            return
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, visits.dropped)
        yield self._counter.told(key, visits)
