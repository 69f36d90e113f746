"""Counting for many queries at once: what `transforms/counting` does, query by query.

A query's blocks are called by the base slot with which their last slot ends, and its shards are
numbered after those of the queries before it. So all steps up to the release see one stream in
base slots. What a shard tells of a slot of a query it tells of the base slot in which that ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.engine import metrics
from streamveil.engine.count import carried_queries
from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.counter import BlockKey, Counter
from streamveil.engine.count.event_codes import (
    MEMBERS,
    Codes,
    Layout,
    Packed,
    ShardKey,
    Visits,
    bound_block,
    pack,
    read_codes,
)
from streamveil.engine.encode.dead_letters import rejected_slots
from streamveil.engine.encode.event_mapper import Events
from streamveil.engine.encode.query_mapper import QueryEvents, with_queries
from streamveil.engine.messages import (
    Kind,
    Message,
    arrays_from_bytes,
    arrays_to_bytes,
    compressed,
    expanded,
    integers_from_bytes,
    narrow,
)
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.event_tallies import LATE, EventTally
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.queries.measures import Measure
from streamveil.mechanisms.queries.queries import Query, QuerySet

# Groups of events of a block: what is made of more does not stay in a core's cache.
_AT_ONCE = 1 << 16
# Base slots in a block: all of its events are gathered at once, of one query after another.
_MOST_SLOTS_IN_A_BLOCK = 16
# Half as many or a quarter, if codes then fit 32 bits: they take half as long.
_FEWEST_SLOTS_IN_A_BLOCK = 4


@dataclass(frozen=True, kw_only=True)
class QueryLayout(Layout):
    """How the events of each query become numbers; blocks and bins are those of queries."""

    query_set: QuerySet
    queries: tuple[Layout, ...]
    """Of each query: its bins are `bin * steps + step`."""
    measures: tuple[Measure, ...]
    """What the events of each query add to."""
    as_mapped: bool
    """Whether events are in a tally where they are mapped, since they are counted more than once,
    or by another run."""

    @classmethod
    def of(
        cls,
        query_set: QuerySet,
        registry: Registry,
        shards: int,
        timely: bool,
        in_passes: bool = False,
    ) -> QueryLayout:
        """One layout for each query, with so many shards each.

        Where a stream goes on from run to run, in passes, slots of several base slots may hold
        events that an earlier run has read.
        """
        longer = any(query.cut.longest > 1 for query in query_set)
        measures = tuple(query.measure for query in query_set)
        chosen = (
            Layout.choose(registry, query.domain.bins * measure.steps, shards, timely, measure.size)
            for query, measure in zip(query_set, measures, strict=True)
        )
        layouts = tuple(
            replace(layout, block=_slots_in_a_block(layout, query))
            for query, layout in zip(query_set, chosen, strict=True)
        )
        users, classes = layouts[0].users, layouts[0].classes
        bins = sum(layout.bins for layout in layouts)
        return cls(
            1,
            users,
            classes,
            bins,
            shards * len(layouts),
            query_set=query_set,
            queries=layouts,
            measures=measures,
            as_mapped=len(layouts) > 1 or (in_passes and longer),
        )

    @property
    def shards_of_all_users(self) -> tuple[int, int]:
        """Of each query."""
        return self.queries[0].shards, len(self.queries)

    def query(self, key: ShardKey) -> tuple[int, Query]:
        """Whose shard it is, with its number."""
        number = key[1] // self.queries[0].shards
        return number, self.query_set.queries[number]

    def called(self, number: int, block: int) -> int:
        """The base slot that a block of a query is called by: it ends with that one."""
        cut = self.query_set.queries[number].cut
        return cut.last((block + 1) * self.queries[number].block - 1)

    def block_of(self, number: int, called: int) -> int:
        """The block of a query that is called by a base slot."""
        return self.query_set.queries[number].cut.of(called) // self.queries[number].block

    def bounding(self, number: int, bounding: Bounding) -> Bounding:
        """Which contributions of a user to a query are kept, by the same secret."""
        query = self.query_set.queries[number]
        return replace(
            bounding,
            most=query.max_contributions,
            keep=query.keep,
            once=query.statistic.once,
        )


def _slots_in_a_block(chosen: Layout, query: Query) -> int:
    """Fewer than chosen: blocks of long slots must not hold all events of an input."""
    longest = query.cut.longest
    most = max(min(chosen.block, _MOST_SLOTS_IN_A_BLOCK) // longest, 1)
    block = most
    while block > 1 and block * chosen.users * chosen.bins > 1 << 32:
        block //= 2
    return block if block * longest >= _FEWEST_SLOTS_IN_A_BLOCK else most


def pack_queries(
    events: Sequence[Events], layout: QueryLayout, bounding: Bounding
) -> Iterator[tuple[int, ShardKey, Packed, int]]:
    """Turn the events of a batch, for each query, into arrays to shuffle: see :func:`pack`."""
    for number, (some, own) in enumerate(zip(events, layout.queries, strict=True)):
        kept = layout.bounding(number, bounding)
        name = layout.query_set.queries[number].name
        for block, (kind, shard), packed, dropped in pack(some, own, kept):
            metrics.count(f"{metrics.EVENTS_BOUNDED_AWAY}{metrics.OF_QUERY}{name}", dropped)
            shard += number * own.shards
            yield (
                layout.called(number, block),
                (kind, shard),
                PackedSmall.of_packed(packed),
                dropped,
            )


@dataclass(frozen=True, eq=False)
class PackedSmall(Packed):
    """The same events in a third of the bytes: those of all queries are on their way at once.

    Members' codes travel as the first one and the steps from one to the next, first the lowest byte
    of each step, compressed.
    """

    @classmethod
    def of_packed(cls, packed: Packed) -> PackedSmall:
        """The same events."""
        return cls(packed.codes, packed.at, packed.more)

    def to_bytes(self) -> bytes:
        """Steps and the events beyond the first of a group; rows of strangers as they are."""
        if self.codes.ndim > 1:
            return super().to_bytes()
        steps = narrow(self.codes[1:] - self.codes[:-1])
        shifts = range(0, 8 * steps.itemsize, 8)
        lanes = np.empty((steps.itemsize, len(steps)), np.uint8)
        for lane, shift in zip(lanes, shifts, strict=True):
            lane[:] = steps >> steps.dtype.type(shift)
        found = arrays_to_bytes(self.codes[:1], lanes, narrow(self.at), narrow(self.more))
        return compressed(found)

    @classmethod
    def read(cls, data: bytes, kind: int, layout: Layout) -> Packed:
        """The events of some bytes, of MEMBERS or STRANGERS."""
        if kind != MEMBERS:
            return cls.from_bytes(data)
        # Earlier versions kept the first code as a step from 0.
        *first, lanes, at, more = arrays_from_bytes(expanded(data))
        steps = np.zeros(lanes.shape[1], f"u{lanes.shape[0]}")
        for lane in lanes[::-1]:
            steps <<= steps.dtype.type(8)
            steps |= lane
        begins = first[0] if first else steps[:0]
        codes = np.empty(len(begins) + len(steps), layout.dtype)
        codes[: len(begins)] = begins
        codes[len(begins) :] = steps
        np.cumsum(codes, out=codes)
        return cls(codes, at.astype(np.int64), more.astype(np.int64))


@dataclass(frozen=True, eq=False, kw_only=True)
class PartOver(Visits):
    """Visits of those slots of a block that are over, when a run ends."""

    kept_back: PackedSmall
    """Events of the slot that is not, as of :func:`carried_queries.together`."""


@dataclass(frozen=True, eq=False)
class QueryCounter(Counter):
    """Bounds the codes of a block of a query, and emits what they add to its histograms."""

    layout: QueryLayout
    until: int | None = None
    """The last base slot of a run that another goes on from, which counts what is not over then."""

    def bound(self, key: BlockKey, messages: Iterable[Message]) -> Visits:
        """Bounded events of some of the block's users, and those that are kept for the next run."""
        number, query = self.layout.query(key[:2])
        layout, kind = self.layout.queries[number], key[0]
        block = self.layout.block_of(number, key[2])
        parts = [PackedSmall.read(message.payload, kind, layout) for message in messages]
        if not parts:
            return Visits.none(kind, block, layout)
        bounding = self.layout.bounding(number, self.bounding)
        if self.until is None:
            return bound_block(kind, block, parts, layout, bounding)
        over = query.cut.of(self.until + 1) - block * layout.block
        if over >= layout.block:
            return bound_block(kind, block, parts, layout, bounding)
        ended, parts = carried_queries.split(kind, parts, over, layout)
        found = bound_block(kind, block, ended, layout, bounding)
        kept_back = PackedSmall.of_packed(carried_queries.together(kind, parts, over, layout))
        return PartOver(**vars(found), kept_back=kept_back) if len(kept_back.codes) else found

    def tally(self, key: BlockKey, visits: Visits, messages: int) -> EventTally:
        """Tell the counters of the query what became of a block's events.

        If not here, each event is in the tally where it is mapped: see :meth:`by_query`.
        """
        of_query = f"{metrics.OF_QUERY}{self.layout.query(key[:2])[1].name}"
        metrics.count(metrics.EVENTS_BOUNDED_AWAY + of_query, visits.dropped)
        counted = 0 if self.by_user else int(visits.kept.sum())
        metrics.count(metrics.EVENTS_COUNTED + of_query, counted)
        if self.layout.as_mapped:
            return EventTally(messages=messages)
        return super().tally(key, visits, messages)

    def by_query(self, tally: EventTally, events: Sequence[QueryEvents]) -> EventTally:
        """The tally of mapped events, with what each query could read.

        An event that any query takes is counted, once. What a query then drops,
        by its own bound on contributions or because the event is late for it, is in counters of its
        own.
        """
        found = with_queries(tally, self.layout.query_set, events)
        metrics.count(metrics.EVENTS_UNASKED, tally.read - tally.all_lost - found.counted)
        if self.layout.as_mapped:
            return found
        return replace(found, beyond_bound=tally.beyond_bound, counted=tally.counted)

    def messages(self, key: BlockKey, visits: Visits) -> Sequence[tuple[Any, Message]]:
        """(stream, histograms) of each of the query's slots with events; of none, nothing.

        It is of the base slot with which the slot ends, or if no slot does, of that which was
        asked about. Of a slot that is not over when a run ends, which is followed by another, the
        events are given as waiting.
        """
        number, query = self.layout.query(key[:2])
        kept = []
        if isinstance(visits, PartOver) and self.until is not None:
            last = query.cut.end(self.until)
            events = visits.kept_back.to_bytes()
            to = key[:2] if self.by_user else self.stream  # shards pass it on
            kept = [(to, self.layout.message(Kind.WAITING, last, key[:2], events))]
        if self.by_user:
            mine = self.layout.message(Kind.COUNTS, key[2], key[:2], visits.to_bytes())
            return [*kept, (key[:2], mine)]
        if not len(visits.codes):
            nothing = self.layout.message(Kind.COUNTS, key[2], key[:2], NOTHING)
            return kept or [(self.stream, nothing)]
        found = self.histograms(key[0], number, visits)
        filled = np.flatnonzero(found)
        slots, cells = np.divmod(filled, found[0].size)
        edges = np.flatnonzero(np.diff(slots, prepend=-1))
        ends = np.append(edges[1:], len(slots))
        first = visits.block * self.layout.queries[number].block
        values = found.reshape(-1)[filled]
        counts = [
            (
                self.stream,
                self.layout.message(
                    Kind.COUNTS,
                    query.cut.last(first + slot),
                    key[:2],
                    arrays_to_bytes(narrow(cells[start:end]), narrow(values[start:end])),
                ),
            )
            for slot, start, end in zip(slots[edges].tolist(), edges, ends, strict=True)
        ]
        return [*kept, *counts]

    def histograms(self, kind: int, number: int, visits: Visits) -> Integers:
        """Of the slots of a block, by class: shape (slots, K, size of the measure)."""
        layout, measure = self.layout.queries[number], self.layout.measures[number]
        class_of = self.registry.classes_with_other
        table = np.zeros((layout.block * layout.classes, measure.size), np.int64)
        for some in _pieces(kind, visits.codes, layout):
            slots, users, fine = read_codes(kind, visits.codes[some], layout)
            classes = class_of.take(users) if kind == MEMBERS else class_of[-1]
            add_groups(slots, classes, fine, visits.kept[some], layout, measure, table)
        return table.reshape(layout.block, layout.classes, measure.size)

    def late(self, key: BlockKey, events: int) -> pa.RecordBatch:
        """Dead letters for events of a query that came after its slot was closed."""
        _, query = self.layout.query(key[:2])
        metrics.count(f"{metrics.EVENTS_LATE}{metrics.OF_QUERY}{query.name}", events)
        which = f"the slot of query {query.name!r} that ends with base slot {{slot}}"
        detail = f"{which} was closed before these events came, or never opened"
        return rejected_slots(LATE, detail, {key[2]: events})


