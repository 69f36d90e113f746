"""Requirements that change: from batches of changes and bounded events to counts by cohort.

A shard's changes are joined with its events in two ways: at the end of both, and in event time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import BytesCoder, FastPrimitivesCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.bounding import runs
from streamveil.engine.count.changes import (
    NEVER,
    ChangeMapper,
    Changes,
    Integers,
    Keys,
    spread,
    stranger_keys,
)
from streamveil.engine.count.cohorts import Cohorts, CohortState
from streamveil.engine.count.event_codes import (
    MEMBERS,
    Layout,
    ShardKey,
    Visits,
    read_codes,
)
from streamveil.engine.encode.dead_letters import reasons_of, rejected_slots, tally_of
from streamveil.engine.encode.event_mapper import NO_REQUIREMENT
from streamveil.engine.messages import REJECTED, TALLIES, Kind, several_from_bytes, several_to_bytes
from streamveil.engine.slot_clock import SlotClock
from streamveil.mechanisms.core.event_tallies import EventTally, Lost
from streamveil.mechanisms.core.state_codec import seal, unseal
from streamveil.mechanisms.core.user_table import Registry
from streamveil.transforms.counting.waiting import changes_to_come, due_changes, due_visits
from streamveil.transforms.on_beam import Message, MessageCoder, metrics
from streamveil.transforms.slots.clock import closing_time
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

_BY_SHARD = KV[Tuple[int, int], Message]


@dataclass(frozen=True, eq=False)
class JoinConfig:
    """Everything the join is made of: public, but for what the mapper knows."""

    registry: Registry
    clock: SlotClock
    layout: Layout
    change_mapper: Callable[[], ChangeMapper]
    """What makes the mapper on a worker: it holds a secret."""
    longest_window: int
    first_slot: int
    """First slot to release: changes from before are in force from the start."""
    last_slot: int | None = None
    stream: str = ""
    """Key of the counts that come out."""
    keeps: bool = False
    """Whether shards of a bounded input tell last what the run that goes on needs to know: who is
    in which cohort, and the changes from slots after the last one."""
    resumed: bool = False
    """Whether an earlier run released the slot before the first one: changes from before are late.
    """

    @cached_property
    def _classes(self) -> Integers:
        """What the classes ask for, as in `Moves`."""
        return self.registry.classes.as_changing

    def cohorts(self, key: ShardKey) -> Cohorts:
        """The cohorts of a shard."""
        return Cohorts(
            key[0],
            self.layout.part(key),
            self.layout.parts,
            self._classes,
            self.registry.class_of,
            self.registry.default_class,
            self.longest_window,
            self.layout.bins,
        )


class Joined(NamedTuple):
    """What :class:`JoinRequirements` gives."""

    counts: beam.PCollection[tuple[str, Message]]
    """(stream, ShardCounts). In a stream one of each shard and slot; in a bounded input
    only those where a shard has anything to tell, all before its end."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters: bad changes, and events of users without a requirement."""
    tallies: tuple[beam.PCollection[bytes], ...]
    """In a bounded input, what became of its events."""


