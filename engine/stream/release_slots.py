"""The release stage: counts of blocks of slots in, one private release a slot out, in order."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from streamveil.engine import metrics
from streamveil.engine.count.loss_limit import check_whole
from streamveil.engine.messages import (
    BOOKED,
    DONE,
    LEDGER,
    REVISED,
    REVISIONS,
    STATE,
    Kind,
    Message,
    Output,
)
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import Driver, DriverOf
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.mechanisms.core.records import (
    TEST,
    ConfigurationError,
    Release,
    Revised,
    Revision,
    Slots,
    format_time,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence.life_share import mostly_left_out
from streamveil.mechanisms.protocol import SlotRelease

# Without a range to release, a gap this long is a mistake, not a quiet time.
MOST_QUIET_SLOTS = 100_000

_PROGRESS = logging.getLogger("streamveil.progress")

Emit = Callable[[Any, Any, int, Any, int], Iterator[Output]]
"""What the stage gives of a release: of the driver, its state, the slot, the release and the event
time in microseconds."""

EmitRest = Callable[[Any, Any, int], Iterator[Output]]
"""What the stage gives at the end of a stream: of the driver, its state, and the event time
in microseconds."""


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
    """Whether the state after the last slot of a bounded input is emitted, for a resumed run."""
    secret_parts: bool = False
    """Whether even that a part comes again with other content is secret."""
    emit_rest: EmitRest | None = None
    """What is given after the last slot of the stream, where slots may be revised."""
    ends: bool = True
    """Whether the stream ends with the last slot."""
    tells_booked: bool = False
    """Whether the number of ledger entries is emitted, since there are not as many as releases."""
    passed: Callable[[Any, int, int], Iterable[int]] | None = None
    """Of a driver, the quiet slots from one to before another that it must take; None for all."""

    @cached_property
    def driver_of(self) -> DriverOf:
        """Gives the driver of a key."""
        return self.drivers()


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
        self, driver: Any, state: Any, slot: int, release: SlotRelease, at: int
    ) -> Iterator[Output]:
        """A `Release`, a ledger entry, and each `Revision`."""
        metrics.count(metrics.SLOTS_PREFIX + release.status, 1)
        tested = release.status == TEST
        if not tested:
            metrics.observe(metrics.WINDOW_USE, math.ceil(driver.use(state) * 1e6))
        if "events_beyond" in release.diagnostics and mostly_left_out(
            release.diagnostics, int(release.counts.sum())
        ):
            metrics.count(metrics.SLOTS_MOSTLY_LEFT_OUT, 1)
        if self.guessed is not None:
            self.guessed.check(release, self.each)
        _PROGRESS.info("released slot %d", slot, extra={"slots": 1})
        yield Output(Release.of(release, slot, self.slots, self.mechanism), at=at)
        entry = driver.entry(state, slot, release)
        yield Output(entry.unpromised if tested else entry, LEDGER, at)
        if release.revisions:
            yield from self._revisions(release.revisions, slot, at)

    def rest(self, driver: Any, state: Any, at: int) -> Iterator[Output]:
        """Each `Revision` that is still to be made when the stream ends."""
        revised = driver.rest(state)
        if revised:
            yield from self._revisions(revised, driver.next_slot(state) - 1, at)

    def _revisions(self, revised: Iterable[Revised], slot: int, at: int) -> Iterator[Output]:
        for one in revised:
            yield Output(Revision.of(one, slot, self.slots, self.mechanism), REVISIONS, at)


def release_at_end(
    config: ReleaseConfig, key: Any, messages: Iterable[Message]
) -> Iterator[Output]:
    """Release a bounded input whose counts are gathered, quiet slots included.

    The event time of a release is the end of its slot. On the side, at the end, how much was
    emitted, and the state if it is asked for. Two such stages may follow each other, where each
    waits for all that the other emits.

    That nothing more comes does not say that nothing is missing: when a step has failed, a runner
    may drop what it was given and go on for a while. So all must be there that was sent, by the
    word of who knows it, or InputLost is raised before anything is released.

    Args:
        config: what the stage is made of.
        key: of the stream.
        messages: all that came: counts; what shards keep; that a slot is open; limits or bounds
            that were chosen; that this is all.
    """
    driver: Any = config.driver_of(key)
    ended: dict[int, list[Message]] = {}
    kept: list[Message] = []
    chosen: list[Message] = []
    words: list[int] = []
    for message in messages:
        if message.kind in (Kind.KEPT, Kind.WAITING):
            kept.append(message)
        elif message.kind in (Kind.CHOICE, Kind.BOUNDS):
            chosen.append(message)
        elif message.kind is Kind.COUNTS:
            ended.setdefault(message.slot, []).append(message)
        elif message.kind is Kind.WHOLE:
            words.append(int(message.payload))
    check_whole(words, len(kept) + len(chosen) + sum(map(len, ended.values())))
    for choice in chosen:
        driver = driver.chosen(choice)
    if chosen:
        driver.tell_chosen()
    emitted: Counter[str | None] = Counter()
    end = config.clock.slots.end
    state = driver.start() if config.resume is None else driver.decode(config.resume)
    for slot, counted in _every_slot(config, driver, ended):
        state, release = driver.release(state, slot, counted)
        for output in config.emit(driver, state, slot, release, end(slot) - 1):
            emitted[output.tag] += 1
            yield output
    next_slot = driver.next_slot(state)
    if config.emit_rest and config.ends and next_slot is not None:
        for output in config.emit_rest(driver, state, end(next_slot - 1) - 1):
            emitted[output.tag] += 1
            yield output
    yield Output(emitted[None], DONE)
    if config.tells_booked:
        yield Output(emitted[LEDGER], BOOKED)
    if config.emit_rest:
        yield Output(emitted[REVISIONS], REVISED)
    if config.keeps and next_slot is not None:
        written = driver.encode(state, *([kept] if kept else []))
        yield Output((next_slot, written), STATE)


def _every_slot(
    config: ReleaseConfig, driver: Driver, ended: Mapping[int, list[Message]]
) -> Iterator[tuple[int, Any]]:
    """Slots of whole blocks in order, quiet ones too, from the first to release to the last."""
    quiet, slots = driver.quiet, config.clock.slots
    passed = partial(config.passed, driver) if config.passed else range
    next_slot, last = config.first_slot, config.last_slot
    ranged = next_slot is not None and last is not None
    busy = (each for block in sorted(ended) for each in driver.slots(block, ended[block]))
    for slot, counted in busy:
        if counted is None:
            continue
        if next_slot is None:
            next_slot = slot
        if not ranged:
            refuse_gap(slots, next_slot, slot)
        for missed in passed(next_slot, slot):
            yield missed, quiet
        yield slot, counted
        next_slot = slot + 1
    # The quiet end belongs to the range only if its last slot was given.
    if next_slot is not None and last is not None:
        if not ranged:
            refuse_gap(slots, next_slot, last)
        for missed in passed(next_slot, last):
            yield missed, quiet
        if next_slot <= last:
            yield last, quiet


def refuse_gap(slots: Slots, next_slot: int, slot: int) -> None:
    """Refuse to release from one slot to another with events, where a wrong time lies between.

    Raises ConfigurationError.
    """
    if slot - next_slot > MOST_QUIET_SLOTS:
        since, to = (format_time(slots.start(s)) for s in (next_slot, slot))
        raise ConfigurationError(
            f"no event from {since} to {to}: more than {MOST_QUIET_SLOTS} quiet slots are a "
            f"wrong time or too short a slot; give the range to release ({opt.start} and "
            f"{opt.end}), which rejects what is outside it"
        )