def _pieces(kind: int, codes: Codes, layout: Layout) -> Iterator[slice]:
    """Cuts groups of a block into some that are read at once, members' also between slots.

    Events of one slot are in few cells, so that there are more events than cells.
    """
    edges = [0, len(codes)]
    if kind == MEMBERS:
        size = layout.users * layout.bins
        firsts = np.array([slot * size for slot in range(1, layout.block)], codes.dtype)
        edges[1:1] = np.searchsorted(codes, firsts).tolist()
    for start, end in itertools.pairwise(edges):
        for begin in range(start, end, _AT_ONCE):
            yield slice(begin, min(begin + _AT_ONCE, end))


def add_groups(
    slots: Integers,
    classes: npt.NDArray[np.integer[Any]] | np.integer[Any],
    fine: Integers,
    events: Integers,
    layout: Layout,
    measure: Measure,
    table: Integers,
) -> None:
    """Add groups of events to the histograms of a block.

    Args:
        slots: in the block, of each group, shape (n,).
        classes: of each group, or of all.
        fine: bin * steps + step of each group, shape (n,).
        events: in each group, shape (n,).
        layout: of the query.
        measure: of the query.
        table: shape (slots * classes, size of the measure); changed in place.
    """
    rows = slots * layout.classes
    rows += classes
    rows *= layout.bins
    rows += fine
    cells, events = _added_up(rows, events)
    own = cells // measure.steps if measure.steps > 1 else cells
    measure.add(own, cells - own * measure.steps, events, table)


