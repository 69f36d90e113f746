"""Counting for many questions at once: what `transforms/counting` does, question by question.

A question's blocks are called by the base slot with which their last slot ends, and its shards are
numbered after those of the questions before it. So all steps up to the release see one stream in
base slots. What a shard tells of a slot of a question it tells of the base slot in which that ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from streamveil.engine.encode.query_mapper import QuestionEvents, with_questions
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
from streamveil.mechanisms.core.event_tallies import LATE, EventTally
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.portfolio.measures import Measure
from streamveil.mechanisms.portfolio.questions import Portfolio, Question

# Groups of events of a block: what is made of more does not stay in a core's cache.
_AT_ONCE = 1 << 16
# Base slots in a block: all of its events are gathered at once, of one question after another.
_MOST_SLOTS_IN_A_BLOCK = 16
# Half as many or a quarter, if codes then fit 32 bits: they take half as long.
_FEWEST_SLOTS_IN_A_BLOCK = 4

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PortfolioLayout(Layout):
    """How the events of each question become numbers; blocks and bins are those of questions."""

    portfolio: Portfolio
    questions: tuple[Layout, ...]
    """Of each question: its bins are `bin * steps + step`."""
    measures: tuple[Measure, ...]
    """What the events of each question add to."""

    @classmethod
    def of(
        cls, portfolio: Portfolio, registry: Registry, shards: int, timely: bool
    ) -> PortfolioLayout:
        """One layout for each question, with so many shards each."""
        measures = tuple(question.measure for question in portfolio)
        chosen = (
            Layout.choose(
                registry, question.domain.bins * measure.steps, shards, timely, measure.size
            )
            for question, measure in zip(portfolio, measures, strict=True)
        )
        layouts = tuple(
            replace(layout, block=_slots_in_a_block(layout, question))
            for question, layout in zip(portfolio, chosen, strict=True)
        )
        users, classes = layouts[0].users, layouts[0].classes
        bins = sum(layout.bins for layout in layouts)
        return cls(
            1,
            users,
            classes,
            bins,
            shards * len(layouts),
            portfolio=portfolio,
            questions=layouts,
            measures=measures,
        )

    def question(self, key: ShardKey) -> tuple[int, Question]:
        """Whose shard it is, with its number."""
        number = key[1] // self.questions[0].shards
        return number, self.portfolio.questions[number]

    def base_slots(self, number: int) -> int:
        """In a block of a question."""
        return self.questions[number].block * self.portfolio.questions[number].slots

    def called(self, number: int, block: int) -> int:
        """The base slot that a block of a question is called by: it ends with that one."""
        return (block + 1) * self.base_slots(number) - 1

    def bounding(self, number: int, bounding: Bounding) -> Bounding:
        """Which contributions of a user to a question are kept, by the same secret."""
        question = self.portfolio.questions[number]
        return replace(
            bounding,
            most=question.max_contributions,
            keep=question.keep,
            once=question.statistic.once,
        )


def _slots_in_a_block(chosen: Layout, question: Question) -> int:
    """Fewer than chosen: blocks of long slots must not hold all events of an input."""
    most = max(min(chosen.block, _MOST_SLOTS_IN_A_BLOCK) // question.slots, 1)
    block = most
    while block > 1 and block * chosen.users * chosen.bins > 1 << 32:
        block //= 2
    return block if block * question.slots >= _FEWEST_SLOTS_IN_A_BLOCK else most


def pack_questions(
    events: Sequence[Events], layout: PortfolioLayout, bounding: Bounding
) -> Iterator[tuple[int, ShardKey, Packed, int]]:
    """Turn the events of a batch, for each question, into arrays to shuffle: see :func:`pack`."""
    for number, (some, own) in enumerate(zip(events, layout.questions, strict=True)):
        kept = layout.bounding(number, bounding)
        name = layout.portfolio.questions[number].name
        for block, (kind, shard), packed, dropped in pack(some, own, kept):
            metrics.count(f"{metrics.EVENTS_BOUNDED_AWAY}{metrics.OF_QUESTION}{name}", dropped)
            shard += number * own.shards
            yield (
                layout.called(number, block),
                (kind, shard),
                PackedSmall.of_packed(packed),
                dropped,
            )


@dataclass(frozen=True, eq=False)
class PackedSmall(Packed):
    """The same events in a third of the bytes: those of all questions are on their way at once.

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
class PortfolioCounter(Counter):
    """Bounds the codes of a block of a question, and emits what they add to its histograms."""

    layout: PortfolioLayout
    until: int | None = None
    """The last base slot of a run that another goes on from, which counts what is not over then."""

    def bound(self, key: BlockKey, messages: Iterable[Message]) -> Visits:
        """Bounded events of some of the block's users, and those that are kept for the next run."""
        number, question = self.layout.question(key[:2])
        layout, kind = self.layout.questions[number], key[0]
        block = key[2] // self.layout.base_slots(number)
        parts = [PackedSmall.read(message.payload, kind, layout) for message in messages]
        if not parts:
            return Visits.none(kind, block, layout)
        bounding = self.layout.bounding(number, self.bounding)
        if self.until is None:
            return bound_block(kind, block, parts, layout, bounding)
        over = (self.until + 1) // question.slots - block * layout.block
        if over >= layout.block:
            return bound_block(kind, block, parts, layout, bounding)
        ended, parts = carried_queries.split(kind, parts, over, layout)
        found = bound_block(kind, block, ended, layout, bounding)
        kept_back = PackedSmall.of_packed(carried_queries.together(kind, parts, over, layout))
        return PartOver(**vars(found), kept_back=kept_back) if len(kept_back.codes) else found

    def tally(self, key: BlockKey, visits: Visits, messages: int) -> EventTally:
        """Tell the counters of the question what became of a block's events.

        Of several questions each event is in the tally where it is mapped: see :meth:`by_question`.
        """
        of_question = f"{metrics.OF_QUESTION}{self.layout.question(key[:2])[1].name}"
        metrics.count(metrics.EVENTS_BOUNDED_AWAY + of_question, visits.dropped)
        metrics.count(metrics.EVENTS_COUNTED + of_question, int(visits.kept.sum()))
        return (
            EventTally(messages=messages) if self._several else super().tally(key, visits, messages)
        )

    @property
    def _several(self) -> bool:
        return len(self.layout.questions) > 1

    def by_question(self, tally: EventTally, events: Sequence[QuestionEvents]) -> EventTally:
        """The tally of mapped events, with what each question could read.

        An event that any of several questions takes is counted, once. What a question then drops,
        by its own bound on contributions or because the event is late for it, is in counters of its
        own.
        """
        found = with_questions(tally, self.layout.portfolio, events)
        metrics.count(metrics.EVENTS_UNASKED, tally.read - tally.all_lost - found.counted)
        if self._several:
            return found
        return replace(found, beyond_bound=tally.beyond_bound, counted=tally.counted)

    def told(self, key: BlockKey, visits: Visits) -> Sequence[tuple[Any, Message]]:
        """(stream, histograms) of each of the question's slots with events; of none, nothing.

        It is of the base slot with which the slot ends, or if no slot does, of that which was
        asked about. Of a slot that is not over when a run ends, which is followed by another, the
        events are told as kept.
        """
        number, question = self.layout.question(key[:2])
        kept = []
        if isinstance(visits, PartOver) and self.until is not None:
            last = (self.until // question.slots + 1) * question.slots - 1
            events = visits.kept_back.to_bytes()
            kept = [(self.stream, self.layout.message(Kind.KEPT, last, key[:2], events))]
        if not len(visits.codes):
            nothing = self.layout.message(Kind.COUNTS, key[2], key[:2], _NOTHING)
            return kept or [(self.stream, nothing)]
        found = self.histograms(key[0], number, visits)
        filled = np.flatnonzero(found)
        slots, cells = np.divmod(filled, found[0].size)
        edges = np.flatnonzero(np.diff(slots, prepend=-1))
        ends = np.append(edges[1:], len(slots))
        first = visits.block * self.layout.questions[number].block
        values = found.reshape(-1)[filled]
        counts = [
            (
                self.stream,
                self.layout.message(
                    Kind.COUNTS,
                    (first + slot + 1) * question.slots - 1,
                    key[:2],
                    arrays_to_bytes(narrow(cells[start:end]), narrow(values[start:end])),
                ),
            )
            for slot, start, end in zip(slots[edges].tolist(), edges, ends, strict=True)
        ]
        return [*kept, *counts]

    def histograms(self, kind: int, number: int, visits: Visits) -> Integers:
        """Of the slots of a block, by class: shape (slots, K, size of the measure)."""
        layout, measure = self.layout.questions[number], self.layout.measures[number]
        class_of = self.registry.classes_with_other
        table = np.zeros((layout.block * layout.classes, measure.size), np.int64)
        for some in _pieces(kind, visits.codes, layout):
            slots, users, fine = read_codes(kind, visits.codes[some], layout)
            rows = slots * layout.classes
            rows += class_of.take(users) if kind == MEMBERS else class_of[-1]
            rows *= layout.bins
            rows += fine
            cells, events = _added_up(rows, visits.kept[some])
            own = cells // measure.steps if measure.steps > 1 else cells
            measure.add(own, cells - own * measure.steps, events, table)
        return table.reshape(layout.block, layout.classes, measure.size)

    def late(self, key: BlockKey, events: int) -> pa.RecordBatch:
        """Dead letters for events of a question that came after its slot was closed."""
        _, question = self.layout.question(key[:2])
        metrics.count(f"{metrics.EVENTS_LATE}{metrics.OF_QUESTION}{question.name}", events)
        which = f"the slot of question {question.name!r} that ends with base slot {{slot}}"
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


_NOTHING = arrays_to_bytes(np.zeros(0, np.uint8), np.zeros(0, np.uint8))


def going_on(
    kept: Iterable[Message], layout: PortfolioLayout
) -> Iterator[tuple[BlockKey, Message]]:
    """Events that an earlier run kept, as those of this one: shards and blocks may be others."""
    for message in kept:
        kind, part = divmod(message.shard, message.shards // 2)
        number = part * len(layout.questions) // (message.shards // 2)
        question, own = layout.portfolio.questions[number], layout.questions[number]
        block, slot = divmod(message.slot // question.slots, own.block)
        events = PackedSmall.read(message.payload, kind, carried_queries.of_slot(own))
        called = layout.called(number, block)
        for shard, some in carried_queries.placed(kind, events, slot, own):
            key = kind, number * own.shards + shard
            payload = PackedSmall.of_packed(some).to_bytes()
            yield (*key, called), layout.message(Kind.EVENTS, called, key, payload)


def histograms_of(parts: Iterable[Message], layout: PortfolioLayout) -> dict[int, Integers]:
    """Add up what shards told of a base slot: histograms by question, shape (K, size) each.

    Only of questions of which there is anything.
    """
    found: dict[int, Integers] = {}
    for part in parts:
        cells, values = integers_from_bytes(part.payload)
        if len(cells):
            number, _ = layout.question(layout.key(part.shard))
            if number not in found:
                size = layout.measures[number].size
                found[number] = np.zeros((layout.classes, size), np.int64)
            found[number].reshape(-1)[cells] += values  # the cells of one part are distinct
    return found
