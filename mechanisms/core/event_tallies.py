"""What became of some events: how many were read, lost, counted. Raw figures, for the operator."""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

LATE = "late"
"""Why an event is lost whose slot was released before it came."""
OF_QUERY = " (query "
"""What stands between a reason and the query that cannot read an event, before `)`."""
ELSEWHERE = ", counted in others)"
"""How the reason ends for which one query does not count an event that another one counts."""
PERHAPS_ELSEWHERE = ", perhaps counted in others)"
"""The same where it is not known whether another one does."""


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
        where = self.source or "the input"
        return where if self.row < 0 else f"{where} {_row_word(where)} {self.row}"


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
    read_by: Mapping[str, int] = field(default_factory=dict)
    """Events that each query asks about and can read, by its name."""
    unread_by: Mapping[str, Mapping[str, Lost]] = field(default_factory=dict)
    """What each query asks about and cannot read, by its name and the reason."""
    no_requirement_by: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Where requirements of a query set change: of the events in slots that are over, by query, how
    many are of users with no requirement in force, and how many there are."""

    @classmethod
    def total(cls, tallies: Iterable[EventTally]) -> EventTally:
        """All of them together."""
        read = beyond_bound = counted = messages = beyond_limit = 0
        lost: dict[str, Lost] = {}
        read_by: dict[str, int] = {}
        unread_by: dict[str, dict[str, Lost]] = {}
        no_requirement_by: dict[str, Sequence[int]] = {}
        for tally in tallies:
            read += tally.read
            beyond_bound += tally.beyond_bound
            counted += tally.counted
            messages += tally.messages
            beyond_limit += tally.beyond_limit
            _add(lost, tally.lost)
            for name, events in tally.read_by.items():
                read_by[name] = read_by.get(name, 0) + events
            for name, unread in tally.unread_by.items():
                _add(unread_by.setdefault(name, {}), unread)
            for name, (nowhere, every) in tally.no_requirement_by.items():
                before = no_requirement_by.get(name, (0, 0))
                no_requirement_by[name] = before[0] + nowhere, before[1] + every
        by_query = read_by, unread_by, no_requirement_by
        return cls(read, lost, beyond_bound, counted, messages, beyond_limit, *by_query)

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
        """Events that were rejected or late, and count in no query.

        Those beyond the users' bound are not among them.
        """
        return sum(some.events for some in self.losses.values())

    @property
    def losses(self) -> dict[str, Lost]:
        """Of events that count in no query, by reason."""
        return {why: some for why, some in self.lost.items() if is_loss(why)}

    @property
    def blind(self) -> tuple[str, ...]:
        """Queries that can read none of the events that they ask about, if there are any."""
        return tuple(name for name in self.unread_by if not self.read_by.get(name))

    def without_requirement(self, most: float) -> str | None:
        """A query, if of every one with events more than that share have no requirement in force.

        It is the one with the most events.
        """
        there = {name: some for name, some in self.no_requirement_by.items() if some[1]}
        if not there or any(nowhere <= most * every for nowhere, every in there.values()):
            return None
        return max(there, key=lambda name: there[name][1])

    def to_bytes(self) -> bytes:
        """JSON."""
        return json.dumps(astuple(self)).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> EventTally:
        """What :meth:`to_bytes` was given."""
        read, lost, *rest = json.loads(data)
        tally = cls(read, _losses(lost), *rest)
        unread = tally.unread_by
        return replace(tally, unread_by={name: _losses(some) for name, some in unread.items()})


def _add(losses: dict[str, Lost], more: Mapping[str, Lost]) -> None:
    for reason, some in more.items():
        losses[reason] = losses[reason] + some if reason in losses else some


def _losses(plain: Mapping[str, Any]) -> dict[str, Lost]:
    """Of the fields of each."""
    return {why: Lost(*one) for why, one in plain.items()}


def _row_word(source: str) -> str:
    """What readers number in a source: the `line`s of a text file, the `row`s of anything else.

    A table has a name without an extension, and no file but these two is anything but text.
    """
    return "row" if os.path.splitext(source)[1].lower() in ("", ".parquet", ".avro") else "line"


def is_loss(reason: str) -> bool:
    """Whether an event that is rejected for this reason counts nowhere."""
    return not reason.endswith((ELSEWHERE, PERHAPS_ELSEWHERE))


def query_of(reason: str) -> tuple[str, str | None]:
    """A reason without the query that it is about, and that query's name, if it is of one."""
    why, _, named = reason.partition(OF_QUERY)
    for end in (PERHAPS_ELSEWHERE, ELSEWHERE, ")"):
        named = named.removesuffix(end)
    return why, named or None


def sum_bytes(tallies: Iterable[bytes]) -> bytes:
    """Tallies as bytes, added up."""
    return EventTally.total(map(EventTally.of_bytes, tallies)).to_bytes()
