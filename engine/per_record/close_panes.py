"""Adds up the records of a pane and key of an unbounded input, until the pane closes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamveil.engine.messages import Kind, Message, Output
from streamveil.engine.per_record.mapper import PaneKey
from streamveil.engine.per_record.plan import Plan, added
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream_step import KeyState


@dataclass(eq=False)
class ClosePanes:
    """Adds up the parts of a pane and key, until the pane closes.

    Takes parts, and that every pane of a key is open, once. Gives (position of key, part of the
    pane), once of all that were opened. Keeps, per pane and key, whether the pane is open and the
    part of what came; nothing stays of one that is closed.

    Parts of a pane that is not open came after it was closed, or it never was: they are forgotten.
    So whether a record is late depends on its own time, event time and the heartbeat alone.
    """

    plan: Plan
    clock: SlotClock

    @cached_property
    def _statistic(self) -> Any:
        return self.plan.statistic()

    def take(
        self, key: PaneKey, message: Message, at: int | None, kept: KeyState
    ) -> tuple[Output, ...]:
        """A part comes, or the pane is open."""
        opened, part = kept.state.read() or (False, b"")
        if message.kind is Kind.OPEN:
            opened = True
        else:
            part = added(self._statistic, (part, message.payload))
        kept.state.write((opened, part))
        kept.close_at(self.clock.closing(message.slot))
        return ()

    def close(self, key: PaneKey, kept: KeyState) -> Iterator[Output]:
        """Give the part of the pane."""
        opened, part = kept.state.read() or (False, b"")
        kept.state.clear()
        if opened:
            yield Output(by_key((key, part)))


def by_key(element: tuple[PaneKey, bytes]) -> tuple[int, Message]:
    """The part of a pane on its way to its key."""
    (position, pane), part = element
    return position, Message(Kind.COUNTS, pane, payload=part)