@dataclass(eq=False)
class JoinRequirements(beam.PTransform):
    """Joins bounded events with what their users ask for in the slot.

    Input: (shard, Visits) and batches of changes. Bounded inputs are joined at
    their end, in slot order, and nothing is late. In a stream there are visits, perhaps none, of
    every slot and shard; the shard closes the slot when it has them and the watermark of changes
    has passed the closing time as well.
    """

    config: JoinConfig
    kept: Sequence[Message] = ()
    """What shards kept in the run that this one goes on from."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(
        self,
        inputs: tuple[beam.PCollection[tuple[ShardKey, Message]], beam.PCollection[pa.RecordBatch]],
    ) -> Joined:
        """Build the steps: map the changes, gather by shard, join."""
        visits, batches = inputs
        config = self.config
        tallies: tuple[beam.PCollection[bytes], ...] = ()
        mapped = mapped_changes(batches, config.change_mapper, config.layout)
        everything = [visits, mapped.changes]
        bounded = visits.is_bounded and batches.is_bounded
        kept = self.kept if bounded else list(map(changes_to_come, self.kept))
        if kept:
            by_shard = [(config.layout.key(message.shard), message) for message in kept]
            everything.append(
                visits.pipeline | "Kept" >> beam.Create(by_shard).with_output_types(_BY_SHARD)
            )
        everything = everything | "AddChanges" >> beam.Flatten()
        if bounded:
            gathered = everything | "GatherShards" >> beam.GroupByKey()
            joined = gathered | "JoinAtEnd" >> beam.ParDo(_JoinAtEndFn(config)).with_outputs(
                REJECTED, TALLIES, main="counts"
            )
            joined[TALLIES].element_type = bytes
            kept_too = EventTally(messages=len(self.kept)).to_bytes()
            tallies = (
                mapped[TALLIES],
                visits.pipeline | "KeptTally" >> beam.Create([kept_too]),
                joined[TALLIES],
            )
        else:
            joined = everything | "JoinInTime" >> beam.ParDo(
                _JoinInTimeFn(config, self.kept)
            ).with_outputs(REJECTED, main="counts")
        joined.counts.element_type = KV[str, Message]
        joined[REJECTED].element_type = pa.RecordBatch
        rejected = (mapped[REJECTED], joined[REJECTED]) | "AllRejected" >> beam.Flatten()
        return Joined(joined.counts, rejected, tallies)


def mapped_changes(
    batches: beam.PCollection[pa.RecordBatch],
    change_mapper: Callable[[], ChangeMapper],
    layout: Layout,
) -> Any:
    """Batches of changes to `changes`, (shard, Changes); dead letters and tallies on the side."""
    mapped = batches | "MapChanges" >> beam.ParDo(
        _MapChangesFn(change_mapper, layout)
    ).with_outputs(REJECTED, TALLIES, main="changes")
    mapped.changes.element_type = _BY_SHARD
    mapped[REJECTED].element_type = pa.RecordBatch
    mapped[TALLIES].element_type = bytes
    return mapped


class _MapChangesFn(beam.DoFn):
    """Batches of changes to (shard, Changes); on the side dead letters, and tallies as bytes."""

    def __init__(self, change_mapper: Callable[[], ChangeMapper], layout: Layout) -> None:
        self._make_mapper = change_mapper
        self._layout = layout

    def setup(self) -> None:
        self._mapper = self._make_mapper()
        self._mapper.warm()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        taken = tally_of(element).messages
        if not element.num_rows:  # of no rows a column may have any type
            yield beam.pvalue.TaggedOutput(TALLIES, EventTally(messages=taken).to_bytes())
            return
        found, rejected = self._mapper.map(element)
        metrics.count(metrics.CHANGES_READ, element.num_rows)
        metrics.count(metrics.CHANGES_ACCEPTED, element.num_rows - rejected.num_rows)
        if rejected.num_rows:
            for reason, number in reasons_of(rejected):
                metrics.count(metrics.CHANGES_REJECTED_PREFIX + reason, number)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        shards = list(spread(found, self._layout.shards))
        yield beam.pvalue.TaggedOutput(TALLIES, EventTally(messages=taken + len(shards)).to_bytes())
        for key, changes in shards:
            data = changes.to_bytes()
            yield key, self._layout.message(Kind.CHANGES, changes.first, key, data)


@dataclass(frozen=True, eq=False)
class _Busy:
    """Bounded events of one kind of users in one slot; all arrays of shape (n,)."""

    slot: int
    users: Keys
    bins: Integers
    kept: Integers


def _busy_slots(kind: int, message: Message, layout: Layout) -> Iterator[_Busy]:
    """Slots of a block with events, in order."""
    visits = Visits.of(message)
    slots, users, bins = read_codes(kind, visits.codes, layout)
    keys = users if kind == MEMBERS else stranger_keys(visits.strangers)[users]
    order = np.argsort(slots, kind="stable")
    starts, lengths = runs(slots[order])
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        rows = order[start : start + length]
        slot = visits.block * layout.block + int(slots[rows[0]])
        yield _Busy(slot, keys[rows], bins[rows], visits.kept[rows])


def _close(
    config: JoinConfig,
    key: ShardKey,
    cohorts: Cohorts,
    state: CohortState,
    slot: int,
    changes: Changes,
    busy: list[_Busy],
) -> tuple[CohortState, list[Any], EventTally]:
    """The shard's state in a slot, what it emits about it, always one message, and a tally."""
    state, moves = cohorts.move(state, slot, changes)
    nothing = np.zeros(0, np.int64)
    users, bins, kept = (
        np.concatenate([getattr(one, name) for one in busy]) if busy else nothing
        for name in ("users", "bins", "kept")
    )
    counts, homeless = cohorts.count(state, slot, moves, users, bins, kept)
    at = closing_time(config.clock, slot)
    counted = int(counts.counts.sum())
    metrics.count(metrics.EVENTS_COUNTED, counted)
    lost: dict[str, Lost] = {}
    told = config.stream, config.layout.message(Kind.COUNTS, slot, key, counts.to_bytes())
    outputs: list[Any] = [TimestampedValue(told, at)]
    if homeless:
        metrics.count(metrics.REJECTED_PREFIX + NO_REQUIREMENT, homeless)
        letters, lost = without_requirement({slot: homeless})
        outputs.append(beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, at)))
    return state, outputs, EventTally(lost=lost, counted=counted)


