"""The release stage: counts of blocks of slots in, one private release a slot out, in order."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.messages import BOOKED, DONE, LEDGER, REVISED, REVISIONS, STATE, Kind
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import Driver, DriverOf
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    Release,
    Revised,
    Revision,
    Slots,
    format_time,
)
from streamveil.mechanisms.presence.life_share import mostly_left_out
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.transforms.counting.loss_limit import check_whole
from streamveil.transforms.on_beam import Message, MessageCoder, metrics
from streamveil.transforms.slots.arrivals import Arrival, Arrivals, remembered
from streamveil.transforms.slots.clock import closing_time
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

# Without a range to release, a gap this long is a mistake, not a quiet time.
MOST_QUIET_SLOTS = 100_000

# Seconds that parts may wait for others of their slot or of one before, until somebody has to know.
# All shards tell a slot as it closes, so of a stream that keeps up it is much less.
LONGEST_WAIT = 60.0

_LOGGER = logging.getLogger("streamveil")
_PROGRESS = logging.getLogger("streamveil.progress")


Emit = Callable[[Any, Any, int, Any, Timestamp], Iterator[Any]]
"""What the stage gives of a release: of the driver, its state, the slot, the release and the event
time."""

EmitRest = Callable[[Any, Any, Timestamp], Iterator[Any]]
"""What the stage gives at the end of a stream: of the driver, its state, and the event time."""


@dataclass(frozen=True)
class ReleaseConfig:
    """Everything the release stage is made of: public, but for the key."""

    drivers: Callable[[], DriverOf]
    """Makes on a worker what gives the driver of a key."""
    clock: SlotClock
    """How time is cut, and when a slot closes."""
    emit: Emit
    """What is given of a release."""
    first_slot: int | None = None
    """First slot to release; the first with events, or that is opened, when None."""
    last_slot: int | None = None
    """Last slot to release, busy or not; the last with events, or that is opened, when None."""
    resume: bytes | None = None
    """What the run that released the slot before `first_slot` left; None at a stream's start."""
    keeps: bool = False
    """Whether the state after the last slot of a bounded input is told, for a run that goes on."""
    secret_parts: bool = False
    """Whether even that a part comes again with other content is secret."""
    emit_rest: EmitRest | None = None
    """What is given after the last slot of the stream, where slots may be revised."""
    ends: bool = True
    """Whether the stream ends with the last slot."""
    tells_booked: bool = False
    """Whether it is told how many entries of the ledger there are: not as many as what is told."""


@dataclass(frozen=True)
class Publish:
    """Gives a release and, on the side, what it cost and what it revises; tells the counters."""

    slots: Slots
    mechanism: str
    guessed: GuessedUsers | None = None
    """What is assumed of the number of users, if it is only assumed."""
    each: int = 1
    """The most that one user adds to the counts of a slot."""

    def __call__(
        self, driver: Any, state: Any, slot: int, release: SlotRelease, at: Timestamp
    ) -> Iterator[Any]:
        """A `Release`, a ledger entry, and each `Revision`."""
        metrics.count(metrics.SLOTS_PREFIX + release.status, 1)
        metrics.observe(metrics.WINDOW_USE, math.ceil(driver.use(state) * 1e6))
        if "events_beyond" in release.diagnostics and mostly_left_out(
            release.diagnostics, int(release.counts.sum())
        ):
            metrics.count(metrics.SLOTS_MOSTLY_LEFT_OUT, 1)
        if self.guessed is not None:
            self.guessed.check(release, self.each)
        _PROGRESS.info("released slot %d", slot, extra={"slots": 1})
        told = Release.of(release, slot, self.slots, self.mechanism)
        yield TimestampedValue(told, at)
        entry = driver.entry(state, slot, release)
        yield beam.pvalue.TaggedOutput(LEDGER, TimestampedValue(entry, at))
        if release.revisions:
            yield from self._revisions(release.revisions, slot, at)

    def rest(self, driver: Any, state: Any, at: Timestamp) -> Iterator[Any]:
        """Each `Revision` that is still to be made when the stream ends."""
        revised = driver.rest(state)
        if revised:
            yield from self._revisions(revised, driver.next_slot(state) - 1, at)

    def _revisions(self, revised: Iterable[Revised], slot: int, at: Timestamp) -> Iterator[Any]:
        for one in revised:
            told = Revision.of(one, slot, self.slots, self.mechanism)
            yield beam.pvalue.TaggedOutput(REVISIONS, TimestampedValue(told, at))


