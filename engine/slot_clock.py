"""When a slot closes in event time: at its end, or so much later as events may be late."""

from __future__ import annotations

from dataclasses import dataclass

from streamveil.mechanisms.core.records import MICROSECONDS, Slots

# Clocks of devices are wrong by minutes. What is further ahead of a stream would wait in its state
# until its time comes, which for a broken clock may be years.
MOST_AHEAD = MICROSECONDS["d"]


@dataclass(frozen=True)
class SlotClock:
    """Says when slots close."""

    slots: Slots
    lateness: int = 0
    """Microseconds, in whole milliseconds, by which a slot stays open after its end."""

    def closing(self, slot: int) -> int:
        """When a slot closes, in microseconds."""
        return self.slots.end(slot) + self.lateness
