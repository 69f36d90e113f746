"""Closes the slots of a shard of an unbounded input one by one, in event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamveil.engine import metrics
from streamveil.engine.arrivals import another_start, contradiction
from streamveil.engine.count.changes import NEVER, Changes
from streamveil.engine.count.event_codes import ShardKey
from streamveil.engine.count.shards import ShardLogic
from streamveil.engine.messages import Kind, Message, Output
from streamveil.engine.stream_step import Bag, KeyState, went_back
from streamveil.mechanisms.core.state_codec import seal, unseal


class ShardProgress(NamedTuple):
    """Where a shard stands; slots are `NEVER` where nothing waits."""

    first: int | None = None
    """First slot of the stream; None before it is known."""
    next_slot: int = NEVER
    """First slot that is not closed; `NEVER` before the first is known."""
    busy: int = NEVER
    """First slot with visits that wait."""
    visits: int = 0
    """Visits that wait."""
    changes: int = NEVER
    """First slot with changes that wait."""
    change_messages: int = 0
    """Messages of changes that wait."""
    written: int | None = None
    """Slot after which the shard's state was written; None before the first."""


@dataclass(frozen=True, eq=False)
class CloseShards:
    """Closes the slots of a shard in order, and gives the counts of each, quiet or not.

    The step that follows cannot rely on its clock to have all of a slot, since some runners let the
    timers of two steps overtake each other. So every shard sends it a message for every slot.

    Takes visits of a slot, changes, or the start of the stream, in any order; visits of every slot,
    once, perhaps none, in blocks of one slot. Those that come again are dropped, or fail the stage
    if they differ and their slot is not closed: see `engine/arrivals.py`. Keeps, per shard, the
    visits and the changes that wait; its progress; and what the logic remembers, after the slot in
    which that was written, sealed, because budgets are kept by it. Before the first slot it is
    what the shard kept in the run that this one resumes from.

    It waits for the closing time of the next slot where there are visits of it: these have seen
    that time, and the changes may not have. Changes alone wait for nothing, so a stream that is
    drained comes to its end.
    """

    logic: ShardLogic
    known: Mapping[ShardKey, bytes] = field(default_factory=dict, repr=False)
    """By shard, what it kept in the run that this one resumes from."""

    def take(
        self, key: ShardKey, message: Message, at: int | None, kept: KeyState
    ) -> tuple[Output, ...]:
        """Visits or changes wait, or the stream starts."""
        shard = self._progress(kept)
        if message.kind is Kind.START:
            if shard.first not in (None, message.slot):
                raise another_start(message.slot, shard.first)
            if shard.first is None:
                shard = shard._replace(first=message.slot, next_slot=message.slot)
        elif message.kind is Kind.CHANGES:
            if self.logic.resumed or shard.next_slot != shard.first:
                changes = Changes.from_bytes(message.payload)
                self.logic.count_late(key, changes, shard.next_slot)
            kept.changes.add(message)
            first = min(shard.changes, message.slot)
            shard = shard._replace(changes=first, change_messages=shard.change_messages + 1)
        elif shard.first is not None and message.slot < shard.next_slot:
            metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
            return ()
        else:
            kept.waiting.add(message)
            shard = shard._replace(busy=min(shard.busy, message.slot), visits=shard.visits + 1)
        self._go_on(shard, kept)
        return ()

    def close(self, key: ShardKey, kept: KeyState) -> Iterator[Output]:
        """Close the next slot, if its visits are there."""
        logic, at = self.logic, self._progress(kept)
        if at.next_slot == NEVER:
            raise went_back("the timer of a shard fires, and nothing is kept of the shard")
        if at.busy != at.next_slot:  # it is called again
            return
        slot = at.next_slot
        shard = self._resumed(tuple(key), kept.state.read(), at.written)
        due = Changes.none(key[0])
        if at.changes <= slot:
            due, rest = _due_changes(kept.changes, slot, at.change_messages)
            at = at._replace(changes=rest.first, change_messages=int(len(rest.users) > 0))
        there, later = _due_visits(kept.waiting, slot, at.visits)
        first = min((message.slot for message in later), default=NEVER)
        at = at._replace(next_slot=slot + 1, busy=first, visits=len(later))
        output = shard.close(slot, there, due)
        output.record()
        if output.changed:
            sealed = seal(logic.sealing_key, self._purpose(key), shard.to_bytes())
            kept.state.write((slot, sealed))
            at = at._replace(written=slot)
        self._go_on(at, kept)
        closing = logic.clock.closing(slot)
        yield Output((logic.stream, output.message), at=closing)
        if output.no_requirement:
            yield output.letters(closing)

    def _progress(self, kept: KeyState) -> ShardProgress:
        first = self.logic.first_slot
        begin = ShardProgress() if first is None else ShardProgress(first, first)
        return ShardProgress(*(kept.progress.read() or begin))

    def _go_on(self, at: ShardProgress, kept: KeyState) -> None:
        kept.progress.write(tuple(at))
        if at.busy == at.next_slot != NEVER:
            kept.close_at(self.logic.clock.closing(at.next_slot))

    def _resumed(self, key: Any, state: Any, expected: int | None) -> Any:
        """The shard after the last slot that was closed. Raises StateWentBack."""
        shard = self.logic.shard(key)
        written, sealed = state or (None, b"")
        if written != expected:
            raise went_back(
                f"the state of the shard after slot {written} is read, and that after slot "
                f"{expected} was written"
            )
        known = self.known.get(key)
        if sealed:
            known = unseal(self.logic.sealing_key, self._purpose(key), sealed)
        if known:
            shard.resume(known)
        return shard

    def _purpose(self, key: ShardKey) -> bytes:
        return f"{self.logic.LABEL} {key[0]} {key[1]}".encode()


def _due_changes(waiting: Bag, slot: int, came: int) -> tuple[Changes, Changes]:
    """Take the changes that are due in a slot; also returns those that go on waiting.

    Raises StateWentBack where another number of messages is read than came.
    """
    messages = list(waiting.read())
    _check("changes", len(messages), came)
    joined = Changes.joined([Changes.from_bytes(message.payload) for message in messages])
    due, later = joined.split(slot)
    waiting.clear()
    if len(later.users):
        waiting.add(messages[0]._replace(slot=later.first, payload=later.to_bytes()))
    return due, later


def _due_visits(waiting: Bag, slot: int, came: int) -> tuple[Message, list[Message]]:
    """Take the visits of a slot, which are there; also returns those that go on waiting.

    Raises StateWentBack where another number of them is read than came, and ConfigurationError
    where visits of the slot came twice with different content.
    """
    messages = list(waiting.read())
    _check("visits", len(messages), came)
    there = [message for message in messages if message.slot == slot]
    later = [message for message in messages if message.slot > slot]
    if not there:
        raise went_back(f"no visits of slot {slot} wait where some came")
    if len(set(there)) > 1:
        raise contradiction(there[0])
    metrics.count(metrics.PARTS_REPEATED, len(there) - 1)
    waiting.clear()
    for message in later:
        waiting.add(message)
    return there[0], later


def _check(what: str, there: int, came: int) -> None:
    if there != came:
        raise went_back(f"{there} messages of {what} wait where {came} came")
