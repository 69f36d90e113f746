"""The release stage: counts of blocks of slots in, one private release a slot out, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.mechanisms.budgets import to_epsilon
from streamveil.mechanisms.mechanism import Population, SlotRelease
from streamveil.mechanisms.noise import NoiseSource
from streamveil.mechanisms.records import (
    ConfigurationError,
    LedgerEntry,
    Release,
    format_time,
)
from streamveil.mechanisms.registry import mechanism
from streamveil.mechanisms.stream import ReleaseStream, StreamState
from streamveil.transforms import metrics
from streamveil.transforms.clock import Clock
from streamveil.transforms.counting import BlockCounts, Layout, slot_tables
from streamveil.transforms.rejects import late_slots
from streamveil.transforms.wire import (
    block_of,
    counts_from_bytes,
    counts_to_bytes,
    start_from_bytes,
)

LEDGER = "ledger"
REJECTED = "rejected"
STATE = "state"

# Without a range to release, a gap this long is a mistake, not a quiet time.
MOST_QUIET_SLOTS = 100_000

Counts = npt.NDArray[np.int64]

_PROGRESS = logging.getLogger("streamveil.progress")


@dataclass(frozen=True)
class ReleaseConfig:
    """Everything the release stage is made of: public, but for the key."""

    mechanism: str
    population: Population
    clock: Clock
    """How time is cut, and when a slot closes."""
    layout: Layout
    noise_key: Callable[[], bytes]
    stream: str = ""
    context: bytes = b""
    """What the counts mean, so that the noise of streams with the same counts is independent."""
    first_slot: int | None = None
    """First slot to release; the first with events, or that is opened, when None."""
    last_slot: int | None = None
    """Last slot to release, busy or not; the last with events, or that is opened, when None."""
    resume: bytes | None = None
    """What the run that released the slot before `first_slot` left; None at a stream's start."""

    def release_stream(self) -> ReleaseStream:
        """The mechanism with its noise and odometer."""
        return ReleaseStream(
            mechanism(self.mechanism, self.population),
            NoiseSource(self.noise_key(), self.stream),
            context=self.context,
        )


class _ReleaseFn(beam.DoFn):
    """Drives any mechanism over slots in order, each slot once.

    State, per stream: the release stream's bytes.
    """

    STREAM = ReadModifyWriteStateSpec("stream", BytesCoder())
    TELLS_STATE = False

    def __init__(self, config: ReleaseConfig) -> None:
        self._config = config

    def setup(self) -> None:
        self._stream = self._config.release_stream()

    def _time(self, slot: int) -> Timestamp:
        """Event time of a release."""
        raise NotImplementedError

    def _release(
        self, stream: Any, tables: Iterable[tuple[int, Counts]]
    ) -> Generator[Any, None, int | None]:
        """Release slots, given in order with their counts of shape (K, d); returns the next one."""
        written = stream.read() or self._config.resume
        state = self._stream.start() if written is None else self._stream.decode(written)
        for slot, table in tables:
            state, release = self._stream.release(state, slot, table)
            yield from self._outputs(slot, release, state)
        written = self._stream.encode(state)
        stream.write(written)
        if self.TELLS_STATE and state.next_slot is not None:
            yield beam.pvalue.TaggedOutput(STATE, (state.next_slot, written))
        return state.next_slot

    def _outputs(self, slot: int, release: SlotRelease, state: StreamState) -> Iterator[Any]:
        config, odometer = self._config, self._stream.odometer
        metrics.count(metrics.SLOTS_PREFIX + release.status, 1)
        use = odometer.largest_use(state.odometer)
        metrics.observe(metrics.WINDOW_USE, int(np.ceil(use * 1e6)))
        _PROGRESS.info("released slot %d", slot, extra={"slots": 1})
        slots = config.clock.slots
        start, end = slots.start(slot), slots.end(slot)
        at = self._time(slot)
        yield TimestampedValue(
            Release(
                slot,
                start,
                end,
                release.counts,
                release.status,
                release.published_slot,
                release.epsilon,
                release.stderr,
                config.mechanism,
                release.alarm,
                release.diagnostics,
            ),
            at,
        )
        entry = LedgerEntry(
            slot,
            config.population.requirements,
            config.population.sizes,
            to_epsilon(release.spent),
            to_epsilon(state.odometer.in_window),
        )
        yield beam.pvalue.TaggedOutput(LEDGER, TimestampedValue(entry, at))


