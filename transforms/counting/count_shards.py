"""Hosts of :class:`ShardLogic` on Beam: at the end of a bounded input, and as slots close."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BytesCoder, FastPrimitivesCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.changes import NEVER, Changes
from streamveil.engine.count.event_codes import Layout, ShardKey
from streamveil.engine.count.shards import ShardLogic, close_at_end
from streamveil.engine.messages import REJECTED, TALLIES, Kind, Output
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.state_codec import seal, unseal
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.limit_choice import ChooseLimits
from streamveil.transforms.counting.map_changes import changes_by_shard
from streamveil.transforms.on_beam import Message, MessageCoder, emitted, metrics
from streamveil.transforms.slots.arrivals import another_start, contradiction
from streamveil.transforms.slots.clock import closing_time
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

_BY_SHARD = KV[Tuple[int, int], Message]
_Collections = list[beam.PCollection[Any]]


class CountedShards(NamedTuple):
    """What :class:`CountShards` gives."""

    counts: beam.PCollection[tuple[str, Message]]
    """(stream, counts). In a stream one of each shard and slot. In a bounded input only those where
    a shard has something to emit; and as `Kind.KEPT` what a resumed run needs to know, if the logic
    `keeps` it."""
    rejected: Sequence[beam.PCollection[pa.RecordBatch]]
    """Dead letters: bad changes, and events of users without a requirement."""
    tallies: Sequence[beam.PCollection[bytes]] = ()
    """In a bounded input, what became of its events."""


@dataclass(eq=False)
class CountShards(beam.PTransform):
    """From (shard, Visits) to counts, shard by shard and in slot order.

    A bounded input is counted at its end, and nothing is late. In a stream there are visits,
    perhaps none, of every slot and shard, and a shard closes a slot when it has them and the
    watermark, of changes as well, has passed its closing time.
    """

    logic: ShardLogic
    starts: beam.PCollection[tuple[str, Message]] | None = None
    """Of a stream: which slot is the first. It goes to shards whose logic does not know it."""
    kept: Sequence[Message] = ()
    """What shards kept in the run that this one resumes from."""
    choice: ChooseLimits | None = None
    """Chooses the participation limits of a bounded input where they are not known; then nothing
    changes."""
    changes: beam.PCollection[pa.RecordBatch] | None = None
    """Batches of changes, where the logic knows how to map them."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(self, visits: beam.PCollection[tuple[ShardKey, Message]]) -> CountedShards:
        """Build the steps: gather by shard, count in slot order."""
        everything: _Collections = [visits]
        rejected: _Collections = []
        tallies: _Collections = []
        if self.changes is not None:
            assert self.logic.change_mapper is not None
            mapped = changes_by_shard(self.changes, self.logic.change_mapper, self.logic.layout)
            everything.append(mapped.changes)
            rejected.append(mapped[REJECTED])
            tallies.append(mapped[TALLIES])
        if self.starts is None:
            counted = self._at_end(everything, tallies)
        else:
            counted = self._in_time(everything, self.starts)
        return counted._replace(rejected=(*rejected, *counted.rejected))

    def _at_end(self, everything: _Collections, tallies: _Collections) -> CountedShards:
        """Of a bounded input; `everything` begins with the visits."""
        visits = everything[0]
        everything = [*everything, *self._kept_by_shard(visits.pipeline, self.kept)]
        chosen = None
        if self.choice is not None:
            chosen = visits | "ChooseLimits" >> self.choice
            everything.append(chosen.shards)
            tallies.append(chosen.tallies)
        counted = (
            everything
            | "AddState" >> beam.Flatten()
            | "GatherShards" >> beam.GroupByKey()
            | "CountAtEnd"
            >> beam.ParDo(AtEnd(partial(close_at_end, self.logic))).with_outputs(
                REJECTED, TALLIES, main="counts"
            )
        )
        counted[TALLIES].element_type = bytes
        counted[REJECTED].element_type = pa.RecordBatch
        counts = counted.counts
        counts.element_type = KV[str, Message]
        if chosen is not None:
            counts = (counts, chosen.told) | "AddChoice" >> beam.Flatten()
        came = EventTally(messages=len(self.kept)).to_bytes()
        begin = visits.pipeline | "TallyState" >> beam.Create([came])
        return CountedShards(counts, [counted[REJECTED]], [*tallies, begin, counted[TALLIES]])

    def _in_time(
        self, everything: _Collections, starts: beam.PCollection[tuple[str, Message]]
    ) -> CountedShards:
        """Of a stream."""
        logic = self.logic
        pipeline = starts.pipeline
        if logic.first_slot is None:
            everything = [
                *everything,
                starts
                | "StartShards"
                >> beam.FlatMap(to_shards, logic.layout).with_output_types(_BY_SHARD),
            ]
        known = {}
        to_come = []
        for message in self.kept:
            key = logic.layout.key(message.shard)
            known[key], changes = logic.kept_parts(key[0], message.payload)
            if len(changes.users):
                to_come.append(message._replace(kind=Kind.CHANGES, payload=changes.to_bytes()))
        counted = (
            [*everything, *self._kept_by_shard(pipeline, to_come)]
            | "AddStart" >> beam.Flatten()
            | "CountInTime"
            >> beam.ParDo(_CountInTimeFn(logic, known)).with_outputs(REJECTED, main="counts")
        )
        counted.counts.element_type = KV[str, Message]
        counted[REJECTED].element_type = pa.RecordBatch
        return CountedShards(counted.counts, [counted[REJECTED]])

    def _kept_by_shard(self, pipeline: Any, kept: Sequence[Message]) -> _Collections:
        """What was kept, by shard: one collection, or none where there is nothing."""
        if not kept:
            return []
        by_shard = [(self.logic.layout.key(message.shard), message) for message in kept]
        return [pipeline | "KeptState" >> beam.Create(by_shard).with_output_types(_BY_SHARD)]


