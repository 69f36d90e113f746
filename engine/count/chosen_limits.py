"""Participation limits that were chosen from the input, as a message to shards and the stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamveil.engine import metrics
from streamveil.engine.messages import Kind, Message, array_from_bytes, array_to_bytes
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.limits import block_length


def choice_message(limits: Sequence[Limit], shard: int = 0, shards: int = 1) -> Message:
    """A message with limits of windows, none of a lifetime."""
    figures = [(one.max_slots, one.blocks, one.chosen) for one in limits]
    payload = array_to_bytes(np.array(figures, np.int64).reshape(-1, 3))
    return Message(Kind.CHOICE, 0, shard, payload, shards)


def count_chosen(
    sizes: npt.NDArray[np.int64],
    limits: Sequence[Limit],
    requirements: Sequence[Requirement],
    of_query: str = "",
) -> None:
    """Count the users of each class under the limit that was chosen for it: all of it is public.

    The name of a counter says slots of a block, its length and perhaps `of_query`.
    """
    for size, limit, one in zip(sizes, limits, requirements, strict=True):
        if limit.chosen:
            whole = 1 if limit.is_none else block_length(one.window, limit.blocks)
            most = 1 if limit.is_none else limit.max_slots
            metrics.count(f"{metrics.LIMITED_PREFIX}{most} of {whole}{of_query}", int(size))


def limits_from(choice: Message) -> tuple[Limit, ...]:
    """The limits in such a message."""
    rows = array_from_bytes(choice.payload).tolist()
    return tuple(Limit(most, blocks, chosen=bool(paid)) for most, blocks, paid in rows)
