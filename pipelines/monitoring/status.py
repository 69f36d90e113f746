"""What an operator knows of a stream that goes on in passes: how far it is, and what it lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamveil.mechanisms.core.local_days import time_text
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import MICROSECONDS, STATUSES, Slots, format_time
from streamveil.pipelines.reports.summary import Summary

STARTING = "starting"
RUNNING = "running"
ENDED = "ended"
FAILED = "failed"

_SECOND = MICROSECONDS["s"]


@dataclass(frozen=True)
class Released:
    """How far a stream is, by its releases, their ledger and its options, and by nothing else.

    So whatever is derived from this alone is as public as the releases.
    """

    slots: Slots
    lateness: int
    """Microseconds from the end of a slot until it closes."""
    first_slot: int
    """Of the stream."""
    next_slot: int
    """The oldest open slot: the first that is not released."""
    last_slot: int | None = None
    """Last slot of the stream, if it has an end."""
    statuses: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    """Slots released by this run, by status."""
    window_use: float = 0.0
    """Largest share of any class's window that this run found spent, from 0 to 1.

    Not that of the last pass: how many slots a pass has depends on how long the one before took.
    """

    def after(
        self, next_slot: int, statuses: Mapping[str, int], window_use: float | None
    ) -> Released:
        """The same after a pass up to that slot, with the statuses of what it released."""
        return dataclasses.replace(
            self,
            next_slot=next_slot,
            statuses={each: self.statuses[each] + statuses.get(each, 0) for each in STATUSES},
            window_use=max(self.window_use, window_use or 0.0),
        )

    @property
    def is_over(self) -> bool:
        """Whether all slots of the stream are released."""
        return self.last_slot is not None and self.next_slot > self.last_slot

    @property
    def until(self) -> int:
        """Up to when all is released, in microseconds."""
        return self.slots.start(self.next_slot)

    @property
    def closes(self) -> int:
        """When the time of the oldest open slot is over, in microseconds."""
        return self.closing(self.next_slot)

    def closing(self, slot: int) -> int:
        """When the time of a slot is over, lateness included, in microseconds."""
        return self.slots.end(slot) + self.lateness


@dataclass(frozen=True)
class Status:
    """What a run knows after a look for slots to release. Raw: some of it is of events."""

    since: int
    """When the run began, in microseconds as all times here."""
    condition: str = STARTING
    released: Released | None = None
    """None before the state was read."""
    looked: int | None = None
    """When it looked last."""
    clock: int | None = None
    """What the clock that closes slots said last."""
    waits_for: str | None = None
    """What the oldest open slot waits for, though its time is over."""
    delay: int = 0
    """From the closing of the last released slot to its release, in microseconds."""
    passes: int = 0
    """Of this run."""
    passing: int | None = None
    """Since when a pass is under way; None while none is."""
    passed: int | None = None
    """When the last pass of this run was committed."""
    longest: int = 0
    """How long its longest pass took, in microseconds."""
    totals: Summary = field(default_factory=Summary)
    """What these counted."""
    state_bytes: int = 0
    """Size of the folder of the state."""
    error: str | None = None
    """The last one of this run, in one line."""
    failed: int = 0
    """When that was."""

    @property
    def backlog(self) -> int:
        """Slots whose time was over when the clock was last read, and which are not released."""
        done = self.released
        if done is None or self.clock is None or done.is_over or self.clock < done.closes:
            return 0
        over = done.slots.index(self.clock - done.lateness) - 1
        return (over if done.last_slot is None else min(over, done.last_slot)) - done.next_slot + 1

    @property
    def lag(self) -> int:
        """Microseconds since the oldest open slot closed; 0 while its time is not over."""
        if not self.backlog:
            return 0
        assert self.released is not None
        assert self.clock is not None
        return self.clock - self.released.closes

    @property
    def sentence(self) -> str:
        """That the run lives, and how far it is."""
        done = self.released
        if done is None or done.is_over:
            return "alive: nothing is left to release"
        slot = f"the slot of {time_text(done.slots.start(done.next_slot), done.slots)}"
        if not self.backlog:
            closes = time_text(done.closes, done.slots)
            return f"alive: all closed slots are released; {slot} closes {closes}"
        number = number_of(self.backlog, "closed slot")
        waits = f": {self.waits_for}" if self.waits_for else ""
        return f"alive: {number} not released, {slot} for {self.lag // _SECOND:,} seconds{waits}"

    def record(self) -> dict[str, Any]:
        """What `status.json` says."""
        done = self.released
        return {
            "condition": self.condition,
            "since": format_time(self.since),
            "looked_at": None if self.looked is None else format_time(self.looked),
            "clock": None if self.clock is None else format_time(self.clock),
            "last_released": None if done is None else _slot(done, done.next_slot - 1),
            "oldest_open": None if done is None else _slot(done, done.next_slot),
            "lag_seconds": self.lag / _SECOND,
            "backlog_slots": self.backlog,
            "waits_for": self.waits_for,
            "release_delay_seconds": self.delay / _SECOND,
            "pass_since": None if self.passing is None else format_time(self.passing),
            "passed_at": None if self.passed is None else format_time(self.passed),
            "passes": self.passes,
            **self.totals.figures(),
            "state_bytes": self.state_bytes,
            "last_error": None
            if self.error is None
            else {"time": format_time(self.failed), "message": self.error},
        }


def _slot(done: Released, slot: int) -> dict[str, Any] | None:
    """A slot of the stream; None before its first and after its last one."""
    if slot < done.first_slot or (done.last_slot is not None and slot > done.last_slot):
        return None
    return {
        "slot": slot,
        "start": format_time(done.slots.start(slot)),
        "end": format_time(done.slots.end(slot)),
        "closes": format_time(done.closing(slot)),
    }
