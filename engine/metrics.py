"""The counters of a pipeline, all in one namespace.

All but those of slots, of their parts and of window use count raw events: they are for the operator
who may see the input, never for publication.
"""

from __future__ import annotations

from typing import Protocol

from streamveil.mechanisms.core.records import EVENTS_READ, METRICS_NAMESPACE, REJECTED_PREFIX

__all__ = ["EVENTS_READ", "METRICS_NAMESPACE", "REJECTED_PREFIX"]

EVENTS_COUNTED = "events_counted"
EVENTS_BOUNDED_AWAY = "events_bounded_away"
EVENTS_UNASKED = "events_unasked"
EVENTS_UNREAD = "events_unread"
OF_QUESTION = " of question "
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


_recorder: Recorder | None = None


def record_with(recorder: Recorder) -> None:
    """Send what this process counts there; until then it is not kept."""
    global _recorder
    _recorder = recorder


def count(name: str, amount: int) -> None:
    """Add to a counter; nothing is made of 0."""
    if amount and _recorder is not None:
        _recorder.count(name, amount)


def observe(name: str, value: int) -> None:
    """Add an observation to a distribution, whose maximum is what people look at."""
    if _recorder is not None:
        _recorder.observe(name, value)


def show(name: str, value: int) -> None:
    """Set a gauge to what holds now."""
    if _recorder is not None:
        _recorder.show(name, value)
