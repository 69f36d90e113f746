"""From events to counts per slot, class and bin, in two steps around one shuffle.

Before the shuffle, a batch becomes a few narrow arrays of codes, one for each block of slots, where
events of one user in one slot and bin share a code. After it, the codes of a block are bounded and
counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.bounding import Bounding, draw_one, mix, runs
from streamveil.engine.encode.event_mapper import Events
from streamveil.engine.messages import (
    Kind,
    Message,
    arrays_from_bytes,
    arrays_to_bytes,
    integers_from_bytes,
    narrow,
)
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import DISTINCT, UNIFORM
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond
from streamveil.mechanisms.randomness.noise import Words

Codes = npt.NDArray[np.unsignedinteger]

# Slots that are shuffled together. Input that is not sorted by time then still makes arrays
# worth the name, and counting needs a table of one block only.
_MOST_SLOTS_IN_A_BLOCK = 64
_FEWEST_SLOTS_FOR_NARROW_CODES = 16
_MOST_CELLS = 1 << 22
# Input in order of time is sorted block by block, in codes as narrow as theirs, if slots are this
# busy.
_ROWS_WORTH_A_SORT = 500

# Groups of events that are bounded at once: what is made of more does not stay in a core's cache.
_BOUND_AT_ONCE = 1 << 16

MEMBERS = 0
STRANGERS = 1

ShardKey = tuple[int, int]
"""(MEMBERS or STRANGERS, shard of these)"""


@dataclass(frozen=True)
class Layout:
    """How an event becomes one number, and which numbers travel together.

    A member's event is coded ((slot in block * users) + user) * bins + bin; that of a user
    outside the registry is a row (digest, digest, slot in block * bins + bin) until all of a block
    is there, and then ((number of the digest * block) + slot in block) * bins + bin.
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
    def choose(
        cls, registry: Registry, bins: int, shards: int, timely: bool, cells: int | None = None
    ) -> Layout:
        """Pick the block so that codes fit 32 bits and tables stay small, or 1 slot if timely.

        A slot's table has so many cells for each class, as many as there are bins if None.
        """
        users, classes = max(len(registry.users), 1), len(registry.classes)
        block = 1 if timely else _MOST_SLOTS_IN_A_BLOCK
        while block > 1 and block * classes * (cells or bins) > _MOST_CELLS:
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
    def shards_of_all_users(self) -> tuple[int, int]:
        """Shards into which all users of a kind are split, and how often that is done."""
        return self.shards, 1

    def part(self, key: ShardKey) -> int:
        """Number of the part that a shard emits, from 0."""
        kind, shard = key
        return kind * self.shards + shard

    def key(self, part: int) -> ShardKey:
        """The shard that emits a part."""
        return divmod(part, self.shards)

    def message(self, kind: Kind, slot: int, key: ShardKey, payload: bytes = b"") -> Message:
        """What a shard emits about a slot or a block."""
        return Message(kind, slot, self.part(key), payload, self.parts)

    @property
    def span(self) -> int:
        """Codes in a block."""
        return self.block * self.users * self.bins

    def first_visit(self, block: int) -> np.uint64:
        """The number by which the first user in the first slot of a block is identified.

        It is mod 2**64.
        """
        return np.uint64(block * self.block * self.users % (1 << 64))

    def slots_of(self, counts: BlockCounts) -> Integers:
        """Slot of each cell of a block's counts."""
        return counts.block * self.block + counts.cells // (self.classes * self.bins)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of a member's code."""
        return np.dtype(np.uint32 if self.span <= 1 << 32 else np.uint64)