class _ReleaseAtEndFn(_ReleaseFn):
    """Releases a bounded input at its end, quiet slots included.

    Input: (stream, BlockCounts as bytes), in any order. State, per stream: the counts that wait;
    the next slot to release and the last one that waits.

    Timer `due`, in event time, armed by `process` for the end of the last waiting slot, so that
    all is released at once. The event time of a release is the end of its slot.
    """

    TELLS_STATE = True
    WAITING = BagStateSpec("waiting", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    DUE = TimerSpec("due", beam.TimeDomain.WATERMARK)

    def _time(self, slot: int) -> Timestamp:
        return Timestamp(micros=self._config.clock.slots.end(slot) - 1)

    def process(
        self,
        element: tuple[str, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        data = element[1]
        next_slot, last = progress.read() or (None, None)
        start = block_of(data) * self._config.layout.block
        end = start + self._config.layout.block - 1
        if next_slot is not None and start < next_slot:
            late, rest = self._split_late(counts_from_bytes(data), next_slot)
            yield beam.pvalue.TaggedOutput(REJECTED, late)
            if rest is None:
                return
            data = rest
        last = end if last is None else max(last, end)
        waiting.add(data)
        progress.write((next_slot, last))
        due.set(self._config.clock.closing(last))

    def _split_late(
        self, counts: BlockCounts, next_slot: int
    ) -> tuple[pa.RecordBatch, bytes | None]:
        """Dead letters for slots that are released already, and what is left to count."""
        late = self._config.layout.slots_of(counts) < next_slot
        lost, rest = (
            BlockCounts(counts.block, counts.cells[part], counts.counts[part], 0)
            for part in (late, ~late)
        )
        metrics.count(metrics.EVENTS_LATE, int(lost.counts.sum()))
        letters = late_letters(lost, self._config.layout)
        return letters, None if late.all() else counts_to_bytes(rest)

    @on_timer(DUE)
    def _release_due(
        self,
        timestamp: Any = beam.DoFn.TimestampParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        stream: Any = beam.DoFn.StateParam(_ReleaseFn.STREAM),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        layout, until = self._config.layout, self._config.clock.closed(timestamp)
        next_slot, last = progress.read()
        if next_slot is None:
            next_slot = self._config.first_slot
        ended: dict[int, list[bytes]] = {}
        rest = []
        for data in waiting.read():
            block = block_of(data)
            if (block + 1) * layout.block - 1 <= until:
                ended.setdefault(block, []).append(data)
            else:
                rest.append(data)
        busy = (
            (slot, table)
            for block in sorted(ended)
            for slot, table in slot_tables(block, map(counts_from_bytes, ended[block]), layout)
        )
        tables = self._every_slot(busy, next_slot, until)
        next_slot = yield from self._release(stream, tables)
        waiting.clear()
        for data in rest:
            waiting.add(data)
        progress.write((next_slot, last if rest else None))
        if rest:
            due.set(self._config.clock.closing(last))

    def _every_slot(
        self, busy: Iterable[tuple[int, Counts]], next_slot: int | None, until: int
    ) -> Iterator[tuple[int, Counts]]:
        """Fill the quiet slots in, from the first slot to be released to the last."""
        config = self._config
        quiet = np.zeros((config.layout.classes, config.layout.bins), dtype=np.int64)
        for slot, table in busy:
            if not table.any():
                continue
            if next_slot is None:
                next_slot = slot
            self._check_gap(next_slot, slot)
            for missed in range(next_slot, slot):
                yield missed, quiet
            yield slot, table
            next_slot = slot + 1
        # The quiet end belongs to the range only if its last slot was given.
        if next_slot is not None and config.last_slot is not None:
            last = min(config.last_slot, until)
            self._check_gap(next_slot, last)
            for missed in range(next_slot, last + 1):
                yield missed, quiet

    def _check_gap(self, next_slot: int, slot: int) -> None:
        """Refuse a gap that a wrong time must have made, unless the whole range was given."""
        config = self._config
        if config.first_slot is not None and config.last_slot is not None:
            return
        if slot - next_slot > MOST_QUIET_SLOTS:
            since, to = (format_time(config.clock.slots.start(s)) for s in (next_slot, slot))
            raise ConfigurationError(
                f"no event from {since} to {to}: more than {MOST_QUIET_SLOTS} quiet slots are a "
                "wrong time or too short a slot; give the range to release (--start and --end), "
                "which rejects what is outside it"
            )


class _ReleaseInTimeFn(_ReleaseFn):
    """Releases a stream that never ends, each slot as soon as all shards have told their counts.

    Input: (stream, BlockCounts as bytes), one of every slot and shard, empty or not, blocks of one
    slot; and what tells the first slot (:func:`start_to_bytes`); all in any order. State, per
    stream: the counts that wait; the next slot to release, and how many counts of which slots wait.

    There is no timer: a slot's counts come when it closes. The event time of a release is that
    moment, since the watermark is there: what is before it, windows further on would drop.
    """

    WAITING = BagStateSpec("waiting", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())

    def _time(self, slot: int) -> Timestamp:
        return self._config.clock.closing(slot)

    def process(
        self,
        element: tuple[str, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        stream: Any = beam.DoFn.StateParam(_ReleaseFn.STREAM),
    ) -> Iterator[Any]:
        before: tuple[int | None, dict[int, int]] = progress.read() or (None, {})
        next_slot, told = before
        start = start_from_bytes(element[1])
        if start is None:
            waiting.add(element[1])
            slot = block_of(element[1])
            told = {**told, slot: told.get(slot, 0) + 1}
        else:
            next_slot = start
        whole = list(self._whole(next_slot, told))
        if whole:
            tables, rest = self._tables(whole, waiting.read())
            next_slot = yield from self._release(stream, tables)
            waiting.clear()
            for data in rest:
                waiting.add(data)
        progress.write((next_slot, {slot: n for slot, n in told.items() if slot not in whole}))

    def _whole(self, slot: int | None, told: dict[int, int]) -> Iterator[int]:
        """Slots from this one on that miss nothing."""
        while slot is not None and told.get(slot) == self._config.layout.parts:
            yield slot
            slot += 1

    def _tables(
        self, slots: list[int], waiting: Iterable[bytes]
    ) -> tuple[Iterator[tuple[int, Counts]], list[bytes]]:
        """Counts of some slots, and what waits for others."""
        parts: dict[int, list[bytes]] = {slot: [] for slot in slots}
        rest: list[bytes] = []
        for data in waiting:
            parts.get(block_of(data), rest).append(data)
        tables = (
            table
            for slot in slots
            for table in slot_tables(slot, map(counts_from_bytes, parts[slot]), self._config.layout)
        )
        return tables, rest


def late_letters(counts: BlockCounts, layout: Layout) -> pa.RecordBatch:
    """Dead letters for events that came after their slot: one a slot, with how many they were."""
    slots = layout.slots_of(counts)
    events = {s: int(counts.counts[slots == s].sum()) for s in np.unique(slots).tolist()}
    return late_slots(events)
