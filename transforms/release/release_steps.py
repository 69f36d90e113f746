"""The release stage on Beam: at the end of a bounded input, and as the slots of a stream close."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.messages import Kind
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import Driver
from streamveil.engine.stream.release_slots import ReleaseConfig
from streamveil.transforms.on_beam import Message, MessageCoder, emitted, metrics
from streamveil.transforms.slots.arrivals import Arrival, Arrivals, remembered
from streamveil.transforms.slots.clock import closing_time
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

# Seconds that parts may wait for others of their slot or of one before, until somebody has to know.
# All shards tell a slot as it closes, so of a stream that keeps up it is much less.
LONGEST_WAIT = 60.0

_LOGGER = logging.getLogger("streamveil")


class _ReleaseInTimeFn(Fenced, beam.DoFn):
    """Releases a stream that never ends, each slot as soon as all shards have told their counts.

    Input: (key, counts of every slot from all shards, empty or not, blocks of one slot; and which
    slot is the first), in any order. What comes again is dropped and counted, or fails the stage:
    see `arrivals.py`. State, per key: the parts that wait; the next slot to release, and which
    parts of which slots wait, in the cell that is fenced; what the parts of the slots released last
    were; the driver's state.

    There is no timer: a slot's counts come when it closes, or later if they had to settle. The
    event time of a release is that moment, since the watermark is there: what is before it, windows
    further on would drop. What comes at the end of all time is of the moment at which it closed.
    """

    WAITING = BagStateSpec("waiting", MessageCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    TAKEN = ReadModifyWriteStateSpec("taken", FastPrimitivesCoder())
    STREAM = ReadModifyWriteStateSpec("stream", BytesCoder())

    def __init__(self, config: ReleaseConfig) -> None:
        self._config = config
        self._fence = Fence()
        self._told, self._shown = -LONGEST_WAIT, 0

    def setup(self) -> None:
        self._driver_of = self._config.driver_of

    def process(
        self,
        element: tuple[Any, Message],
        now: Any = beam.DoFn.TimestampParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        taken: Any = beam.DoFn.StateParam(TAKEN),
        stream: Any = beam.DoFn.StateParam(STREAM),
    ) -> Iterator[Any]:
        config, (key, message) = self._config, element
        driver = self._driver_of(key)
        progress = self._fence.cell(key, progress)
        arrivals = Arrivals.read(driver.parts, progress.read())
        if message.kind is Kind.START:
            arrivals.start(message.slot)
        else:
            arrival = arrivals.arrive(message, waiting.read, taken.read)
            if arrival is not Arrival.NEW:
                self._dropped(message, arrival)
                return
            waiting.add(message)
        whole = list(arrivals.whole())
        if whole:
            there = list(waiting.read())
            parts, rest = _split(whole, there)
            if len(there) != arrivals.waiting or any(
                len(some) != arrivals.parts for some in parts.values()
            ):
                raise went_back(f"{len(there)} parts wait where {arrivals.waiting} came")
            state = self._state(driver, arrivals, stream)
            for slot, counted in _counted(driver, parts):
                state, release = driver.release(state, slot, counted)
                at = _time_now(config.clock, now, slot).micros
                yield from map(emitted, config.emit(driver, state, slot, release, at))
                if config.emit_rest and config.ends and slot == config.last_slot:
                    yield from map(emitted, config.emit_rest(driver, state, at))
            stream.write(driver.encode(state))
            arrivals.take(whole, driver.next_slot(state))
            waiting.clear()
            for part in rest:
                waiting.add(part)
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

    def _state(self, driver: Driver, arrivals: Arrivals, stream: Any) -> Any:
        """The state after the last slot. Raises StateWentBack for one of another time."""
        written = stream.read()
        last = written or self._config.resume
        state = driver.start() if last is None else driver.decode(last)
        at = None if written is None else driver.next_slot(state)
        if at != (None if arrivals.next_slot == arrivals.first else arrivals.next_slot):
            raise went_back(f"slot {arrivals.next_slot} comes next, and in the ledger slot {at}")
        return state

    def _dropped(self, part: Message, arrival: Arrival) -> None:
        """Count a part that is dropped, and tell of it."""
        place = part.shard, part.shards, part.slot
        if arrival is Arrival.REPEATED or self._config.secret_parts:
            metrics.count(metrics.PARTS_REPEATED, 1)
            _LOGGER.info("part %d of %d of slot %d came again: dropped", *place)
            return
        metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
        _LOGGER.warning(
            "part %d of %d of slot %d came after the slot was released, not as it was, or long "
            "after: dropped, the release stays; the runner does not process each element exactly "
            "once",
            *place,
        )


def _time_now(clock: SlotClock, now: Timestamp, slot: int) -> Timestamp:
    closing = closing_time(clock, slot)
    return closing if now >= GlobalWindow().max_timestamp() else max(closing, now)


def _counted(driver: Driver, parts: Mapping[int, list[Message]]) -> Iterator[tuple[int, Any]]:
    """Slots in order, each with its counts."""
    for block, some in parts.items():
        for slot, counted in driver.slots(block, some):
            yield slot, driver.quiet if counted is None else counted


def _split(
    slots: Iterable[int], waiting: Iterable[Message]
) -> tuple[dict[int, list[Message]], list[Message]]:
    """The parts of some slots, in order, and what waits for others."""
    parts: dict[int, list[Message]] = {slot: [] for slot in slots}
    rest: list[Message] = []
    for part in waiting:
        parts.get(part.slot, rest).append(part)
    return parts, rest
