"""Counts the events of a slot and shard of an unbounded input when the slot closes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamveil.engine import metrics
from streamveil.engine.count.counter import BlockKey, Counter
from streamveil.engine.messages import REJECTED, Kind, Message, Output
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream_step import KeyState


@dataclass(frozen=True, eq=False)
class CloseSlots:
    """All events of a slot and shard, when the slot closes; blocks are of one slot.

    Takes events, and that every slot is open, once. Gives what :class:`Counter` emits of every slot
    and shard that was opened, busy or not, so that whoever has all of a slot need wait no longer.
    Keeps, per slot and shard, what waits; nothing stays of a slot that is closed.

    Events of a slot that is not open came after it was closed, or it never was. They were bounded
    without those that came before, so they must never be counted: they leave as dead letters.
    Whether an event is late depends on event time and the heartbeat alone, never on the other
    events of its slot.
    """

    counter: Counter
    clock: SlotClock

    def take(
        self, key: BlockKey, message: Message, at: int | None, kept: KeyState
    ) -> tuple[Output, ...]:
        """An event waits, or a slot is open."""
        kept.waiting.add(message)
        kept.close_at(self.clock.closing(message.slot))
        return ()

    def close(self, key: BlockKey, kept: KeyState) -> Iterator[Output]:
        """Count what came."""
        waiting = list(kept.waiting.read())
        kept.waiting.clear()
        some = [message for message in waiting if message.kind is Kind.EVENTS]
        visits = self.counter.bound(key, some)
        if len(some) == len(waiting):
            late = int(visits.kept.sum()) + visits.dropped
            metrics.count(metrics.EVENTS_LATE, late)
            # The slot's own time is behind the watermark: windows after this would drop it.
            yield Output(self.counter.late(key, late), REJECTED, kept.now)
            return
        self.counter.tally(key, visits, 0)
        yield from map(Output, self.counter.messages(key, visits))
