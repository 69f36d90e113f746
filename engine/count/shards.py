"""A shard's bounded events become counts, slot by slot, where that depends on the slots before.

It does where a participation limit says in how many slots a user counts, and where requirements
change. Both are a :class:`ShardLogic`, driven in two ways: by :func:`close_at_end` over a bounded
input, and as slots close by `engine/count/close_shards.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from streamveil.engine import metrics
from streamveil.engine.count.changes import ChangeMapper, Changes
from streamveil.engine.count.chosen_limits import limits_from
from streamveil.engine.count.event_codes import Layout, ShardKey
from streamveil.engine.encode.dead_letters import rejected_slots
from streamveil.engine.encode.event_mapper import NO_REQUIREMENT
from streamveil.engine.messages import (
    REJECTED,
    TALLIES,
    Kind,
    Message,
    Output,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.engine.slot_clock import SlotClock
from streamveil.mechanisms.core.event_tallies import (
    OF_QUERY,
    PERHAPS_ELSEWHERE,
    EventTally,
    Lost,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit

NOTHING: Mapping[int, int] = MappingProxyType({})

Self = TypeVar("Self", bound="ShardLogic")

_NO_REQUIREMENT = "slot {slot}: these events are of users with no requirement in force"
_OR_TOO_LITTLE = ", or with less epsilon than any user in the table"


class ShardOutput(NamedTuple):
    """What a shard emits about a slot, or about a block of slots that close together."""

    message: Message
    """Its counts; or last what the run that resumes from here needs to know."""
    counted: int = 0
    """Events that are counted."""
    beyond_limit: int = 0
    """Events dropped by the participation limit."""
    no_requirement: Mapping[int, int] = NOTHING
    """Events of users with no requirement in force, by slot; of a query also of those who ask for
    less than anybody in the table."""
    changed: bool = True
    """Whether the shard's state is another than before."""
    of_query: str = ""
    """Name of the query that the events are counted for, in a query set."""
    as_mapped: bool = False
    """Whether each event was counted where it was mapped: see `QueryLayout`."""

    def record(self) -> None:
        """Count the events for the operator."""
        known = {
            metrics.EVENTS_COUNTED: self.counted,
            metrics.EVENTS_BEYOND_LIMIT: self.beyond_limit,
        }
        for name, events in known.items():
            if self.of_query:
                metrics.count(f"{name}{metrics.OF_QUERY}{self.of_query}", events)
            if not self.as_mapped:
                metrics.count(name, events)
        nowhere = sum(self.no_requirement.values())
        metrics.count(metrics.REJECTED_PREFIX + self._reason, nowhere)
        if self.of_query and nowhere:
            which = f"{metrics.OF_QUERY}{self.of_query}: {NO_REQUIREMENT}"
            metrics.count(metrics.EVENTS_UNREAD + which, nowhere)

    @property
    def _reason(self) -> str:
        """Why events of users with no requirement in force are lost."""
        of_query = f"{OF_QUERY}{self.of_query}{PERHAPS_ELSEWHERE}"
        return f"{NO_REQUIREMENT}{of_query if self.as_mapped else ''}"

    @property
    def _detail(self) -> str:
        """What is wrong with them, of a slot."""
        return _NO_REQUIREMENT + (_OR_TOO_LITTLE if self.of_query else "")

    @property
    def tally(self) -> EventTally:
        """What became of the events, and that this is one message."""
        nowhere = sum(self.no_requirement.values())
        if self.of_query:
            # They may be of an earlier run, so they are no loss of what this one reads.
            every = nowhere + self.counted + self.beyond_limit
            by_query = {self.of_query: (nowhere, every)} if every else {}
            counted, beyond = (0, 0) if self.as_mapped else (self.counted, self.beyond_limit)
            return EventTally(
                counted=counted, messages=1, beyond_limit=beyond, no_requirement_by=by_query
            )
        lost = {}
        if self.no_requirement:
            detail = self._detail.format(slot=min(self.no_requirement))
            lost = {NO_REQUIREMENT: Lost(nowhere, detail=detail)}
        return EventTally(
            lost=lost, counted=self.counted, messages=1, beyond_limit=self.beyond_limit
        )

    def letters(self, at: int) -> Output:
        """Dead letters of events without a requirement, of an event time in microseconds."""
        letters = rejected_slots(self._reason, self._detail, self.no_requirement)
        return Output(letters, REJECTED, at)


