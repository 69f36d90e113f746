"""The steps of a per-record release: map, add up, close, release. They tell nothing of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BooleanCoder, BytesCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.mechanisms.per_record.protocol import Statistic
from streamveil.transforms.counting.count_steps import MOST_AHEAD
from streamveil.transforms.messages import array_from_bytes, array_to_bytes, start_to_bytes
from streamveil.transforms.per_record.mapper import PaneKey
from streamveil.transforms.per_record.plan import Drivers, Plan
from streamveil.transforms.per_record.wire import pane_to_bytes
from streamveil.transforms.release.release_steps import (
    ReleaseConfig,
    _ReleaseAtOnceFn,
    _ReleaseInTimeFn,
)
from streamveil.transforms.slots.arrivals import Arrival
from streamveil.transforms.slots.clock import Clock

OPEN = b""  # in place of a part: the heartbeat of its pane


class _MapRecordsFn(beam.DoFn):
    """Record batches to ((position of key, pane), part as bytes)."""

    def __init__(self, plan: Plan, *, real_time: bool) -> None:
        self._plan = plan
        self._real_time = real_time

    def setup(self) -> None:
        self._statistic = self._plan.statistic()

    def process(self, element: pa.RecordBatch) -> Iterator[tuple[PaneKey, bytes]]:
        latest, slots = None, self._plan.source.slots
        if self._real_time and slots is not None:
            latest = slots.index(Timestamp.now().micros + MOST_AHEAD)
        for key, part in self._plan.source.parts(element, self._statistic, latest):
            yield key, array_to_bytes(part)


class _AddPartsFn(beam.CombineFn):
    """Adds up the parts of a key in a pane, as bytes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def setup(self) -> None:
        self._statistic = self._plan.statistic()

    def create_accumulator(self) -> bytes:
        return b""

    def add_input(self, accumulator: bytes, element: bytes) -> bytes:
        return added(self._statistic, (accumulator, element))

    def merge_accumulators(self, accumulators: Iterable[bytes]) -> bytes:
        return added(self._statistic, accumulators)

    def extract_output(self, accumulator: bytes) -> bytes:
        return accumulator

    def get_accumulator_coder(self) -> BytesCoder:
        return BytesCoder()


def added(statistic: Statistic, parts: Iterable[bytes]) -> bytes:
    """The part of all; empty ones are of no record."""
    some = [part for part in parts if part]
    if len(some) < 2:
        return some[0] if some else b""
    return array_to_bytes(statistic.add(map(array_from_bytes, some)))


class _ClosePaneFn(beam.DoFn):
    """Adds up the parts of a pane and key in a stream that never ends, until the pane closes.

    Input: parts, and :data:`OPEN` of every pane and key, once. Output: (position of key, pane with
    its part as bytes), once of all that were opened.

    State, per pane and key: the part of what came, whether the pane is open; nothing stays of one
    that is closed.

    Timer `close`, in event time, armed by `process`: tells the part. Parts without the heartbeat
    came after it was used up, or have none: they are forgotten. So whether a record is late hangs
    on its own time, the watermark and the heartbeat alone.
    """

    PART = ReadModifyWriteStateSpec("part", BytesCoder())
    OPENED = ReadModifyWriteStateSpec("opened", BooleanCoder())
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock

    def setup(self) -> None:
        self._statistic = self._plan.statistic()

    def process(
        self,
        element: tuple[PaneKey, bytes],
        part: Any = beam.DoFn.StateParam(PART),
        opened: Any = beam.DoFn.StateParam(OPENED),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        (_, pane), data = element
        if data == OPEN:
            opened.write(True)
        else:
            part.write(added(self._statistic, (part.read() or b"", data)))
        close.set(self._clock.closing(pane))

    @on_timer(CLOSE)
    def _close(
        self,
        key: Any = beam.DoFn.KeyParam,
        part: Any = beam.DoFn.StateParam(PART),
        opened: Any = beam.DoFn.StateParam(OPENED),
    ) -> Iterator[tuple[int, bytes]]:
        position, pane = key
        if opened.read():
            yield position, pane_to_bytes(pane, part.read() or b"")
        part.clear()
        opened.clear()


class _Rows:
    """In place of slots of counts, panes of one key; a row each, where a window ends."""

    _config: ReleaseConfig
    _ledgers: Any

    def setup(self) -> None:
        self._drivers: Drivers = self._config.ledgers.make()

    def _outputs(self, slot: int, release: Any, state: Any, at: Timestamp) -> Iterator[Any]:
        if release is not None:
            plan = self._drivers.plan
            if plan.source.slots is None:
                at = GlobalWindow().max_timestamp()
            yield TimestampedValue(plan.row(self._ledgers.key, slot, release), at)


class _RowsAtOnceFn(_Rows, _ReleaseAtOnceFn):
    """Releases all panes of a key."""

    def process(self, element: tuple[Any, Iterable[bytes]]) -> Iterator[Any]:
        self._ledgers = self._drivers.of(element[0])
        yield from super().process(element)


class _RowsInTimeFn(_Rows, _ReleaseInTimeFn):
    """Releases each pane of a key as it closes, in order; state is the base's."""

    def _dropped(self, data: bytes, arrival: Arrival) -> None:
        # That it came again does not hang on the records; whether it was the same does.
        super()._dropped(data, Arrival.REPEATED)

    def process(
        self,
        element: tuple[Any, bytes],
        now: Any = beam.DoFn.TimestampParam,
        waiting: Any = beam.DoFn.StateParam(_ReleaseInTimeFn.WAITING),
        progress: Any = beam.DoFn.StateParam(_ReleaseInTimeFn.PROGRESS),
        taken: Any = beam.DoFn.StateParam(_ReleaseInTimeFn.TAKEN),
        stream: Any = beam.DoFn.StateParam(_ReleaseInTimeFn.STREAM),
    ) -> Iterator[Any]:
        self._ledgers = self._drivers.of(element[0])
        yield from super().process(element, now, waiting, progress, taken, stream)


def apart(element: tuple[PaneKey, bytes]) -> tuple[int, bytes]:
    """The part of a pane on its way to its key."""
    (position, pane), part = element
    return position, pane_to_bytes(pane, part)


def opened(tick: tuple[str, int], keys: int) -> Iterator[tuple[PaneKey, bytes]]:
    """Tell every key that a pane is open."""
    for position in range(keys):
        yield (position, tick[1]), OPEN


def started(tick: tuple[str, int], keys: int) -> Iterator[tuple[int, bytes]]:
    """Tell every key the first pane."""
    for position in range(keys):
        yield position, start_to_bytes(tick[1])
