"""The release stage: counts of blocks of slots in, one private release a slot out, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.mechanisms.core.records import ConfigurationError, Release, format_time
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.transforms import metrics
from streamveil.transforms.messages import (
    block_of,
    content_of,
    is_kept,
    part_of,
    start_from_bytes,
)
from streamveil.transforms.release.drivers import MakesDriver
from streamveil.transforms.slots.arrivals import Arrival, Arrivals, remembered
from streamveil.transforms.slots.clock import Clock
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

LEDGER = "ledger"
REJECTED = "rejected"
STATE = "state"

# Without a range to release, a gap this long is a mistake, not a quiet time.
MOST_QUIET_SLOTS = 100_000

# Seconds that parts may wait for others of their slot or of one before, until somebody has to know.
# All shards tell a slot as it closes, so of a stream that keeps up it is much less.
LONGEST_WAIT = 60.0

_LOGGER = logging.getLogger("streamveil")
_PROGRESS = logging.getLogger("streamveil.progress")


@dataclass(frozen=True)
class ReleaseConfig:
    """Everything the release stage is made of: public, but for the key."""

    ledgers: MakesDriver
    clock: Clock
    """How time is cut, and when a slot closes."""
    first_slot: int | None = None
    """First slot to release; the first with events, or that is opened, when None."""
    last_slot: int | None = None
    """Last slot to release, busy or not; the last with events, or that is opened, when None."""
    resume: bytes | None = None
    """What the run that released the slot before `first_slot` left; None at a stream's start."""


class _ReleaseFn(beam.DoFn):
    """Drives any mechanism over slots in order, each slot once.

    State, per stream, where counts come one by one: the release stream's bytes.
    """

    STREAM = ReadModifyWriteStateSpec("stream", BytesCoder())

    def __init__(self, config: ReleaseConfig) -> None:
        self._config = config

    def setup(self) -> None:
        self._ledgers = self._config.ledgers.make()

    def _time(self, slot: int) -> Timestamp:
        """Event time of a release."""
        raise NotImplementedError

    def _begun(self, written: bytes | None) -> Any:
        """The state that was written, or that of an earlier run or a stream's start."""
        written = written or self._config.resume
        return self._ledgers.start() if written is None else self._ledgers.decode(written)

    def _driven(self, state: Any, slots: Iterable[tuple[int, Any]]) -> Generator[Any, None, Any]:
        """Take slots, given in order with their counts; returns the state after them."""
        for slot, counted in slots:
            state, release = self._ledgers.release(state, slot, counted)
            yield from self._outputs(slot, release, state, self._time(slot))
        return state

    def _outputs(self, slot: int, release: SlotRelease, state: Any, at: Timestamp) -> Iterator[Any]:
        config, ledgers = self._config, self._ledgers
        metrics.count(metrics.SLOTS_PREFIX + release.status, 1)
        metrics.observe(metrics.WINDOW_USE, int(np.ceil(ledgers.use(state) * 1e6)))
        _PROGRESS.info("released slot %d", slot, extra={"slots": 1})
        told = Release.of(release, slot, config.clock.slots, config.ledgers.mechanism)
        yield TimestampedValue(told, at)
        entry = ledgers.entry(state, slot, release)
        yield beam.pvalue.TaggedOutput(LEDGER, TimestampedValue(entry, at))


