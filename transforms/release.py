"""The release stage: counts of blocks of slots in, one private release a slot out, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
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
    Slots,
    format_time,
)
from streamveil.mechanisms.registry import mechanism
from streamveil.mechanisms.stream import ReleaseStream, StreamState
from streamveil.transforms import metrics
from streamveil.transforms.counting import BlockCounts, Layout, slot_tables
from streamveil.transforms.rejects import rejected_slots
from streamveil.transforms.wire import block_of, counts_from_bytes, counts_to_bytes

LEDGER = "ledger"
REJECTED = "rejected"
STATE = "state"
LATE = "late"

# Without a range to release, a gap this long is a mistake, not a quiet time.
MOST_QUIET_SLOTS = 100_000

Counts = npt.NDArray[np.int64]

_PROGRESS = logging.getLogger("streamveil.progress")


@dataclass(frozen=True)
class ReleaseConfig:
    """Everything the release stage is made of: public, but for the key."""

    mechanism: str
    population: Population
    slots: Slots
    layout: Layout
    noise_key: Callable[[], bytes]
    stream: str = ""
    context: bytes = b""
    """What the counts mean, so that the noise of streams with the same counts is independent."""
    first_slot: int | None = None
    """First slot to release; the first with events when None."""
    last_slot: int | None = None
    """Last slot to release, busy or not; the last with events when None."""
    bounded: bool = True
    resume: bytes | None = None
    """What the run that released the slot before `first_slot` left; None at a stream's start."""

    def release_stream(self) -> ReleaseStream:
        """The mechanism with its noise and odometer."""
        return ReleaseStream(
            mechanism(self.mechanism, self.population),
            NoiseSource(self.noise_key(), self.stream),
            context=self.context,
        )


class _ReleaseSlotsFn(beam.DoFn):
    """Drives any mechanism over slots in order, quiet ones included; each slot once.

    Input: (stream, BlockCounts as bytes), in any order. State, per stream: the counts that wait;
    the next slot to release and the first and last slot that wait; the release stream's bytes.

    Timer `due`, in event time, armed by `process` and by itself. In a bounded input it waits for
    the end of the last waiting slot, so that all of it is released at once. In a stream without
    end it waits for the end of the next slot to release if the last slot is known, and of the
    first waiting slot otherwise. When it fires, every slot that ended by then is released.
    """

    WAITING = BagStateSpec("waiting", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    STREAM = ReadModifyWriteStateSpec("stream", BytesCoder())
    DUE = TimerSpec("due", beam.TimeDomain.WATERMARK)

    def __init__(self, config: ReleaseConfig) -> None:
        self._config = config

    def setup(self) -> None:
        self._stream = self._config.release_stream()

    def process(
        self,
        element: tuple[str, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        data = element[1]
        next_slot, first, last = progress.read() or (None, None, None)
        start = block_of(data) * self._config.layout.block
        end = start + self._config.layout.block - 1
        if next_slot is not None and start < next_slot:
            late, rest = self._split_late(counts_from_bytes(data), next_slot)
            yield beam.pvalue.TaggedOutput(REJECTED, late)
            if rest is None:
                return
            data, start = rest, next_slot
        first = start if first is None else min(first, start)
        last = end if last is None else max(last, end)
        waiting.add(data)
        progress.write((next_slot, first, last))
        self._arm(due, next_slot, first, last)

    def _arm(self, due: Any, next_slot: int | None, first: int | None, last: int | None) -> None:
        """Set the timer, unless nothing waits and nothing more is to be released."""
        config = self._config
        slot = last if config.bounded else first
        if not config.bounded and config.last_slot is not None and next_slot is not None:
            slot = next_slot if next_slot <= config.last_slot else None
        if slot is not None:
            due.set(Timestamp(micros=config.slots.end(slot)))

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
        stream: Any = beam.DoFn.StateParam(STREAM),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        config = self._config
        until = config.slots.index(timestamp.micros) - 1
        next_slot, _, last = progress.read()
        ended: dict[int, list[bytes]] = {}
        rest = []
        for data in waiting.read():
            block = block_of(data)
            if (block + 1) * config.layout.block - 1 <= until:
                ended.setdefault(block, []).append(data)
            else:
                rest.append(data)
        busy = (
            (slot, table)
            for block in sorted(ended)
            for slot, table in slot_tables(
                block, map(counts_from_bytes, ended[block]), config.layout
            )
        )
        written = stream.read() or config.resume
        state = self._stream.start() if written is None else self._stream.decode(written)
        if next_slot is None:
            next_slot = config.first_slot
        for slot, table in self._every_slot(busy, next_slot, until):
            state, release = self._stream.release(state, slot, table)
            yield from self._outputs(slot, release, state)
            next_slot = slot + 1
        written = self._stream.encode(state)
        stream.write(written)
        if config.bounded and state.next_slot is not None:
            yield beam.pvalue.TaggedOutput(STATE, (state.next_slot, written))
        waiting.clear()
        for data in rest:
            waiting.add(data)
        first = min(block_of(data) for data in rest) * config.layout.block if rest else None
        last = last if rest else None
        progress.write((next_slot, first, last))
        self._arm(due, next_slot, first, last)

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
        # In a bounded input the quiet end belongs to it only if its last slot was given.
        last = until if config.last_slot is None else min(config.last_slot, until)
        if next_slot is not None and not (config.bounded and config.last_slot is None):
            self._check_gap(next_slot, last)
            for missed in range(next_slot, last + 1):
                yield missed, quiet

    def _check_gap(self, next_slot: int, slot: int) -> None:
        """Refuse a gap that a wrong time must have made, unless the whole range was given."""
        config = self._config
        if config.first_slot is not None and config.last_slot is not None:
            return
        if slot - next_slot > MOST_QUIET_SLOTS:
            since, to = (format_time(config.slots.start(s)) for s in (next_slot, slot))
            raise ConfigurationError(
                f"no event from {since} to {to}: more than {MOST_QUIET_SLOTS} quiet slots are a "
                "wrong time or too short a slot; give the range to release (--start and --end), "
                "which rejects what is outside it"
            )

    def _outputs(self, slot: int, release: SlotRelease, state: StreamState) -> Iterator[Any]:
        config, odometer = self._config, self._stream.odometer
        metrics.count(metrics.SLOTS_PREFIX + release.status, 1)
        use = odometer.largest_use(state.odometer)
        metrics.observe(metrics.WINDOW_USE, int(np.ceil(use * 1e6)))
        _PROGRESS.info("released slot %d", slot, extra={"slots": 1})
        start, end = config.slots.start(slot), config.slots.end(slot)
        at = Timestamp(micros=end - 1)
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


def late_letters(counts: BlockCounts, layout: Layout) -> pa.RecordBatch:
    """Dead letters for events that came after their slot: one a slot, with how many they were."""
    slots = layout.slots_of(counts)
    events = {s: int(counts.counts[slots == s].sum()) for s in np.unique(slots).tolist()}
    return rejected_slots(LATE, "slot {slot} was closed before these events came", events)