@dataclass(frozen=True, eq=False)
class Packed:
    """Events of some users in a block, to shuffle: a group is a user's in a slot and bin."""

    codes: Codes
    """Of members distinct and ascending, shape (n,); rows of strangers, one for each event, of
    shape (n, 3), uint64."""
    at: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Where in `codes` those groups are that have more than one event, shape (m,)."""
    more: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Events beyond the first of each of these, shape (m,)."""

    @classmethod
    def of(cls, codes: Codes, repeats: Integers) -> Packed:
        """Members' groups with so many events each, from 1 on."""
        at = np.flatnonzero(repeats > 1)
        return cls(codes, at, repeats[at] - 1)

    @classmethod
    def of_events(cls, codes: Codes) -> Packed:
        """Members' events, by ascending codes: those with the same one are a group."""
        again = np.flatnonzero(codes[1:] == codes[:-1])
        if not len(again):
            return cls(codes)
        first = np.ones(len(codes), np.bool_)
        first[again] = False
        groups = again - np.arange(len(again))  # as so many stand before each that leave
        starts, more = runs(groups)
        return cls(codes[first], groups[starts], more)

    @property
    def events(self) -> Integers:
        """Of each of members' groups, shape (n,)."""
        events = np.ones(len(self.codes), np.int64)
        events[self.at] += self.more
        return events

    def some(self, rows: npt.NDArray[np.bool_]) -> Packed:
        """Those of some rows of `codes`."""
        if rows.all():
            return self
        if not len(self.at):
            return Packed(self.codes[rows])
        return Packed.of(self.codes[rows], self.events[rows])

    def to_bytes(self) -> bytes:
        """The codes alone, where no group has more than one event."""
        more = (narrow(self.at), narrow(self.more)) if len(self.at) else ()
        return arrays_to_bytes(self.codes, *more)

    @classmethod
    def from_bytes(cls, data: bytes) -> Packed:
        """The events, the codes read-only over the bytes themselves."""
        codes, *more = arrays_from_bytes(data)
        return cls(codes, *(array.astype(np.int64) for array in more))


def pack(
    events: Events, layout: Layout, bounding: Bounding
) -> Iterator[tuple[int, ShardKey, Packed, int]]:
    """Turn a batch of events into arrays to shuffle.

    Args:
        events: the batch.
        layout: how events are coded.
        bounding: which contributions of a user in a slot are kept.

    Yields:
        (block, (MEMBERS or STRANGERS, shard), events, number of events dropped).
    """
    member = events.members >= 0
    everyone = bool(member.all())
    slots, bins = (
        (events.slots, events.bins) if everyone else (events.slots[member], events.bins[member])
    )
    users = events.members if everyone else events.members[member]
    for block, codes in _member_codes(slots, users, bins, layout):
        packed, dropped = Packed.of_events(codes), 0
        if bounding.keep == DISTINCT:  # parts of an input can be bounded before all of it is there
            repeats = packed.events
            kept = bound_members(packed.codes, repeats, block, layout, bounding)
            dropped = int(repeats.sum()) - int(kept.sum())
            if dropped:
                packed = Packed.of(packed.codes[kept > 0], kept[kept > 0])
        if layout.shards == 1:
            yield block, (MEMBERS, 0), packed, dropped
            continue
        number = packed.codes.dtype.type
        shard = packed.codes // number(layout.bins) % number(layout.users) % number(layout.shards)
        for s in np.unique(shard).tolist():
            yield block, (MEMBERS, s), packed.some(shard == s), dropped
            dropped = 0
    if not everyone:
        yield from _stranger_rows(
            events.slots[~member], events.strangers, events.bins[~member], layout
        )


