"""Slots in real time."""

from __future__ import annotations

from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.slot_clock import MOST_AHEAD
from streamveil.mechanisms.core.records import Slots


def latest_slot(slots: Slots) -> int:
    """The last slot that events may be of now, in real time."""
    return slots.index(Timestamp.now().micros + MOST_AHEAD)
