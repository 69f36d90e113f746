"""How a run is doing, in words that an operator understands without the manual."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import MICROSECONDS, format_duration, format_time
from streamveil.pipelines.monitoring.status import ENDED, FAILED, Released, Status

OVER, UP_TO_DATE, RELEASING, WAITING = "over", "up to date", "releasing", "waiting"
STALLED = "stalled"
ALARMS = (STALLED, FAILED)

_SECOND, _MINUTE = MICROSECONDS["s"], MICROSECONDS["m"]
_UNITS = (("day", MICROSECONDS["d"]), ("hour", MICROSECONDS["h"]), ("minute", _MINUTE))
# Nothing takes longer than this without a sign, but for passes.
_LEAST_PATIENCE = _MINUTE
_INTERVALS = 3
# How long the first pass of a run may take, and the others, in longest passes before them.
_FIRST_PASS = 15 * _MINUTE
_LONGEST_PASSES = 4
_GO_ON = (
    "see the log and the machine; if the process hangs, end it and start the same command with "
    "--resume, which loses nothing"
)


class Condition(NamedTuple):
    """How a run is doing."""

    name: str
    words: str


def seen_at(status: Status, now: int, file_clock: bool) -> Status:
    """The same with the clock of this moment, which `now` is where slots close by the machine."""
    if file_clock or status.clock is None:
        return status
    return dataclasses.replace(status, clock=max(status.clock, now))


def condition_of(status: Status, now: int, interval: int) -> Condition:
    """How the run is doing.

    Args:
        status: what is known of it, as of :func:`seen_at`.
        now: by the clock of this machine, in microseconds.
        interval: from one look to the next at most, in microseconds.
    """
    patience = max(_LEAST_PATIENCE, _INTERVALS * interval)
    done = status.released
    if status.condition in (FAILED, ENDED):
        return Condition(status.condition, f"The run is over: {status.error or 'it was ended'}.")
    if done is None:
        return _starting(status, now, patience)
    if done.is_over:
        return Condition(OVER, "All slots of the stream are released: nothing is left to do.")
    if status.passing is not None:
        return _passing(status, now - status.passing, patience)
    idle = now - max(status.looked or 0, status.passed or 0, status.since)
    if idle > patience:
        return Condition(
            STALLED,
            f"The run has not looked for slots to release for {duration(idle)}, and should every "
            f"{format_duration(interval)}: {_GO_ON}.",
        )
    if not status.backlog:
        return Condition(
            UP_TO_DATE,
            f"All slots that have closed are released. The next one, {_slot(done)}, closes "
            f"{_time(done.closes)}.",
        )
    if status.waits_for:
        return Condition(
            WAITING,
            f"{_closed(status)} not released, the oldest, {_slot(done)}, for "
            f"{duration(status.lag)}: {status.waits_for}.",
        )
    return Condition(RELEASING, f"{_closed(status)} about to be released.")


def _starting(status: Status, now: int, patience: int) -> Condition:
    since = now - status.since
    if since > patience:
        return Condition(STALLED, f"The run has been starting for {duration(since)}: {_GO_ON}.")
    return Condition(status.condition, "The run reads its state.")


def _passing(status: Status, busy: int, patience: int) -> Condition:
    """While a pass is under way."""
    most = max(patience, _LONGEST_PASSES * status.longest) if status.longest else _FIRST_PASS
    if busy <= most:
        number = number_of(max(status.backlog, 1), "closed slot")
        return Condition(RELEASING, f"A pass is under way, over {number}.")
    before = f"the longest before it took {duration(status.longest)}"
    return Condition(
        STALLED,
        f"A pass has been under way for {duration(busy)}"
        f"{f', and {before}' if status.longest else ''}: {_GO_ON}.",
    )


def duration(length: int) -> str:
    """So many microseconds as people say it: 3 hours; below two minutes in seconds."""
    for unit, size in _UNITS:
        if length >= 2 * size:
            return f"{length // size:,} {unit}s"
    return number_of(length // _SECOND, "second")


def _closed(status: Status) -> str:
    verb = "is" if status.backlog == 1 else "are"
    return f"{number_of(status.backlog, 'closed slot')} {verb}"


def _slot(done: Released) -> str:
    return f"that of {_time(done.slots.start(done.next_slot))}"


def _time(time: int) -> str:
    return format_time(time).replace("T", " ").replace("Z", " UTC")