def without_requirement(events: dict[int, int]) -> tuple[pa.RecordBatch, dict[str, Lost]]:
    """Dead letters of events by slot of users with no requirement in force; and what is lost."""
    detail = "slot {slot}: these events are of users with no requirement in force"
    letters = rejected_slots(NO_REQUIREMENT, detail, events)
    lost = Lost(sum(events.values()), detail=detail.format(slot=min(events)))
    return letters, {NO_REQUIREMENT: lost}


class _JoinAtEndFn(beam.DoFn):
    """All visits and changes of a shard to its counts, slot by slot; on the side tallies."""

    def __init__(self, config: JoinConfig) -> None:
        self._config = config

    def process(self, element: tuple[ShardKey, Iterable[Message]]) -> Iterator[Any]:
        config, (key, messages) = self._config, element
        cohorts = config.cohorts(key)
        state = cohorts.start()
        blocks: dict[int, Message] = {}
        asked = [Changes.none(key[0])]
        under_way = 0  # messages sent, less those taken
        for message in messages:
            under_way -= 1
            if message.kind is Kind.COUNTS:
                blocks[message.slot] = message
            elif message.kind is Kind.KEPT:
                written, waiting = several_from_bytes(message.payload)
                state = cohorts.decode(written)
                asked.append(Changes.from_bytes(waiting))
            else:
                asked.append(Changes.from_bytes(message.payload))
        changes = Changes.joined(asked)
        if config.resumed:
            metrics.count(metrics.CHANGES_LATE, int((changes.slots < config.first_slot).sum()))
        events = chain.from_iterable(
            _busy_slots(key[0], blocks.pop(block), config.layout) for block in sorted(blocks)
        )
        busy = next(events, None)
        while True:
            slot = min(
                max(changes.first, config.first_slot),
                NEVER if busy is None else busy.slot,
                cohorts.next_forgotten(state),
            )
            if slot == NEVER or (config.last_slot is not None and slot > config.last_slot):
                break
            due, changes = changes.split(slot)
            there = [busy] if busy is not None and busy.slot == slot else []
            if there:
                busy = next(events, None)
            state, outputs, tally = _close(config, key, cohorts, state, slot, due, there)
            under_way += 1
            yield from outputs
            if there:
                yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())
        if config.keeps and (state.made or len(changes.users)):
            under_way += 1
            kept = several_to_bytes(cohorts.encode(state), changes.to_bytes())
            yield config.stream, config.layout.message(Kind.KEPT, changes.first, key, kept)
        yield beam.pvalue.TaggedOutput(TALLIES, EventTally(messages=under_way).to_bytes())


class _Progress(NamedTuple):
    """Where a shard stands; slots, `NEVER` where nothing waits."""

    next_slot: int
    """First slot that is not closed."""
    busy: int = NEVER
    """First slot with visits that wait."""
    changes: int = NEVER
    """First slot with changes that wait."""
    visits: int = 0
    """Visits that wait."""
    asked: int = 0
    """Messages of changes that wait."""
    moved: int | None = None
    """Slot in which the cohorts were last written; None before."""


