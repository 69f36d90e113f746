"""What waits in a shard of a stream until its slot closes: visits, and changes of requirements."""

from __future__ import annotations

from typing import Any

from streamveil.engine.count.changes import Changes
from streamveil.engine.messages import Kind, Message, several_from_bytes
from streamveil.transforms.on_beam import metrics
from streamveil.transforms.slots.arrivals import contradiction
from streamveil.transforms.slots.state_fence import went_back


def due_changes(cell: Any, slot: int, came: int) -> tuple[Changes, Changes]:
    """Take the changes that are due in a slot; also returns those that go on waiting.

    Args:
        cell: of the bag in which messages of changes wait, as bytes.
        slot: the slot that closes.
        came: how many messages wait.

    Raises StateWentBack where another number of them is read.
    """
    asked = list(map(Changes.from_bytes, cell.read()))
    _check("changes", len(asked), came)
    due, later = Changes.joined(asked).split(slot)
    cell.clear()
    if len(later.users):
        cell.add(later.to_bytes())
    return due, later


def due_visits(cell: Any, slot: int, came: int) -> tuple[Message, list[Message]]:
    """Take the visits of a slot, which are there; also returns those that go on waiting.

    Args:
        cell: of the bag in which visits wait.
        slot: the slot that closes.
        came: how many messages wait.

    Raises StateWentBack where another number of them is read, and ConfigurationError where visits
    of the slot came twice with different content.
    """
    waiting = list(cell.read())
    _check("visits", len(waiting), came)
    there = [message for message in waiting if message.slot == slot]
    later = [message for message in waiting if message.slot > slot]
    if len(set(there)) > 1:
        raise contradiction(there[0])
    metrics.count(metrics.PARTS_REPEATED, len(there) - 1)
    cell.clear()
    for message in later:
        cell.add(message)
    return there[0], later


def changes_to_come(kept: Message) -> Message:
    """The changes of what a shard kept, from slots to come."""
    _, changes = several_from_bytes(kept.payload)
    return kept._replace(kind=Kind.CHANGES, payload=changes)


def _check(what: str, there: int, came: int) -> None:
    if there != came:
        raise went_back(f"{there} messages of {what} wait where {came} came")
