"""Participation limits that were chosen from the input, as a message to shards and the stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamveil.engine.messages import Kind, Message, array_from_bytes, array_to_bytes
from streamveil.mechanisms.presence import Limit


def choice_message(limits: Sequence[Limit], shard: int = 0, shards: int = 1) -> Message:
    """A message with limits of windows, none of a lifetime."""
    figures = [(one.max_slots, one.blocks, one.chosen) for one in limits]
    payload = array_to_bytes(np.array(figures, np.int64).reshape(-1, 3))
    return Message(Kind.CHOICE, 0, shard, payload, shards)


def limits_from(choice: Message) -> tuple[Limit, ...]:
    """The limits in such a message."""
    rows = array_from_bytes(choice.payload).tolist()
    return tuple(Limit(most, blocks, chosen=bool(paid)) for most, blocks, paid in rows)