def to_shards(start: tuple[str, Message], layout: Layout) -> Iterator[tuple[ShardKey, Message]]:
    """Tell every shard which slot is the first of a stream."""
    for part in range(layout.parts):
        yield layout.key(part), start[1]


class _Progress(NamedTuple):
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
    asked: int = 0
    """Messages of changes that wait."""
    written: int | None = None
    """Slot after which the shard's state was written; None before the first."""


class _CountInTimeFn(Fenced, beam.DoFn):
    """Closes the slots of a shard one by one, in event time, and emits each, quiet or not.

    The step that follows cannot rely on its clock to have all of a slot, since some runners let the
    timers of two steps overtake each other. So every shard sends it a message for every slot.

    Input: (shard, visits of a slot, changes, or the start of the stream), in any order; visits of
    every slot, once, perhaps none, in blocks of one slot. Those that come again are dropped, or
    fail the stage if they differ and their slot is not closed: see `arrivals.py`. State, per shard:
    the visits and the changes that wait; how far it is, in the cell that is fenced; and what the
    logic remembers, after the slot in which that was written, sealed, because budgets are kept by
    it. Before the first slot it is what the shard kept in the run that this one resumes from.

    Timer `close`, in event time, armed by `process` and by itself where there are visits of the
    next slot: it waits for the closing time, which the visits have seen and the changes may not.
    Changes alone arm nothing, so a stream that is drained comes to its end.
    """

    EVENTS = BagStateSpec("events", MessageCoder())
    ASKED = BagStateSpec("asked", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    SHARD = ReadModifyWriteStateSpec("shard", TupleCoder([VarIntCoder(), BytesCoder()]))
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, logic: ShardLogic, known: dict[ShardKey, bytes] | None = None) -> None:
        self._logic = logic
        self._known = known or {}
        self._fence = Fence()

    def process(
        self,
        element: tuple[ShardKey, Message],
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        progress = self._fence.cell(element[0], progress)
        at, message = self._read(progress), element[1]
        if message.kind is Kind.START:
            if at.first not in (None, message.slot):
                raise another_start(message.slot, at.first)
            if at.first is None:
                at = at._replace(first=message.slot, next_slot=message.slot)
        elif message.kind is Kind.CHANGES:
            if self._logic.resumed or at.next_slot != at.first:
                asked = Changes.from_bytes(message.payload)
                metrics.count(metrics.CHANGES_LATE, int((asked.slots < at.next_slot).sum()))
            changes.add(message.payload)
            at = at._replace(changes=min(at.changes, message.slot), asked=at.asked + 1)
        elif at.first is not None and message.slot < at.next_slot:
            metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
            return
        else:
            visits.add(message)
            at = at._replace(busy=min(at.busy, message.slot), visits=at.visits + 1)
        self._write(progress, close, at)

    def _read(self, progress: Any) -> _Progress:
        first = self._logic.first_slot
        begin = _Progress() if first is None else _Progress(first, first)
        return _Progress(*(progress.read() or begin))

    def _write(self, progress: Any, close: Any, at: _Progress) -> None:
        progress.write(tuple(at))
        if at.busy == at.next_slot != NEVER:
            close.set(closing_time(self._logic.clock, at.next_slot))

    @on_timer(CLOSE)
    def _close_slot(
        self,
        key: Any = beam.DoFn.KeyParam,
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        state: Any = beam.DoFn.StateParam(SHARD),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        progress = self._fence.cell(key, progress)
        logic, at = self._logic, self._read(progress)
        if at.busy != at.next_slot:  # it fires again
            return
        slot = at.next_slot
        shard = self._resumed(tuple(key), state, at.written)
        due = Changes.none(key[0])
        if at.changes <= slot:
            due, rest = _due_changes(changes, slot, at.asked)
            at = at._replace(changes=rest.first, asked=int(len(rest.users) > 0))
        there, later = _due_visits(visits, slot, at.visits)
        first = min((message.slot for message in later), default=NEVER)
        at = at._replace(next_slot=slot + 1, busy=first, visits=len(later))
        output = shard.close(slot, there, due)
        output.record()
        if output.changed:
            sealed = seal(logic.sealing_key, self._purpose(key), shard.to_bytes())
            state.write((slot, sealed))
            at = at._replace(written=slot)
        self._write(progress, close, at)
        closing = logic.clock.closing(slot)
        yield emitted(Output((logic.stream, output.message), at=closing))
        if output.no_requirement:
            yield emitted(output.letters(closing))

    def _resumed(self, key: ShardKey, state: Any, expected: int | None) -> Any:
        """The shard after the last slot that was closed. Raises StateWentBack."""
        shard = self._logic.shard(key)
        written, sealed = state.read() or (None, b"")
        if written != expected:
            raise went_back(
                f"the state of the shard after slot {written} is read, and that after slot "
                f"{expected} was written"
            )
        known = self._known.get(key)
        if sealed:
            known = unseal(self._logic.sealing_key, self._purpose(key), sealed)
        if known:
            shard.resume(known)
        return shard

    def _purpose(self, key: ShardKey) -> bytes:
        return f"{self._logic.LABEL} {key[0]} {key[1]}".encode()


def _due_changes(cell: Any, slot: int, came: int) -> tuple[Changes, Changes]:
    """Take the changes that are due in a slot; also returns those that go on waiting.

    Raises StateWentBack where another number of them is read than came.
    """
    asked = list(map(Changes.from_bytes, cell.read()))
    _check("changes", len(asked), came)
    due, later = Changes.joined(asked).split(slot)
    cell.clear()
    if len(later.users):
        cell.add(later.to_bytes())
    return due, later


def _due_visits(cell: Any, slot: int, came: int) -> tuple[Message, list[Message]]:
    """Take the visits of a slot, which are there; also returns those that go on waiting.

    Raises StateWentBack where another number of them is read than came, and ConfigurationError
    where visits of the slot came twice with different content.
    """
    waiting = list(cell.read())
    _check("visits", len(waiting), came)
    there = [message for message in waiting if message.slot == slot]
    later = [message for message in waiting if message.slot > slot]
    if not there:
        raise went_back(f"no visits of slot {slot} wait where some came")
    if len(set(there)) > 1:
        raise contradiction(there[0])
    metrics.count(metrics.PARTS_REPEATED, len(there) - 1)
    cell.clear()
    for message in later:
        cell.add(message)
    return there[0], later


def _check(what: str, there: int, came: int) -> None:
    if there != came:
        raise went_back(f"{there} messages of {what} wait where {came} came")