class _JoinInTimeFn(Fenced, beam.DoFn):
    """Closes the slots of a shard one by one, in event time, and emits each, quiet or not.

    The step that follows cannot rely on its clock to have all of a slot: some runners let the
    timers of two steps overtake each other. So it is told by every shard.

    Input: (shard, visits or changes), in any order; visits of every slot, once,
    perhaps none, in blocks of one slot. Those that come again are dropped, or fail the stage if
    they differ and their slot is not closed: see `arrivals.py`. State, per shard: the visits and
    the changes that wait; how far it is, in the cell that is fenced; and its cohorts, after the
    slot in which they were written, sealed: whose budget pays depends on them. Before anybody moves
    they are what the shard kept in the run that this one goes on from.

    Timer `close`, in event time, armed by `process` and by itself when there are visits of the
    next slot: it waits for the slot's closing time, which the visits have seen and the changes may
    not. Changes alone arm nothing, so a stream that is drained comes to its end.
    """

    EVENTS = BagStateSpec("events", MessageCoder())
    ASKED = BagStateSpec("asked", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    COHORTS = ReadModifyWriteStateSpec("cohorts", TupleCoder([VarIntCoder(), BytesCoder()]))
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, config: JoinConfig, kept: Sequence[Message] = ()) -> None:
        self._config = config
        self._fence = Fence()
        self._kept = {
            config.layout.key(one.shard): several_from_bytes(one.payload)[0] for one in kept
        }

    def setup(self) -> None:
        self._sealing_key = self._config.change_mapper().stranger_key

    def process(
        self,
        element: tuple[ShardKey, Message],
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        progress = self._fence.cell(element[0], progress)
        at = self._read(progress)
        message = element[1]
        if message.kind is Kind.CHANGES:
            if self._config.resumed or at.next_slot > self._config.first_slot:
                asked = Changes.from_bytes(message.payload)
                metrics.count(metrics.CHANGES_LATE, int((asked.slots < at.next_slot).sum()))
            changes.add(message.payload)
            at = at._replace(changes=min(at.changes, message.slot), asked=at.asked + 1)
        elif message.slot < at.next_slot:
            metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
            return
        else:
            visits.add(message)
            at = at._replace(busy=min(at.busy, message.slot), visits=at.visits + 1)
        self._write(progress, close, at)

    def _read(self, progress: Any) -> _Progress:
        return _Progress(*(progress.read() or (self._config.first_slot,)))

    def _write(self, progress: Any, close: Any, at: _Progress) -> None:
        progress.write(tuple(at))
        if at.busy == at.next_slot:
            close.set(closing_time(self._config.clock, at.next_slot))

    @on_timer(CLOSE)
    def _close_slot(
        self,
        key: Any = beam.DoFn.KeyParam,
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        cohorts: Any = beam.DoFn.StateParam(COHORTS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        progress = self._fence.cell(key, progress)
        config, at = self._config, self._read(progress)
        if at.busy != at.next_slot:  # it fires again
            return
        slot, mine = at.next_slot, config.cohorts(key)
        (moved, sealed), purpose = cohorts.read() or (None, b""), b"cohorts %d %d" % tuple(key)
        if moved != at.moved:
            raise went_back(f"cohorts of slot {moved} are read, and slot {at.moved} wrote some")
        known = self._kept.get(tuple(key))
        if sealed:
            known = unseal(self._sealing_key, purpose, sealed)
        state = mine.decode(known) if known else mine.start()
        due = Changes.none(key[0])
        if at.changes <= slot:
            due, rest = due_changes(changes, slot, at.asked)
            at = at._replace(changes=rest.first, asked=int(len(rest.users) > 0))
        there, later = due_visits(visits, slot, at.visits)
        first = min((message.slot for message in later), default=NEVER)
        at = at._replace(busy=first, visits=len(later))
        busy = list(_busy_slots(key[0], there, config.layout))
        moves = len(due.users) > 0 or mine.next_forgotten(state) <= slot
        state, outputs, _ = _close(config, key, mine, state, slot, due, busy)
        if moves:
            cohorts.write((slot, seal(self._sealing_key, purpose, mine.encode(state))))
            at = at._replace(moved=slot)
        self._write(progress, close, at._replace(next_slot=slot + 1))
        yield from outputs
