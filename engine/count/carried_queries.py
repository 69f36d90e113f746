"""Events of a slot that is not over when a run ends: its state keeps them for the run after it.

A run ends with a base slot, and slots of longer queries may go on. Which of a user's events count
in a slot is drawn once, when all of it is there. So what is kept is how many events every user had
so far in each bin, counted from the start of that slot. It is raw, as the events are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from streamveil.engine.count.bounding import runs
from streamveil.engine.count.event_codes import MEMBERS, Layout, Packed


def split(
    kind: int, parts: Iterable[Packed], slot: int, layout: Layout
) -> tuple[list[Packed], list[Packed]]:
    """Events of the slots of a block before one of them, and those from that one on.

    Args:
        kind: MEMBERS or STRANGERS.
        parts: what :func:`pack` made of every batch.
        slot: in the block, from 0 on.
        layout: how events are coded.
    """
    before, since = [], []
    for part in parts:
        if kind == MEMBERS:  # whose codes ascend
            edge = part.codes.dtype.type(slot * layout.users * layout.bins)
            over = np.arange(len(part.codes)) < np.searchsorted(part.codes, edge)
        else:
            over = part.codes[:, 2] < np.uint64(slot * layout.bins)
        before.append(part.some(over))
        since.append(part.some(~over))
    return before, since


def together(kind: int, parts: Sequence[Packed], slot: int, layout: Layout) -> Packed:
    """Events of one slot of a block as if it were the first one, each group once."""
    one = of_slot(layout)
    codes = np.concatenate([part.codes for part in parts])
    if kind != MEMBERS:
        codes = codes - np.array([0, 0, slot * layout.bins], np.uint64)
        return Packed(codes[np.lexsort(codes.T[::-1])])
    events = np.concatenate([part.events for part in parts])
    order = np.argsort(codes, kind="stable")
    starts, _ = runs(codes[order])
    groups = codes[order][starts] - codes.dtype.type(slot * layout.users * layout.bins)
    return Packed.of(groups.astype(one.dtype), np.add.reduceat(events[order], starts))


def placed(kind: int, kept: Packed, slot: int, layout: Layout) -> Iterator[tuple[int, Packed]]:
    """The same events in a slot of a block, by shard: there may be others than when it was kept."""
    if kind == MEMBERS:
        bins, users, shards = (
            kept.codes.dtype.type(one) for one in (layout.bins, layout.users, layout.shards)
        )
        shard = kept.codes // bins % users % shards
        codes = kept.codes.astype(layout.dtype)
        codes += layout.dtype.type(slot * layout.users * layout.bins)
    else:
        shard = kept.codes[:, 0] % np.uint64(layout.shards)
        codes = kept.codes + np.array([0, 0, slot * layout.bins], np.uint64)
    moved = Packed(codes, kept.at, kept.more)
    for number in np.unique(shard).tolist():
        yield number, moved.some(shard == number)


def of_slot(layout: Layout) -> Layout:
    """The layout of a block of one slot."""
    return replace(layout, block=1)
