"""From events to counts per slot, class and bin, in two steps around one shuffle.

Before the shuffle, a batch becomes a few narrow arrays of codes, one for each block of slots,
with what one user sent too much of already dropped. After it, the codes of a block are bounded
once more and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.cohorts import Moves
from streamveil.mechanisms.users import Registry
from streamveil.transforms.bounding import bound, mix, runs
from streamveil.transforms.mapping import Events

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger]

# Slots that are shuffled together. Input that is not sorted by time then still makes arrays
# worth the name, and counting needs a table of one block only.
_MOST_SLOTS_IN_A_BLOCK = 64
_FEWEST_SLOTS_FOR_NARROW_CODES = 16
_MOST_CELLS = 1 << 22
# Input sorted by time is sorted slot by slot, twice as fast as at once, if slots are this busy.
_ROWS_WORTH_A_SORT = 500

MEMBERS = 0
STRANGERS = 1


@dataclass(frozen=True)
class Layout:
    """How an event becomes one number, and which numbers travel together.

    A member's event is coded ((slot in block * users) + user) * bins + bin; that of a user
    outside the registry is a row (digest, digest, slot in block * bins + bin).
    """

    block: int
    """Slots in a block."""
    users: int
    """Registered users."""
    classes: int
    bins: int
    shards: int
    """Parts into which a block's users are split, for very busy slots."""

    @classmethod
    def choose(cls, registry: Registry, bins: int, shards: int, timely: bool) -> Layout:
        """Pick the block so that codes fit 32 bits and tables stay small, or 1 slot if timely."""
        users, classes = max(len(registry.users), 1), len(registry.classes)
        block = 1 if timely else _MOST_SLOTS_IN_A_BLOCK
        while block > 1 and block * classes * bins > _MOST_CELLS:
            block //= 2
        narrow = block
        while narrow > 1 and narrow * users * bins > 1 << 32:
            narrow //= 2
        if narrow >= min(block, _FEWEST_SLOTS_FOR_NARROW_CODES):
            block = narrow
        return cls(block, users, classes, bins, shards)

    @property
    def parts(self) -> int:
        """Parts in which a block is counted: the shards of members, and those of strangers."""
        return 2 * self.shards

    @property
    def span(self) -> int:
        """Codes in a block."""
        return self.block * self.users * self.bins

    def slots_of(self, counts: BlockCounts) -> Integers:
        """Slot of each cell of a block's counts."""
        return counts.block * self.block + counts.cells // (self.classes * self.bins)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of a member's code."""
        return np.dtype(np.uint32 if self.span <= 1 << 32 else np.uint64)


def pack(
    events: Events, layout: Layout, most: int
) -> Iterator[tuple[int, tuple[int, int], Codes, int]]:
    """Turn a batch of events into arrays to shuffle.

    Args:
        events: the batch.
        layout: how events are coded.
        most: contributions to keep of a user in a slot.

    Yields:
        (block, (MEMBERS or STRANGERS, shard), codes, number of events dropped). Codes of members
        ascend and have shape (n,); those of strangers have shape (n, 3), uint64.
    """
    member = events.members >= 0
    everyone = bool(member.all())
    slots, bins = (
        (events.slots, events.bins) if everyone else (events.slots[member], events.bins[member])
    )
    users = events.members if everyone else events.members[member]
    for block, codes, dropped in _member_codes(slots, users, bins, layout, most):
        if layout.shards == 1:
            yield block, (MEMBERS, 0), codes, dropped
            continue
        shard = codes // codes.dtype.type(layout.bins) % codes.dtype.type(layout.users)
        shard %= codes.dtype.type(layout.shards)
        for s in range(layout.shards):
            mine = codes[shard == s]
            if len(mine):
                yield block, (MEMBERS, s), mine, dropped
                dropped = 0
    if not everyone:
        yield from _stranger_rows(
            events.slots[~member], events.strangers, events.bins[~member], layout
        )


