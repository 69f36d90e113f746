"""Releases an unbounded input: each slot as soon as the counts of all shards have come."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamveil.engine import metrics
from streamveil.engine.arrivals import Arrival, Arrivals, remembered
from streamveil.engine.messages import Kind, Message, Output
from streamveil.engine.stream.drivers import Driver
from streamveil.engine.stream.release_slots import ReleaseConfig
from streamveil.engine.stream_step import KeyState, went_back

# Seconds that parts may wait for others of their slot or of one before, until somebody has to know.
# All shards send a slot's counts as it closes, so in a stream that keeps up it is much less.
LONGEST_WAIT = 60.0

_LOGGER = logging.getLogger("streamveil")


@dataclass(eq=False)
class ReleaseInTime:
    """Releases the slots of an unbounded input in order, each once.

    Takes the counts of every slot from all shards, empty or not, in blocks of one slot, and which
    slot is the first, in any order. What comes again is dropped and counted, or fails the stage:
    see `engine/arrivals.py`. Keeps, per key: the parts that wait; as its progress the next slot to
    release, and which parts of which slots wait; what the parts of the slots released last were;
    the driver's state.

    It waits for no time: a slot's counts come when it closes, or later if they had to settle. The
    event time of a release is that moment, since the watermark is there: what is before it, windows
    further on would drop. What comes at the end of all time is of the moment at which it closed.
    """

    config: ReleaseConfig
    _warned_at: float = field(default=0.0, init=False)
    _shown: int = field(default=0, init=False)

    def take(self, key: Any, message: Message, at: int | None, kept: KeyState) -> Iterator[Output]:
        """Counts come, or the stream starts: release what is whole."""
        config, now = self.config, kept.now / 1e6
        driver = config.driver_of(key)
        arrivals = Arrivals.read(driver.parts, kept.progress.read())
        if message.kind is Kind.START:
            arrivals.start(message.slot)
        else:
            arrival = arrivals.arrive(message, kept.waiting.read, kept.taken.read, now)
            if arrival is not Arrival.NEW:
                self._dropped(message, arrival)
                return
            kept.waiting.add(message)
        whole = list(arrivals.whole())
        if whole:
            there = list(kept.waiting.read())
            parts, rest = _split(whole, there)
            if len(there) != arrivals.waiting or any(
                len(some) != arrivals.parts for some in parts.values()
            ):
                raise went_back(f"{len(there)} parts wait where {arrivals.waiting} came")
            state = self._state(driver, arrivals, kept.state.read())
            for slot, counted in _counted(driver, parts):
                state, release = driver.release(state, slot, counted)
                closing = config.clock.closing(slot)
                moment = closing if at is None else max(closing, at)
                yield from config.emit(driver, state, slot, release, moment)
                if config.emit_rest and config.ends and slot == config.last_slot:
                    yield from config.emit_rest(driver, state, moment)
            kept.state.write(driver.encode(state))
            arrivals.take(whole, driver.next_slot(state), now)
            kept.waiting.clear()
            for part in rest:
                kept.waiting.add(part)
            kept.taken.write(remembered(kept.taken.read(), parts))
        kept.progress.write(arrivals.written)
        self._tell_of_waiting(arrivals, now)

    def close(self, key: Any, kept: KeyState) -> tuple[Output, ...]:
        """Never called."""
        return ()

    def _tell_of_waiting(self, arrivals: Arrivals, now: float) -> None:
        """Show how long parts have waited for others, and say so once a while is over."""
        waited = int(arrivals.waited(now))
        if waited != self._shown:
            self._shown = waited
            metrics.show(metrics.PARTS_WAITED_FOR, waited)
        if waited >= LONGEST_WAIT and not 0 <= now - self._warned_at < LONGEST_WAIT:
            self._warned_at = now
            _LOGGER.error(
                "nothing was released for %d seconds: %d parts of slots wait for %s. A shard is "
                "slow, or the runner lost them: see docs/explanation/streams.md",
                waited,
                arrivals.waiting,
                arrivals.missing,
            )

    def _state(self, driver: Driver, arrivals: Arrivals, written: bytes | None) -> Any:
        """The state after the last slot. Raises StateWentBack for one of another time."""
        last = written or self.config.resume
        state = driver.start() if last is None else driver.decode(last)
        at = None if written is None else driver.next_slot(state)
        if at != (None if arrivals.next_slot == arrivals.first else arrivals.next_slot):
            raise went_back(f"slot {arrivals.next_slot} comes next, and in the ledger slot {at}")
        return state

    def _dropped(self, part: Message, arrival: Arrival) -> None:
        """Count a part that is dropped, and tell of it."""
        place = part.shard, part.shards, part.slot
        if arrival is Arrival.REPEATED or self.config.secret_parts:
            metrics.count(metrics.PARTS_REPEATED, 1)
            _LOGGER.info("part %d of %d of slot %d arrived again: dropped", *place)
            return
        metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
        _LOGGER.warning(
            "part %d of %d of slot %d arrived after the slot was released, changed or long "
            "after: it is dropped and the release stays; the runner does not process each "
            "element exactly once",
            *place,
        )


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