def _member_codes(
    slots: Integers, users: Integers, bins: Integers, layout: Layout
) -> Iterator[tuple[int, Codes]]:
    """Ascending codes of the events of each block of a batch."""
    edges = np.flatnonzero(slots[1:] != slots[:-1]) + 1
    if len(edges) * _ROWS_WORTH_A_SORT >= len(slots) or (slots[edges] < slots[edges - 1]).any():
        yield from _scattered_codes(slots, users, bins, layout)
        return
    begins = np.append(0, edges)
    firsts, _ = runs(slots[begins] // layout.block)
    for start, end in itertools.pairwise([*begins[firsts].tolist(), len(slots)]):
        rows, block = slice(start, end), int(slots[start]) // layout.block
        own = slots[rows] - block * layout.block
        codes = _coded(own, users[rows], bins[rows], layout, layout.dtype)
        codes.sort()
        yield block, codes


def _scattered_codes(
    slots: Integers, users: Integers, bins: Integers, layout: Layout
) -> Iterator[tuple[int, Codes]]:
    """The same, whatever the order of slots."""
    if not len(slots):
        return
    latest = int(slots.max())
    first, last = int(slots.min()) // layout.block, latest // layout.block
    if (last - first + 1) * layout.span >= 1 << 63:
        # Times far apart: a code could not hold them, so take the blocks one by one.
        blocks = slots // layout.block
        for block in np.unique(blocks).tolist():
            there = blocks == block
            yield from _scattered_codes(slots[there], users[there], bins[there], layout)
        return
    begin = first * layout.block
    end = (latest + 1 - begin) * layout.users * layout.bins
    narrow_enough = max(end, layout.span) < 1 << 32
    kind: np.dtype[np.unsignedinteger] = np.dtype(np.uint32 if narrow_enough else np.uint64)
    wide = _coded(slots - begin, users, bins, layout, kind)
    wide.sort()
    if first == last:
        yield first, wide.astype(layout.dtype, copy=False)
        return
    start = 0
    while start < len(wide):
        block = int(wide[start]) // layout.span
        own = wide[start:]
        if first + block < last:  # else all that is left is its, and what ends it may be too wide
            own = own[: int(np.searchsorted(own, own.dtype.type((block + 1) * layout.span)))]
        start += len(own)
        yield first + block, (own - own.dtype.type(block * layout.span)).astype(layout.dtype)


def _coded(
    slots: Integers,
    users: Integers,
    bins: Integers,
    layout: Layout,
    dtype: np.dtype[np.unsignedinteger],
) -> Codes:
    """(slot * users + user) * bins + bin of each event, in an array of its own."""
    codes: Codes = slots.astype(dtype)
    for size, added in ((layout.users, users), (layout.bins, bins)):
        codes *= dtype.type(size)
        codes += added.astype(dtype, copy=False)
    return codes


def bound_members(
    codes: Codes, repeats: Integers, first_block: int, layout: Layout, bounding: Bounding
) -> Integers:
    """Bound ascending distinct codes that count from the start of `first_block`."""
    bins = codes.dtype.type(layout.bins)
    start = np.uint64(first_block * layout.span % (1 << 64))
    first_visit = layout.first_visit(first_block)

    def visitor(groups: Integers) -> Words:
        return (codes[groups] // bins).astype(np.uint64) + first_visit

    def rank(groups: Integers) -> Words:
        return mix(codes[groups].astype(np.uint64) + start)

    return bounding(codes // bins, repeats, visitor, rank)


def _bound_in_pieces(
    codes: Codes, parts: Iterable[Packed], block: int, layout: Layout, bounding: Bounding
) -> Visits:
    """Bound ascending codes of one block, each as often as there are parts that have it.

    Codes are taken in pieces that stay in a core's cache; no visit is cut.
    """
    bins = codes.dtype.type(layout.bins)
    starts = np.searchsorted(codes, codes[::_BOUND_AT_ONCE] // bins * bins)
    edges = [*np.unique(starts).tolist(), len(codes)]
    # Groups that have more than one event in a part, and how many more.
    repeated = np.concatenate([codes[:0], *(part.codes[part.at] for part in parts)])
    more = np.concatenate([np.zeros(0, np.int64), *(part.more for part in parts)])
    order = np.argsort(repeated, kind="stable")
    repeated, more = repeated[order], more[order]
    at = np.searchsorted(repeated, codes[edges[:-1]])
    groups, kept, dropped = [codes[:0]], [np.zeros(0, np.int64)], 0
    for (start, end), (first, last) in zip(
        itertools.pairwise(edges), itertools.pairwise([*at.tolist(), len(repeated)]), strict=True
    ):
        found = _bound_piece(
            codes[start:end], repeated[first:last], more[first:last], block, layout, bounding
        )
        groups.append(found[0])
        kept.append(found[1])
        dropped += end - start + int(more[first:last].sum()) - int(found[1].sum())
    return Visits(block, np.concatenate(groups), np.concatenate(kept), dropped)


def _bound_piece(
    codes: Codes, repeated: Codes, more: Integers, block: int, layout: Layout, bounding: Bounding
) -> tuple[Codes, Integers]:
    """Distinct groups of ascending codes, and events to keep of each; those of none may lack.

    There are so many `more` events of the groups `repeated`.
    """
    one = bounding.most == 1 and bounding.keep == UNIFORM
    if one and (bounding.once or int(more.sum()) <= len(codes)):
        # Event by event, which takes half as long as groups of events.
        events = codes
        if bounding.once:
            events = codes[runs(codes)[0]]
        elif len(more):
            again = np.repeat(repeated, more)
            events = np.insert(codes, np.searchsorted(codes, again), again)
        visits = events // events.dtype.type(layout.bins)
        first = layout.first_visit(block)
        rows = draw_one(visits, lambda rows: visits[rows].astype(np.uint64) + first, bounding.key)
        if rows is not None:
            return events[rows], np.ones(len(rows), np.int64)
    firsts, repeats = runs(codes)
    distinct = codes[firsts]
    np.add.at(repeats, np.searchsorted(distinct, repeated), more)
    return distinct, bound_members(distinct, repeats, block, layout, bounding)


def _stranger_rows(
    slots: Integers, digests: npt.NDArray[np.uint64], bins: Integers, layout: Layout
) -> Iterator[tuple[int, ShardKey, Packed, int]]:
    blocks = slots // layout.block
    cells = ((slots - blocks * layout.block) * layout.bins + bins).astype(np.uint64)
    rows = np.column_stack((digests, cells))
    shard = (digests[:, 0] % np.uint64(layout.shards)).astype(np.int64)
    order = np.lexsort((shard, blocks))
    rows, blocks, shard = rows[order], blocks[order], shard[order]
    edges = np.flatnonzero((np.diff(blocks) != 0) | (np.diff(shard) != 0)) + 1
    for start, end in zip([0, *edges], [*edges, len(rows)], strict=True):
        yield int(blocks[start]), (STRANGERS, int(shard[start])), Packed(rows[start:end]), 0


@dataclass(frozen=True, eq=False)
class BlockCounts:
    """Bounded events of some of a block's users, by cell (slot in block, class, bin)."""

    block: int
    cells: Integers
    """(slot in block * classes + class) * bins + bin of each cell with events, ascending."""
    counts: Integers
    """Events in each of `cells`, above 0."""
    beyond: tuple[Integers, Integers] | None = None
    """Cells and events of what does not count where presence is limited, in three layers: cells are
    layer * slots in block * classes * bins further (see `mechanisms/presence/kept_share.py`)."""

    @property
    def events(self) -> int:
        """All that count."""
        return int(self.counts.sum())

    def to_bytes(self) -> bytes:
        """Cells and counts in the smallest types, and those of what does not count."""
        arrays = [self.cells, self.counts, *(self.beyond or ())]
        return arrays_to_bytes(*map(narrow, arrays))

    @classmethod
    def of(cls, message: Message) -> BlockCounts:
        """The counts that a shard emits."""
        cells, counts, *beyond = integers_from_bytes(message.payload)
        return cls(message.slot, cells, counts, (beyond[0], beyond[1]) if beyond else None)


@dataclass(frozen=True, eq=False)
class Visits:
    """Bounded events of one kind of users of a block: a group is a user's in a slot and bin."""

    block: int
    codes: Codes
    """Distinct groups, ascending, shape (n,)."""
    kept: Integers
    """Events of each group that bounding kept, shape (n,); may be 0."""
    dropped: int = 0
    """Events that bounding dropped here."""
    strangers: Words = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    """Digests by the numbers that codes of strangers hold: ascending, distinct, shape (u, 2)."""

    @property
    def events(self) -> int:
        """All that bounding kept."""
        return int(self.kept.sum())

    @classmethod
    def none(cls, kind: int, block: int, layout: Layout) -> Visits:
        """A block without events."""
        codes = np.zeros(0, layout.dtype if kind == MEMBERS else np.uint64)
        return cls(block, codes, np.zeros(0, np.int64))

    def to_bytes(self) -> bytes:
        """The groups that keep events: codes as steps from one to the next, which are short."""
        codes, kept, some = self.codes, self.kept, self.kept > 0
        if not some.all():
            codes, kept = codes[some], kept[some]
        steps = np.diff(codes, prepend=codes.dtype.type(0))
        return arrays_to_bytes(narrow(steps), narrow(kept), self.strangers)

    @classmethod
    def of(cls, message: Message) -> Visits:
        """The visits that a shard emits, without groups of nothing and what was dropped."""
        steps, kept, strangers = arrays_from_bytes(message.payload)
        codes = np.cumsum(steps, dtype=np.uint64)
        return cls(message.slot, codes, kept.astype(np.int64), strangers=strangers)


def bound_block(
    kind: int, block: int, parts: Iterable[Packed], layout: Layout, bounding: Bounding
) -> Visits:
    """Bound one block's events of one shard.

    Args:
        kind: MEMBERS or STRANGERS.
        block: number of the block.
        parts: what :func:`pack` made of every batch, in any order.
        layout: how events are coded.
        bounding: which contributions of a user in a slot are kept.
    """
    parts = list(parts)
    codes = np.concatenate([part.codes for part in parts])
    if kind == MEMBERS:
        codes.sort(kind="stable")  # a merge: each part ascends
        return _bound_in_pieces(codes, parts, block, layout, bounding)
    rows = codes[np.lexsort((codes[:, 2], codes[:, 1], codes[:, 0]))]
    other = (rows[1:, 0] != rows[:-1, 0]) | (rows[1:, 1] != rows[:-1, 1])
    strangers = rows[np.append(True, other)[: len(rows)], :2]
    numbers = np.cumsum(np.append(False, other)[: len(rows)], dtype=np.uint64)
    codes = numbers * np.uint64(layout.block * layout.bins) + rows[:, 2]
    starts, repeats = runs(codes)
    codes = codes[starts]
    kept = _bound_strangers(codes, strangers, repeats, block, layout, bounding)
    return Visits(block, codes, kept, int(repeats.sum()) - int(kept.sum()), strangers)


def read_codes(kind: int, codes: Codes, layout: Layout) -> tuple[Integers, Integers, Integers]:
    """Slot in block, user and bin of each code, of shape (n,) each.

    Users are members' positions, or strangers' numbers in their visits.
    """
    slots, users, bins = _parts(kind, codes, layout)
    return slots.astype(np.int64), users.astype(np.int64), bins.astype(np.int64)


def _parts(kind: int, codes: Codes, layout: Layout) -> tuple[Codes, Codes, Codes]:
    """What :func:`read_codes` gives, in the type of the codes."""
    # Quotients of unsigned numbers by one number are several times faster than `divmod`.
    visits = codes // codes.dtype.type(layout.bins)
    bins = codes - visits * codes.dtype.type(layout.bins)
    size = codes.dtype.type(layout.users if kind == MEMBERS else layout.block)
    first = visits // size
    second = visits - first * size
    return (first, second, bins) if kind == MEMBERS else (second, first, bins)


def count(
    kind: int, visits: Visits, layout: Layout, class_of: npt.NDArray[np.int32]
) -> BlockCounts:
    """Count bounded events by class; `class_of` is that of each member, and last of all others."""
    slots, users, bins = _parts(kind, visits.codes, layout)
    # Cells fit the type of codes: there is a table of them.
    cells, width = slots, slots.dtype.type
    cells *= width(layout.classes)
    cells += (class_of.take(users.astype(np.int64)) if kind == MEMBERS else class_of[-1]).astype(
        width
    )
    cells *= width(layout.bins)
    cells += bins
    # Weights add up exactly: they are far below 2**53.
    table = np.bincount(cells.astype(np.int64), weights=visits.kept, minlength=1)
    filled = np.flatnonzero(table)
    return BlockCounts(visits.block, filled, table[filled].astype(np.int64))


def count_layers(
    kind: int,
    visits: Visits,
    layers: Integers,
    classes: npt.NDArray[np.integer],
    layout: Layout,
) -> BlockCounts:
    """The same where presence is limited: layer 0 counts, 1 to 3 go to the estimate of the share.

    Layers and classes are of each group.
    """
    slots, _, bins = read_codes(kind, visits.codes, layout)
    cells = (slots * layout.classes + classes) * layout.bins + bins
    table = np.bincount(cells, weights=np.where(layers, 0, visits.kept), minlength=1)
    filled = np.flatnonzero(table)
    counts = BlockCounts(visits.block, filled, table[filled].astype(np.int64))
    rows = np.flatnonzero((layers > 0) & (layers <= LAYERS))
    if not len(rows):
        return counts
    above = cells[rows] + (layers[rows] - 1) * (layout.block * layout.classes * layout.bins)
    filled, group = np.unique(above, return_inverse=True)
    events = np.bincount(group, weights=visits.kept[rows]).astype(np.int64)
    return replace(counts, beyond=(filled, events))


def _bound_strangers(
    codes: Words,
    strangers: Words,
    repeats: Integers,
    block: int,
    layout: Layout,
    bounding: Bounding,
) -> Integers:
    """Kept events of distinct ascending codes, which hold the numbers of these digests."""
    span = np.uint64(layout.block * layout.bins)
    bins = np.uint64(layout.bins)
    first_slot = np.uint64(block * layout.block % (1 << 64))
    first_cell = np.uint64(block * layout.block * layout.bins % (1 << 64))

    def user(groups: Integers) -> Words:
        digests = strangers[codes[groups] // span]
        return mix(mix(digests[:, 0]) ^ digests[:, 1])

    def visitor(groups: Integers) -> Words:
        return mix(user(groups) + codes[groups] % span // bins + first_slot)

    def rank(groups: Integers) -> Words:
        return mix(user(groups) + codes[groups] % span + first_cell)

    return bounding(codes // bins, repeats, visitor, rank)


@dataclass(frozen=True, eq=False)
class ShardCounts:
    """What a shard emits about a slot: who moved before it, then its bounded events by cohort.

    The shards of a stream tell each slot once, in any order: a slot is complete when all have.
    """

    slot: int
    shard: int
    """Which of the shards emits, from 0."""
    moves: Moves
    """In force from this slot on; of a default class that loses more users than its public number,
    none are left."""
    cohorts: Integers
    """Cohorts with events, in force, ascending: shape (c,)."""
    cells: Integers
    """position in `cohorts` * bins + bin, ascending, distinct: shape (m,)."""
    counts: Integers
    """Events in each of `cells`, above 0."""

    def to_bytes(self) -> bytes:
        """Moves, then cohorts, cells and counts."""
        moves = self.moves
        return arrays_to_bytes(
            moves.parents,
            moves.children,
            moves.users,
            moves.requirements,
            self.cohorts,
            narrow(self.cells),
            narrow(self.counts),
        )

    @classmethod
    def of(cls, message: Message) -> ShardCounts:
        """The counts that a shard emits."""
        arrays = integers_from_bytes(message.payload)
        return cls(message.slot, message.shard, Moves(*arrays[:4]), *arrays[4:])


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


def slots_beyond(parts: Iterable[BlockCounts], layout: Layout) -> Iterator[Beyond]:
    """Add up what does not count of a block, slot by slot."""
    beyond = [part.beyond for part in parts if part.beyond is not None]
    cells, events = np.hstack([np.zeros((2, 0), np.int64), *beyond])
    layer, cells = np.divmod(cells, layout.block * layout.classes * layout.bins)
    slot, cells = np.divmod(cells, layout.classes * layout.bins)
    for i in range(layout.block):
        mine = slot == i
        classes, bins = np.divmod(cells[mine], layout.bins)
        yield Beyond(layer[mine] + 1, classes, bins, events[mine])