def _added_up(cells: Integers, events: Integers) -> tuple[Integers, Integers]:
    """Cells with events, and how many: each once where there are fewer of them than groups."""
    first = int(cells.min())
    if int(cells.max()) - first >= len(cells):
        return cells, events
    # Weights are added up as floats: exact, as sums are far below 2**53.
    ones = int(events.min()) == int(events.max()) == 1
    table = np.bincount(cells - first, None if ones else events)
    filled = np.flatnonzero(table)
    return filled + first, table[filled].astype(np.int64)


NOTHING = arrays_to_bytes(np.zeros(0, np.uint8), np.zeros(0, np.uint8))


def going_on(kept: Iterable[Message], layout: QueryLayout) -> Iterator[tuple[BlockKey, Message]]:
    """The events that an earlier run kept, in the shards and blocks of this run.

    Args:
        kept: what the earlier run kept.
        layout: of this run.
    """
    for message in kept:
        kind, part = divmod(message.shard, message.shards // 2)
        number = part * len(layout.queries) // (message.shards // 2)
        query, own = layout.query_set.queries[number], layout.queries[number]
        block, slot = divmod(query.cut.of(message.slot), own.block)
        events = PackedSmall.read(message.payload, kind, carried_queries.of_slot(own))
        called = layout.called(number, block)
        for shard, some in carried_queries.placed(kind, events, slot, own):
            key = kind, number * own.shards + shard
            payload = PackedSmall.of_packed(some).to_bytes()
            yield (*key, called), layout.message(Kind.EVENTS, called, key, payload)


class SlotCounts(NamedTuple):
    """What came of a base slot, by the number of each query of which there is anything."""

    histograms: dict[int, Integers]
    """By class, shape (K, size of the measure)."""
    beyond: dict[int, Beyond]
    """Of queries under a participation limit what does not count, in cells of the measure."""


def slot_counts(parts: Iterable[Message], layout: QueryLayout) -> SlotCounts:
    """Add up the counts of all shards in a base slot."""
    found: dict[int, Integers] = {}
    beyond: dict[int, list[Beyond]] = {}
    for part in parts:
        cells, values, *above = integers_from_bytes(part.payload)
        number, _ = layout.query(layout.key(part.shard))
        size = layout.measures[number].size
        if len(cells):
            if number not in found:
                found[number] = np.zeros((layout.classes, size), np.int64)
            found[number].reshape(-1)[cells] += values  # the cells of one part are distinct
        if above and len(above[0]):
            layers, own = np.divmod(above[0], layout.classes * size)
            some = Beyond(layers + 1, *np.divmod(own, size), above[1])
            beyond.setdefault(number, []).append(some)
    return SlotCounts(found, {q: Beyond(*np.hstack(some)) for q, some in beyond.items()})
