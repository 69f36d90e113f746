"""What became of some events: how many were read, lost, counted. Raw figures, for the operator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LATE = "late"
"""Why an event is lost whose slot was released before it came."""


@dataclass(frozen=True)
class Lost:
    """Events that were lost for one reason."""

    events: int
    source: str = ""
    """Where one of them was read, if that is known."""
    row: int = -1
    """Its row or line there; -1 if that is not known."""
    detail: str = ""
    """What is wrong with it."""

    def __add__(self, other: Lost) -> Lost:
        """All of them, with the one that came first in the first source."""
        first = min(self, other, key=lambda one: (one.source, one.row, one.detail))
        return Lost(self.events + other.events, first.source, first.row, first.detail)

    @property
    def place(self) -> str:
        """Where the one was read, for people."""
        return f"{self.source or 'the input'}{'' if self.row < 0 else f' row {self.row}'}"


@dataclass(frozen=True)
class EventTally:
    """Events by what became of them; once all are counted, `read` is the sum of the rest."""

    read: int = 0
    lost: Mapping[str, Lost] = field(default_factory=dict)
    """By reason: what was rejected, and under `LATE` what came too late."""
    beyond_bound: int = 0
    """Events of users who had more in a slot than count."""
    counted: int = 0
    messages: int = 0
    """What steps sent on to be counted and released, less what they took of it: of all tallies
    together, how many messages the release stage must get."""
    beyond_limit: int = 0
    """Events in slots in which their users did not count, as they had in others before."""

    @classmethod
    def total(cls, tallies: Iterable[EventTally]) -> EventTally:
        """All of them together."""
        read = beyond_bound = counted = messages = beyond_limit = 0
        lost: dict[str, Lost] = {}
        for tally in tallies:
            read += tally.read
            beyond_bound += tally.beyond_bound
            counted += tally.counted
            messages += tally.messages
            beyond_limit += tally.beyond_limit
            for reason, some in tally.lost.items():
                lost[reason] = lost[reason] + some if reason in lost else some
        return cls(read, lost, beyond_bound, counted, messages, beyond_limit)

    @property
    def rejected(self) -> dict[str, int]:
        """Rejected events by reason, in order of the reasons."""
        return {why: self.lost[why].events for why in sorted(self.lost) if why != LATE}

    @property
    def late(self) -> int:
        """Events that came too late."""
        return self.lost[LATE].events if LATE in self.lost else 0

    @property
    def all_lost(self) -> int:
        """Events that were rejected or late. Those beyond the users' bound are not among them."""
        return sum(some.events for some in self.lost.values())

    def to_bytes(self) -> bytes:
        """JSON."""
        lost = {
            why: (some.events, some.source, some.row, some.detail)
            for why, some in self.lost.items()
        }
        figures = [self.read, lost, self.beyond_bound, self.counted, self.messages]
        return json.dumps([*figures, self.beyond_limit]).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> EventTally:
        """What :meth:`to_bytes` was given."""
        read, lost, *rest = json.loads(data)
        return cls(read, {why: Lost(*some) for why, some in lost.items()}, *rest)


def sum_bytes(tallies: Iterable[bytes]) -> bytes:
    """Tallies as bytes, added up."""
    return EventTally.total(map(EventTally.of_bytes, tallies)).to_bytes()