class Shard(Protocol):
    """The users of one kind in a shard, from slot to slot."""

    def close(self, slot: int, visits: Message, changes: Changes) -> ShardOutput:
        """Close the next slot.

        Args:
            slot: the slot.
            visits: its bounded events, perhaps none, as `Visits` of a block of one slot.
            changes: those that were not applied so far, from slots up to this one.
        """

    def close_blocks(self, blocks: dict[int, Message], changes: Changes) -> Iterator[ShardOutput]:
        """Close all slots of a bounded input, in order; last what a resumed run needs to know.

        Args:
            blocks: `Visits` by block, taken away as they are read.
            changes: all changes.
        """

    def to_bytes(self) -> bytes:
        """All that the shard remembers."""

    def resume(self, data: bytes) -> None:
        """Go on from what :meth:`to_bytes` gave."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardLogic(ABC):
    """What turns a shard's bounded events into counts: public, but for the keys."""

    LABEL: ClassVar[str]
    """Names the logic where a shard's state is sealed."""

    registry: Registry
    layout: Layout
    clock: SlotClock
    change_mapper: Callable[[], ChangeMapper] | None = None
    """Makes the mapper of changes on a worker, since it holds a secret; None where no requirement
    changes. With one the first slot is known."""
    first_slot: int | None = None
    """First slot to release: changes from before are in force from the start."""
    last_slot: int | None = None
    stream: str = ""
    """Key of the counts that come out."""
    keeps: bool = False
    """Whether a shard of a bounded input emits last what a resumed run needs to know."""
    resumed: bool = False
    """Whether an earlier run released the slot before the first one: changes from before are late.
    """

    @property
    @abstractmethod
    def sealing_key(self) -> bytes:
        """The key that seals the state of a shard in a stream."""

    @abstractmethod
    def shard(self, key: ShardKey) -> Shard:
        """A shard before its first slot."""

    def under(self: Self, limits: Sequence[Limit]) -> Self:
        """The same under participation limits that were chosen from the input."""
        raise NotImplementedError(f"{self.LABEL} have no participation limit")

    def count_late(self, key: ShardKey, changes: Changes, slot: int) -> None:
        """Count changes from before a slot for the operator: of several queries those of one."""
        shards, _ = self.layout.shards_of_all_users
        if key[1] < shards:
            metrics.count(metrics.CHANGES_LATE, int((changes.slots < slot).sum()))

    def kept(self, slot: int, key: ShardKey, shard: Shard, changes: Changes) -> ShardOutput:
        """What a resumed run needs to know: the state, and changes from slots to come."""
        payload = shard.to_bytes()
        if self.change_mapper is not None:
            payload = several_to_bytes(payload, changes.to_bytes())
        return ShardOutput(self.layout.message(Kind.KEPT, slot, key, payload))

    def kept_parts(self, kind: int, payload: bytes) -> tuple[bytes, Changes]:
        """The state and the changes of such a message."""
        if self.change_mapper is None:
            return payload, Changes.none(kind)
        state, changes = several_from_bytes(payload)
        return state, Changes.from_bytes(changes)


@dataclass(eq=False)
class _Gathered:
    """All that came of a shard of a bounded input."""

    messages: int = 0
    blocks: dict[int, Message] = field(default_factory=dict)
    """Visits, by block."""
    kept: list[bytes] = field(default_factory=list)
    """What the shard kept in the run that this one resumes from."""
    changes: list[Changes] = field(default_factory=list)
    limits: tuple[Limit, ...] | None = None
    """Those that were chosen."""
    waiting: list[Message] = field(default_factory=list)
    """Events of slots that are not over when the run ends, for the stream to keep."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> _Gathered:
        """What came, by kind."""
        found = cls()
        for message in messages:
            found.messages += 1
            if message.kind is Kind.CHOICE:
                found.limits = limits_from(message)
            elif message.kind is Kind.CHANGES:
                found.changes.append(Changes.from_bytes(message.payload))
            elif message.kind is Kind.KEPT:
                found.kept.append(message.payload)
            elif message.kind is Kind.WAITING:
                found.waiting.append(message)
            else:
                found.blocks[message.slot] = message
        return found


def close_at_end(logic: ShardLogic, key: ShardKey, messages: Iterable[Message]) -> Iterator[Output]:
    """Close all slots of a shard of a bounded input: (stream, counts).

    On the side dead letters, and last a tally as bytes.

    Args:
        logic: what the shard does.
        key: of the shard.
        messages: all that came of it, in any order: visits, changes, what it kept, limits that were
            chosen, events that the stream is to keep.
    """
    came = _Gathered.of(messages)
    if came.limits is not None:
        logic = logic.under(came.limits)
    shard = logic.shard(key)
    tally = EventTally(messages=len(came.waiting) - came.messages)
    for message in came.waiting:
        yield Output((logic.stream, message))
    # Nobody else holds the changes: those that are applied are let go.
    for output in shard.close_blocks(came.blocks, _resumed(logic, key, shard, came)):
        output.record()
        tally = EventTally.total((tally, output.tally))
        yield Output((logic.stream, output.message))
        if output.no_requirement:
            yield output.letters(logic.clock.slots.end(max(output.no_requirement)) - 1)
    yield Output(tally.to_bytes(), TALLIES)


def _resumed(logic: ShardLogic, key: ShardKey, shard: Shard, came: _Gathered) -> Changes:
    """All changes of a shard, which resumes from what it kept."""
    kind = key[0]
    changes = [Changes.none(kind), *came.changes]
    came.changes.clear()
    for payload in came.kept:
        state, waiting = logic.kept_parts(kind, payload)
        shard.resume(state)
        changes.append(waiting)
    joined = Changes.joined(changes)
    if logic.resumed and logic.first_slot is not None:
        logic.count_late(key, joined, logic.first_slot)
    return joined
