"""The counters of a pipeline, all in one namespace.

All but those of slots, of their parts and of window use count raw events: they are for the operator
who may see the input, never for publication.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from streamveil.mechanisms.core.records import EVENTS_READ, METRICS_NAMESPACE, REJECTED_PREFIX

__all__ = ["EVENTS_READ", "METRICS_NAMESPACE", "REJECTED_PREFIX"]

EVENTS_COUNTED = "events_counted"
EVENTS_BOUNDED_AWAY = "events_bounded_away"
EVENTS_UNASKED = "events_unasked"
EVENTS_UNREAD = "events_unread"
OF_QUERY = " of query "
EVENTS_BEYOND_LIMIT = "events_beyond_limit"
EVENTS_LATE = "events_late"
EVENTS_WAITING = "events_waiting"
CHANGES_READ = "changes_read"
CHANGES_ACCEPTED = "changes_accepted"
CHANGES_LATE = "changes_late"
CHANGES_REJECTED_PREFIX = "rejected changes: "
REPORTS_READ = "reports_read"
REPORTS_ACCEPTED = "reports_accepted"
REPORTS_REJECTED_PREFIX = "rejected reports: "
PARTS_REPEATED = "parts_repeated"
PARTS_AFTER_RELEASE = "parts_after_release"
LIMITED_PREFIX = "users limited to "
BOUNDS_PREFIX = "bounds chosen"
SLOTS_PREFIX = "slots_"
SLOTS_MOSTLY_LEFT_OUT = "mostly_left_out_slots"
MORE_USERS_PREFIX = "slots with more users than "
USERS_SUGGESTED = "users_suggested"
PARTS_WAITED_FOR = "seconds_waited_for_parts"
WINDOW_USE = "largest_window_use_ppm"


class Recorder(Protocol):
    """Where counts go, such as to the metrics of a runner."""

    def count(self, name: str, amount: int) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: int) -> None:
        """Add an observation to a distribution."""

    def show(self, name: str, value: int) -> None:
        """Set a gauge."""


class Counts:
    """Keeps what is counted."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.largest: dict[str, int] = {}
        """The largest observation by name."""

    def count(self, name: str, amount: int) -> None:
        """Add to a counter."""
        self.counters[name] += amount

    def observe(self, name: str, value: int) -> None:
        """Take an observation."""
        self.largest[name] = max(value, self.largest.get(name, value))

    def show(self, name: str, value: int) -> None:
        """Take a gauge, which says nothing of what is over."""


_recorder: Recorder | None = None
_here = threading.local()


def record_with(recorder: Recorder) -> None:
    """Send what this process counts there; until then it is not kept."""
    global _recorder
    _recorder = recorder


@contextmanager
def counting() -> Iterator[Counts]:
    """Keep what this thread counts, rather than send it where the process does."""
    before, counts = getattr(_here, "recorder", None), Counts()
    _here.recorder = counts
    try:
        yield counts
    finally:
        _here.recorder = before


def _current() -> Recorder | None:
    return getattr(_here, "recorder", None) or _recorder


def count(name: str, amount: int) -> None:
    """Add to a counter; nothing is made of 0."""
    if amount and (recorder := _current()) is not None:
        recorder.count(name, amount)


def observe(name: str, value: int) -> None:
    """Add an observation to a distribution, whose maximum is what people look at."""
    if (recorder := _current()) is not None:
        recorder.observe(name, value)


def show(name: str, value: int) -> None:
    """Set a gauge to what holds now."""
    if (recorder := _current()) is not None:
        recorder.show(name, value)