def _member_codes(
    slots: Integers, users: Integers, bins: Integers, layout: Layout, most: int
) -> Iterator[tuple[int, Codes, int]]:
    """Bounded, ascending codes of each block of a batch."""
    if not len(slots):
        return
    blocks = slots // layout.block
    first = int(blocks.min())
    if (int(blocks.max()) - first + 1) * layout.span >= 1 << 63:
        # Times far apart: a code could not hold them, so take the blocks one by one.
        for block in np.unique(blocks):
            there = blocks == block
            yield from _member_codes(slots[there], users[there], bins[there], layout, most)
        return
    codes = ((slots - first * layout.block) * layout.users + users) * layout.bins + bins
    narrow = max(int(codes.max()), layout.span) < 1 << 32
    wide: Codes = codes.astype(np.uint32 if narrow else np.uint64)
    edges = np.flatnonzero(np.diff(slots))
    if len(edges) * _ROWS_WORTH_A_SORT < len(slots) and (slots[edges + 1] > slots[edges]).all():
        for part in np.split(wide, edges + 1):  # a slot's codes are together: sort them in place
            part.sort()
    else:
        wide.sort()
    starts, lengths = runs(wide)
    distinct: Codes = wide[starts]
    kept = bound_members(distinct, lengths, first, layout, most)
    total = np.repeat(distinct, kept) if most > 1 else distinct[kept > 0]
    edges = np.flatnonzero(np.diff(total // distinct.dtype.type(layout.span)))
    dropped = len(wide) - len(total)
    for part in np.split(total, edges + 1):
        block = int(part[0]) // layout.span
        own = (part - part.dtype.type(block * layout.span)).astype(layout.dtype)
        yield first + block, own, dropped
        dropped = 0


def bound_members(
    codes: Codes, repeats: Integers, first_block: int, layout: Layout, most: int
) -> Integers:
    """Bound ascending distinct codes that count from the start of `first_block`."""
    start = np.uint64(first_block * layout.span % (1 << 64))

    def rank(groups: Integers) -> npt.NDArray[np.uint64]:
        return mix(codes[groups].astype(np.uint64) + start)

    return bound(codes // codes.dtype.type(layout.bins), repeats, most, rank)


def _stranger_rows(
    slots: Integers, digests: npt.NDArray[np.uint64], bins: Integers, layout: Layout
) -> Iterator[tuple[int, tuple[int, int], Codes, int]]:
    blocks = slots // layout.block
    cells = ((slots - blocks * layout.block) * layout.bins + bins).astype(np.uint64)
    rows = np.column_stack((digests, cells))
    shard = (digests[:, 0] % np.uint64(layout.shards)).astype(np.int64)
    order = np.lexsort((shard, blocks))
    rows, blocks, shard = rows[order], blocks[order], shard[order]
    edges = np.flatnonzero((np.diff(blocks) != 0) | (np.diff(shard) != 0)) + 1
    for start, end in zip([0, *edges], [*edges, len(rows)], strict=True):
        yield int(blocks[start]), (STRANGERS, int(shard[start])), rows[start:end], 0


@dataclass(frozen=True, eq=False)
class BlockCounts:
    """Bounded events of some of a block's users, by cell (slot in block, class, bin)."""

    block: int
    cells: Integers
    """(slot in block * classes + class) * bins + bin of each cell with events, ascending."""
    counts: Integers
    """Events in each of `cells`, above 0."""
    dropped: int
    """Events that bounding dropped here."""

    @classmethod
    def empty(cls, block: int) -> BlockCounts:
        """A block without events."""
        return cls(block, np.zeros(0, np.int64), np.zeros(0, np.int64), 0)


@dataclass(frozen=True, eq=False)
class Visits:
    """Bounded events of one kind of users of a block: a group is a user's in a slot and bin."""

    block: int
    codes: Codes
    """Distinct groups: ascending codes of members, or rows of strangers in order of user."""
    kept: Integers
    """Events of each group that bounding kept, shape (n,); may be 0."""
    dropped: int
    """Events that bounding dropped here."""

    @classmethod
    def none(cls, kind: int, block: int, layout: Layout) -> Visits:
        """A block without events."""
        shape = (0,) if kind == MEMBERS else (0, 3)
        codes = np.zeros(shape, layout.dtype if kind == MEMBERS else np.uint64)
        return cls(block, codes, np.zeros(0, np.int64), 0)


def bound_block(
    kind: int, block: int, arrays: Iterable[Codes], layout: Layout, most: int
) -> Visits:
    """Bound one block's events of one shard.

    Args:
        kind: MEMBERS or STRANGERS.
        block: number of the block.
        arrays: what :func:`pack` made of every batch, in any order.
        layout: how events are coded.
        most: contributions to keep of a user in a slot.
    """
    codes = np.concatenate(list(arrays))
    total = len(codes)
    if kind == MEMBERS:
        codes.sort(kind="stable")  # a merge: each part ascends
        starts, repeats = runs(codes)
        codes = codes[starts]
        kept = bound_members(codes, repeats, block, layout, most)
    else:
        codes = codes[np.lexsort((codes[:, 2], codes[:, 1], codes[:, 0]))]
        fresh = (codes[1:] != codes[:-1]).any(axis=1)
        starts = np.flatnonzero(np.append(True, fresh))
        repeats = np.diff(starts, append=total)
        codes = codes[starts]
        kept = _bound_strangers(codes, repeats, block, layout, most)
    return Visits(block, codes, kept, total - int(kept.sum()))


def read_codes(
    kind: int, codes: Codes, layout: Layout
) -> tuple[Integers, npt.NDArray[Any], Integers]:
    """Slot in block, user and bin of each code.

    Users are members' positions, shape (n,), or strangers' digests, shape (n, 2).
    """
    if kind == MEMBERS:
        visits, bins = np.divmod(codes.astype(np.int64), layout.bins)
        slots, users = np.divmod(visits, layout.users)
        return slots, users, bins
    slots, bins = np.divmod(codes[:, 2].astype(np.int64), layout.bins)
    return slots, codes[:, :2], bins


def count(
    kind: int, visits: Visits, layout: Layout, class_of: npt.NDArray[np.int32]
) -> BlockCounts:
    """Count bounded events by class; `class_of` is that of each member, and last of all others."""
    slots, users, bins = read_codes(kind, visits.codes, layout)
    classes = class_of[users] if kind == MEMBERS else np.full(len(slots), class_of[-1])
    cells = (slots * layout.classes + classes) * layout.bins + bins
    table = np.bincount(cells, weights=visits.kept, minlength=1)  # exact: far below 2**53
    filled = np.flatnonzero(table)
    return BlockCounts(visits.block, filled, table[filled].astype(np.int64), visits.dropped)


def _bound_strangers(
    rows: npt.NDArray[np.uint64], repeats: Integers, block: int, layout: Layout, most: int
) -> Integers:
    """Kept events of distinct rows in order of user, slot and bin."""
    slots, bins = np.divmod(rows[:, 2].astype(np.int64), layout.bins)
    fresh = (rows[1:, :2] != rows[:-1, :2]).any(axis=1) | (np.diff(slots) != 0)
    visits = np.cumsum(np.append(0, fresh))

    def rank(groups: Integers) -> npt.NDArray[np.uint64]:
        cells = (slots[groups] + block * layout.block) * layout.bins + bins[groups]
        return mix(mix(mix(rows[groups, 0]) ^ rows[groups, 1]) + cells.astype(np.uint64))

    return bound(visits, repeats, most, rank)


@dataclass(frozen=True, eq=False)
class ShardCounts:
    """What a shard tells of a slot: who moved before it, then its bounded events by cohort.

    The shards of a stream tell each slot once, in any order: a slot is complete when all have.
    """

    slot: int
    shard: int
    """Which of the shards tells, from 0."""
    moves: Moves
    """In force from this slot on; of a default class that loses more users than its public number,
    none are left."""
    cohorts: Integers
    """Cohorts with events, in force, ascending: shape (c,)."""
    cells: Integers
    """position in `cohorts` * bins + bin, ascending, distinct: shape (m,)."""
    counts: Integers
    """Events in each of `cells`, above 0."""

    @classmethod
    def empty(cls, slot: int) -> ShardCounts:
        """A slot without events or moves."""
        nothing = np.zeros(0, np.int64)
        return cls(slot, 0, Moves.none(), nothing, nothing, nothing)


def slot_tables(
    block: int, parts: Iterable[BlockCounts], layout: Layout
) -> Iterator[tuple[int, Integers]]:
    """Add up the parts of a block: (slot, counts of shape (K, d)) in slot order, busy or not."""
    table = np.zeros(layout.block * layout.classes * layout.bins, dtype=np.int64)
    for part in parts:
        table[part.cells] += part.counts  # the cells of one part are distinct
    shaped = table.reshape(layout.block, layout.classes, layout.bins)
    for i in range(layout.block):
        yield block * layout.block + i, shaped[i]