class _ReleaseAtOnceFn(_ReleaseFn):
    """Releases a bounded input whose counts are gathered, quiet slots included; without state.

    Input: (stream, all parts, of counts as bytes that `ledgers.py` reads), gathered by a
    GroupByKey: what that gives has the time of the end of all times, so a timer that waited for
    counts at the end of a slot would fire before them. The event time of a release is the end of
    its slot. Two such stages may follow each other, where each waits for all that the other tells.
    """

    def _time(self, slot: int) -> Timestamp:
        return Timestamp(micros=self._config.clock.slots.end(slot) - 1)

    def process(self, element: tuple[str, Iterable[bytes]]) -> Iterator[Any]:
        ended: dict[int, list[bytes]] = {}
        kept: list[bytes] = []
        for data in element[1]:
            if is_kept(data):
                kept.append(data)
            else:
                ended.setdefault(block_of(data), []).append(content_of(data))
        slots = self._every_slot(self._busy(ended))
        state = yield from self._driven(self._begun(None), slots)
        yield from self._left(state, kept)

    def _busy(self, ended: dict[int, list[bytes]]) -> Iterator[tuple[int, Any]]:
        """The slots of whole blocks that anything came of, in order."""
        for block in sorted(ended):
            for slot, counted in self._ledgers.slots(block, ended[block]):
                if counted is not None:
                    yield slot, counted

    def _every_slot(self, busy: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Fill the quiet slots in, from the first slot to be released to the last."""
        quiet = self._ledgers.quiet
        next_slot, last = self._config.first_slot, self._config.last_slot
        for slot, counted in busy:
            if next_slot is None:
                next_slot = slot
            self._check_gap(next_slot, slot)
            for missed in range(next_slot, slot):
                yield missed, quiet
            yield slot, counted
            next_slot = slot + 1
        # The quiet end belongs to the range only if its last slot was given.
        if next_slot is not None and last is not None:
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

    def _left(self, state: Any, kept: list[bytes]) -> Iterator[Any]:
        """What is told of the state after the last slot, and of what shards keep."""
        return iter(())


class _ReleaseAtEndFn(_ReleaseAtOnceFn):
    """The same, and tells the state that a later run goes on from."""

    def _left(self, state: Any, kept: list[bytes]) -> Iterator[Any]:
        next_slot = self._ledgers.next_slot(state)
        if next_slot is not None:
            written = self._ledgers.encode(state, *([kept] if kept else []))
            yield beam.pvalue.TaggedOutput(STATE, (next_slot, written))


class _ReleaseInTimeFn(_ReleaseFn, Fenced):
    """Releases a stream that never ends, each slot as soon as all shards have told their counts.

    Input: (stream, part of counts as bytes that `ledgers.py` reads), all parts of every slot, empty
    or not, blocks of one slot; and what tells the first slot (:func:`start_to_bytes`); all in any
    order. What comes again is dropped and counted, or fails the stage: see `arrivals.py`. State,
    per stream: the parts that wait; the next slot to release, and which parts of which slots wait,
    in the cell that is fenced; what the parts of the slots released last were.

    There is no timer: a slot's counts come when it closes, or later if they had to settle. The
    event time of a release is that moment, since the watermark is there: what is before it, windows
    further on would drop. What comes at the end of all time is of the moment at which it closed.
    """

    WAITING = BagStateSpec("waiting", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    TAKEN = ReadModifyWriteStateSpec("taken", FastPrimitivesCoder())

    def __init__(self, config: ReleaseConfig) -> None:
        super().__init__(config)
        self._fence = Fence()
        self._told, self._shown = -LONGEST_WAIT, 0

    def _time(self, slot: int) -> Timestamp:
        closing = self._config.clock.closing(slot)
        return closing if self._now >= GlobalWindow().max_timestamp() else max(closing, self._now)

    def process(
        self,
        element: tuple[str, bytes],
        now: Any = beam.DoFn.TimestampParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        taken: Any = beam.DoFn.StateParam(TAKEN),
        stream: Any = beam.DoFn.StateParam(_ReleaseFn.STREAM),
    ) -> Iterator[Any]:
        self._now, data = now, element[1]
        progress = self._fence.cell(element[0], progress)
        arrivals = Arrivals.read(self._ledgers.parts, progress.read())
        start = start_from_bytes(data)
        if start is not None:
            arrivals.start(start)
        else:
            arrival = arrivals.arrive(data, waiting.read, taken.read)
            if arrival is not Arrival.NEW:
                self._dropped(data, arrival)
                return
            waiting.add(data)
        whole = list(arrivals.whole())
        if whole:
            there = list(waiting.read())
            parts, rest = _split(whole, there)
            if len(there) != arrivals.waiting or any(
                len(some) != arrivals.parts for some in parts.values()
            ):
                raise went_back(f"{len(there)} parts wait where {arrivals.waiting} came")
            state = yield from self._driven(self._ledger(arrivals, stream), self._counted(parts))
            stream.write(self._ledgers.encode(state))
            arrivals.take(whole, self._ledgers.next_slot(state))
            waiting.clear()
            for data in rest:
                waiting.add(data)
            taken.write(remembered(taken.read(), parts))
        progress.write(arrivals.written)
        self._tell_of_waiting(arrivals)

    def _tell_of_waiting(self, arrivals: Arrivals) -> None:
        """Show how long parts have waited for others, and say so once a while is over."""
        waited = int(arrivals.waited)
        if waited != self._shown:
            self._shown = waited
            metrics.show(metrics.PARTS_WAITED_FOR, waited)
        if waited >= LONGEST_WAIT and time.monotonic() >= self._told + LONGEST_WAIT:
            self._told = time.monotonic()
            _LOGGER.error(
                "nothing was released for %d seconds: %d parts of slots wait for %s. A shard is "
                "slow, or the runner lost them: see docs/streaming.md",
                waited,
                arrivals.waiting,
                arrivals.missing,
            )

    def _ledger(self, arrivals: Arrivals, stream: Any) -> Any:
        """The state after the last slot. Raises StateWentBack for one of another time."""
        written = stream.read()
        state = self._begun(written)
        at = None if written is None else self._ledgers.next_slot(state)
        if at != (None if arrivals.next_slot == arrivals.first else arrivals.next_slot):
            raise went_back(f"slot {arrivals.next_slot} comes next, and in the ledger slot {at}")
        return state

    def _dropped(self, data: bytes, arrival: Arrival) -> None:
        """Count a part that is dropped, and tell of it."""
        slot, number, parts = part_of(data)
        if arrival is Arrival.REPEATED:
            metrics.count(metrics.PARTS_REPEATED, 1)
            _LOGGER.info("part %d of %d of slot %d came again: dropped", number, parts, slot)
            return
        metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
        _LOGGER.warning(
            "part %d of %d of slot %d came after the slot was released, not as it was, or long "
            "after: dropped, the release stays; the runner does not process each element exactly "
            "once",
            number,
            parts,
            slot,
        )

    def _counted(self, parts: Mapping[int, list[bytes]]) -> Iterator[tuple[int, Any]]:
        """Slots in order, each with its counts."""
        ledgers = self._ledgers
        for block, some in parts.items():
            for slot, counted in ledgers.slots(block, map(content_of, some)):
                yield slot, ledgers.quiet if counted is None else counted


def _split(
    slots: Iterable[int], waiting: Iterable[bytes]
) -> tuple[dict[int, list[bytes]], list[bytes]]:
    """The parts of some slots, in order, and what waits for others."""
    parts: dict[int, list[bytes]] = {slot: [] for slot in slots}
    rest: list[bytes] = []
    for data in waiting:
        parts.get(block_of(data), rest).append(data)
    return parts, rest
