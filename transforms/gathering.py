"""From batches of events to counts of blocks of slots: around the one shuffle of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
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
    count,
    pack,
)
from streamveil.transforms.mapping import EventMapper
from streamveil.transforms.release import REJECTED, late_letters
from streamveil.transforms.wire import array_from_bytes, array_to_bytes, counts_to_bytes

# Clocks of devices are wrong by minutes. What is further ahead of a stream would wait in its state
# until its time comes, which for a broken clock may be years.
MOST_AHEAD = MICROSECONDS["d"]

BlockKey = tuple[int, int, int]
"""(kind, shard, block)"""

_NOT_OPEN = "closed before these events came, or never opened"
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
            for reason, number in reasons(rejected):
                metrics.count(metrics.REJECTED_PREFIX + reason, number)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        for block, (kind, shard), codes, dropped in pack(events, self._layout, self._most):
            metrics.count(metrics.EVENTS_BOUNDED_AWAY, dropped)
            yield (kind, shard, block), array_to_bytes(codes)


class _Counter:
    """Counts the codes of a block and shard."""

    def __init__(self, registry: Registry, layout: Layout, most: int) -> None:
        self._class_of = registry.classes_with_other()
        self._layout = layout
        self._most = most

    def count(self, key: BlockKey, codes: Iterable[bytes]) -> BlockCounts:
        """Bounded events of some of the block's users."""
        kind, _, block = key
        arrays = map(array_from_bytes, codes)
        return count(kind, block, arrays, self._layout, self._class_of, self._most)


class _CountBlocksFn(beam.DoFn):
    """All codes of a block and shard to (stream, BlockCounts as bytes), in a bounded input."""

    def __init__(self, registry: Registry, layout: Layout, most: int, stream: str) -> None:
        self._make_counter = lambda: _Counter(registry, layout, most)
        self._stream = stream

    def setup(self) -> None:
        self._counter = self._make_counter()

    def process(self, element: tuple[BlockKey, Iterable[bytes]]) -> Iterator[tuple[str, bytes]]:
        counts = self._counter.count(*element)
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, counts.dropped)
        yield self._stream, counts_to_bytes(counts)


class _CountSlotsFn(beam.DoFn):
    """The same in a stream that never ends, when the slot closes; blocks are of one slot.

    Input: codes, and the heartbeat of every slot, once. Output: one BlockCounts of every slot and
    shard that has a heartbeat, empty or not, so that whoever has all of a slot need wait no longer.

    State, per slot and shard: the codes that wait; nothing stays of a slot that is closed. Beam
    itself never drops anything here as late, since the global window never closes.

    Timer `close`, in event time, armed by `process`: counts what came. Codes without the heartbeat
    came after it was used up, or have none. They were bounded without those that came before, so
    they must never be counted: they leave as dead letters. Whether an event is late hangs on the
    watermark and the heartbeat alone, never on the other events of its slot.
    """

    CODES = BagStateSpec("codes", BytesCoder())
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(
        self, registry: Registry, layout: Layout, most: int, stream: str, clock: Clock
    ) -> None:
        self._make_counter = lambda: _Counter(registry, layout, most)
        self._layout = layout
        self._stream = stream
        self._clock = clock

    def setup(self) -> None:
        self._counter = self._make_counter()

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
        counts = self._counter.count(key, some) if some else BlockCounts.empty(key[2])
        if len(some) == len(waiting):
            metrics.count(metrics.EVENTS_LATE, int(counts.counts.sum()))
            letters = late_letters(counts, self._layout, _NOT_OPEN)
            # The slot's own time is behind the watermark: windows after this would drop it.
            at = Timestamp.now()
            yield beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, at))
            return
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, counts.dropped)
        yield self._stream, counts_to_bytes(counts)


def reasons(rejected: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Why dead letters were rejected, and how many of them for each reason."""
    for reason in rejected.column("reason").value_counts().to_pylist():
        yield reason["values"], reason["counts"]