class _ReleaseAtEndFn(beam.DoFn):
    """Releases a bounded input whose counts are gathered, quiet slots included; without state.

    Input: (key, all messages: counts; what shards keep; that a slot is open; that this is all),
    gathered by a GroupByKey: what that gives has the time of the end of all times, so a timer that
    waited for counts at the end of a slot would fire before them. The event time of a release is
    the end of its slot. On the side, at the end, how much was told. Two such stages may follow each
    other, where each waits for all that the other tells.

    That nothing more comes does not say that nothing is missing: when a step has failed, a runner
    may drop what it was given and go on for a while. So all must be there that was sent, by the
    word of who knows it, or InputLost is raised before anything is released.
    """

    def __init__(self, config: ReleaseConfig) -> None:
        self._config = config

    def setup(self) -> None:
        self._driver_of = self._config.drivers()

    def process(self, element: tuple[Any, Iterable[Message]]) -> Iterator[Any]:
        config = self._config
        driver: Any = self._driver_of(element[0])
        ended: dict[int, list[Message]] = {}
        kept: list[Message] = []
        chosen: list[Message] = []
        words: list[int] = []
        for message in element[1]:
            if message.kind is Kind.KEPT:
                kept.append(message)
            elif message.kind is Kind.CHOICE:
                chosen.append(message)
            elif message.kind is Kind.COUNTS:
                ended.setdefault(message.slot, []).append(message)
            elif message.kind is Kind.WHOLE:
                words.append(int(message.payload))
        came = len(kept) + len(chosen) + sum(map(len, ended.values()))
        check_whole(words, came)
        for choice in chosen:
            driver = driver.chosen(choice)
            driver.tell_chosen()
        told: Counter[str | None] = Counter()
        end = config.clock.slots.end
        state = driver.start() if config.resume is None else driver.decode(config.resume)
        for slot, counted in self._every_slot(driver, ended):
            state, release = driver.release(state, slot, counted)
            at = Timestamp(micros=end(slot) - 1)
            for output in config.emit(driver, state, slot, release, at):
                told[getattr(output, "tag", None)] += 1
                yield output
        next_slot = driver.next_slot(state)
        if config.emit_rest and config.ends and next_slot is not None:
            at = Timestamp(micros=end(next_slot - 1) - 1)
            for output in config.emit_rest(driver, state, at):
                told[getattr(output, "tag", None)] += 1
                yield output
        yield beam.pvalue.TaggedOutput(DONE, told[None])
        if config.tells_booked:
            yield beam.pvalue.TaggedOutput(BOOKED, told[LEDGER])
        if config.emit_rest:
            yield beam.pvalue.TaggedOutput(REVISED, told[REVISIONS])
        if config.keeps and next_slot is not None:
            written = driver.encode(state, *([kept] if kept else []))
            yield beam.pvalue.TaggedOutput(STATE, (next_slot, written))

    def _every_slot(
        self, driver: Driver, ended: Mapping[int, list[Message]]
    ) -> Iterator[tuple[int, Any]]:
        """Slots of whole blocks in order, quiet ones too, from the first to release to the last."""
        quiet = driver.quiet
        next_slot, last = self._config.first_slot, self._config.last_slot
        told = (each for block in sorted(ended) for each in driver.slots(block, ended[block]))
        for slot, counted in told:
            if counted is None:
                continue
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
        refuse_gap(config.clock.slots, next_slot, slot)


def refuse_gap(slots: Slots, next_slot: int, slot: int) -> None:
    """Refuse to release from one slot to another with events, where a wrong time lies between.

    Raises ConfigurationError.
    """
    if slot - next_slot > MOST_QUIET_SLOTS:
        since, to = (format_time(slots.start(s)) for s in (next_slot, slot))
        raise ConfigurationError(
            f"no event from {since} to {to}: more than {MOST_QUIET_SLOTS} quiet slots are a "
            "wrong time or too short a slot; give the range to release (--start and --end), "
            "which rejects what is outside it"
        )


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
        self._driver_of = self._config.drivers()

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
                at = _time_now(config.clock, now, slot)
                yield from config.emit(driver, state, slot, release, at)
                if config.emit_rest and config.ends and slot == config.last_slot:
                    yield from config.emit_rest(driver, state, at)
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
