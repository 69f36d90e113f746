"""Users count in a few slots only: from bounded events to those that count, shard by shard.

Which slots of a user count depends on the slots before, so this comes after what is within a slot:
its events are bounded, and the user is there if any are left. What does not count is counted for
the operator, and leaves no other trace. It is decided in two ways: at the end of the input, and in
event time, as slots close.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints import KV, Tuple
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.count.changes import NEVER, Changes
from streamveil.engine.count.event_codes import Layout, ShardKey, Visits
from streamveil.engine.count.participants import PresenceConfig, PresentShard, limits_from
from streamveil.engine.messages import REJECTED, TALLIES, Kind, several_from_bytes, several_to_bytes
from streamveil.mechanisms.core.event_tallies import EventTally, Lost
from streamveil.mechanisms.core.state_codec import seal, unseal
from streamveil.mechanisms.presence import Limit
from streamveil.transforms.counting.join_requirements import mapped_changes, without_requirement
from streamveil.transforms.counting.limit_choice import ChooseLimits
from streamveil.transforms.counting.waiting import changes_to_come, due_changes, due_visits
from streamveil.transforms.on_beam import Message, MessageCoder, metrics
from streamveil.transforms.slots.arrivals import another_start
from streamveil.transforms.slots.clock import closing_time
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

_BY_SHARD = KV[Tuple[int, int], Message]
_Collections = list[beam.PCollection[Any]]


class Limited(NamedTuple):
    """What :class:`LimitPresence` gives."""

    counts: beam.PCollection[tuple[str, Message]]
    """(stream, BlockCounts) of each block of visits; of a bounded input also, by shard and as
    `Kind.KEPT`, what the run that goes on needs to know, if the config `keeps` it."""
    tallies: Sequence[beam.PCollection[bytes]]
    """In a bounded input, what became of its events."""
    rejected: Sequence[beam.PCollection[pa.RecordBatch]] = ()
    """Where requirements change: bad changes, and events of users without a requirement."""


@dataclass(eq=False)
class LimitPresence(beam.PTransform):
    """Leaves out of (shard, Visits) what is beyond the limit, and counts the rest by class.

    In a stream there are visits, perhaps none, of every slot and shard. Changes of requirements are
    joined with them: a shard closes a slot when the watermark of changes has passed it as well.
    """

    config: PresenceConfig
    starts: beam.PCollection[tuple[str, Message]] | None = None
    """Of a stream: which slot is the first."""
    kept: Sequence[Message] = ()
    """What shards kept in the run that this one goes on from."""
    choice: ChooseLimits | None = None
    """Chooses the limits of a bounded input where they are not known. Then nothing changes."""
    changes: beam.PCollection[pa.RecordBatch] | None = None
    """Batches of changes, where the config knows how to map them."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(self, visits: beam.PCollection[tuple[ShardKey, Message]]) -> Limited:
        """Build the steps: gather by shard, decide in slot order."""
        if self.starts is None:
            return self._at_end(visits)
        return self._in_time(visits, self.starts)

    def _at_end(self, visits: beam.PCollection[tuple[ShardKey, Message]]) -> Limited:
        """Of a bounded input."""
        everything, rejected, tallies = self._with_changes(visits)
        everything += self._kept_by_shard(visits.pipeline, self.kept)
        if self.choice is not None:
            chosen = visits | "ChooseLimits" >> self.choice
            everything.append(chosen.shards)
            tallies.append(chosen.tallies)
        limited = (
            everything
            | "AddCounters" >> beam.Flatten()
            | "GatherVisits" >> beam.GroupByKey()
            | "LimitAtEnd"
            >> beam.ParDo(_LimitAtEndFn(self.config)).with_outputs(REJECTED, TALLIES, main="counts")
        )
        limited[TALLIES].element_type = bytes
        limited[REJECTED].element_type = pa.RecordBatch
        if self.changes is not None:
            rejected.append(limited[REJECTED])
        counts = limited.counts
        counts.element_type = KV[str, Message]
        if self.choice is not None:
            counts = (counts, chosen.told) | "AddChoice" >> beam.Flatten()
        came = EventTally(messages=len(self.kept)).to_bytes()
        begin = visits.pipeline | "CountersTally" >> beam.Create([came])
        tallies += [begin, limited[TALLIES]]
        return Limited(counts, tallies, rejected)

    def _in_time(
        self,
        visits: beam.PCollection[tuple[ShardKey, Message]],
        starts: beam.PCollection[tuple[str, Message]],
    ) -> Limited:
        """Of a stream."""
        config = self.config
        everything, rejected, _ = self._with_changes(visits)
        everything.append(
            starts
            | "StartShards" >> beam.FlatMap(_to_shards, config.layout).with_output_types(_BY_SHARD)
        )
        if config.change_mapper is not None:
            everything += self._kept_by_shard(
                visits.pipeline, list(map(changes_to_come, self.kept))
            )
        limited = (
            everything
            | "AddStart" >> beam.Flatten()
            | "LimitInTime"
            >> beam.ParDo(_LimitInTimeFn(config, self.kept)).with_outputs(REJECTED, main="counts")
        )
        limited.counts.element_type = KV[str, Message]
        limited[REJECTED].element_type = pa.RecordBatch
        if self.changes is not None:
            rejected.append(limited[REJECTED])
        return Limited(limited.counts, (), rejected)

    def _with_changes(
        self, visits: beam.PCollection[tuple[ShardKey, Message]]
    ) -> tuple[_Collections, _Collections, _Collections]:
        """Visits and changes by shard; what of the changes is rejected; and their tallies."""
        if self.changes is None:
            return [visits], [], []
        assert self.config.change_mapper is not None
        mapped = mapped_changes(self.changes, self.config.change_mapper, self.config.layout)
        return [visits, mapped.changes], [mapped[REJECTED]], [mapped[TALLIES]]

    def _kept_by_shard(self, pipeline: Any, kept: Sequence[Message]) -> _Collections:
        """What was kept, by shard: one collection, or none where there is nothing."""
        if not kept:
            return []
        by_shard = [(self.config.layout.key(message.shard), message) for message in kept]
        return [pipeline | "KeptCounters" >> beam.Create(by_shard).with_output_types(_BY_SHARD)]


def _to_shards(start: tuple[str, Message], layout: Layout) -> Iterator[tuple[ShardKey, Message]]:
    """The start of the stream, for each shard."""
    for part in range(layout.parts):
        yield layout.key(part), start[1]


@dataclass(eq=False)
class _Gathered:
    """What came of a shard."""

    messages: int = 0
    blocks: dict[int, Message] = field(default_factory=dict)
    """Visits, by block."""
    kept: list[bytes] = field(default_factory=list)
    """What it kept in the run that this one goes on from."""
    changes: list[bytes] = field(default_factory=list)
    limits: tuple[Limit, ...] | None = None
    """Those that were chosen."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> _Gathered:
        """What came, by kind."""
        found = cls()
        for message in messages:
            found.messages += 1
            if message.kind is Kind.CHOICE:
                found.limits = limits_from(message)
            elif message.kind is Kind.CHANGES:
                found.changes.append(message.payload)
            elif message.kind is Kind.KEPT:
                found.kept.append(message.payload)
            else:
                found.blocks[message.slot] = message
        return found


class _LimitAtEndFn(beam.DoFn):
    """All visits of a shard to its counts, block by block; on the side a tally as bytes."""

    def __init__(self, config: PresenceConfig) -> None:
        self._config = config

    def process(self, element: tuple[ShardKey, Iterable[Message]]) -> Iterator[Any]:
        config, (key, messages) = self._config, element
        came = _Gathered.of(messages)
        if came.limits is not None:
            config = config.under(came.limits)
        shard = PresentShard(config, key[0])
        changes = _resumed(config, key, shard, came)
        tally = EventTally(messages=-came.messages)
        for block in sorted(came.blocks):
            visits = Visits.of(came.blocks.pop(block))
            if config.change_mapper is not None:
                last = (block + 1) * config.layout.block - 1
                changes = shard.ask_up_to(_capped(last, config.last_slot), changes)
            limited = shard.limited(visits)
            yield config.told(key, limited.counts)
            lost: dict[str, Lost] = {}
            if limited.homeless:
                letters, lost = without_requirement(limited.homeless)
                end = config.clock.slots.end(max(limited.homeless))
                at = Timestamp(micros=end - 1)
                yield beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, at))
            counted = limited.counts.events
            told = EventTally(lost=lost, counted=counted, messages=1, beyond_limit=limited.beyond)
            tally = EventTally.total((tally, told))
            shard.skip(shard.next_slot or 0)
        some_there = shard.next_slot is not None or len(changes.users) > 0
        if some_there and config.change_mapper is not None and config.last_slot is not None:
            changes = shard.ask_up_to(config.last_slot, changes)
        if some_there and config.keeps:
            yield config.stream, _kept(config, key, shard, changes)
            tally = EventTally.total((tally, EventTally(messages=1)))
        yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())


def _resumed(
    config: PresenceConfig, key: ShardKey, shard: PresentShard, came: _Gathered
) -> Changes:
    """All changes that came of a shard, which goes on from what it kept."""
    changes = [Changes.none(key[0]), *map(Changes.from_bytes, came.changes)]
    for written in came.kept:
        if config.change_mapper is not None:
            written, waiting = several_from_bytes(written)
            changes.append(Changes.from_bytes(waiting))
        shard.resume(written)
    joined = Changes.joined(changes)
    if config.resumed:
        assert config.first_slot is not None
        metrics.count(metrics.CHANGES_LATE, int((joined.slots < config.first_slot).sum()))
    return joined


def _kept(config: PresenceConfig, key: ShardKey, shard: PresentShard, changes: Changes) -> Message:
    """What a shard tells the run that goes on, when all of its slots are closed."""
    if config.last_slot is not None:
        shard.skip(config.last_slot + 1)
    elif shard.next_slot is None:
        shard.skip(config.first_slot or 0)
    kept = shard.to_bytes()
    if config.change_mapper is not None:
        kept = several_to_bytes(kept, changes.to_bytes())
    return config.layout.message(Kind.KEPT, shard.next_slot or 0, key, kept)


def _capped(slot: int, last: int | None) -> int:
    return slot if last is None else min(slot, last)


class _Progress(NamedTuple):
    """Where a shard stands."""

    first: int | None = None
    """First slot of the stream; None before it is told."""
    next_slot: int = NEVER
    """First slot that is not decided; `NEVER` before the start is told."""
    busy: int = NEVER
    """First slot with visits that wait; `NEVER` without any."""
    visits: int = 0
    """Visits that wait."""
    decided: int | None = None
    """Slot after which the counters were written; None before the first."""
    changes: int = NEVER
    """First slot with changes that wait; `NEVER` without any."""
    asked: int = 0
    """Messages of changes that wait."""


class _LimitInTimeFn(Fenced, beam.DoFn):
    """Decides the slots of a shard one by one, in event time, and emits each, quiet or not.

    Input: (shard, the start of the stream, visits of a slot, or changes), in any order; visits of
    every slot, once, perhaps none, in blocks of one slot. Those that come again are dropped, or
    fail the stage if they differ and their slot is not decided: see `arrivals.py`. State, per
    shard: the visits and the changes that wait; how far it is, in the cell that is fenced; and in
    how many slots users counted, and what they ask for, after the slot in which that was written,
    sealed: budgets are kept by it. Before the first slot it is what the shard kept in the run that
    this one goes on from.

    Timer `close`, in event time, armed by `process` and by itself where there are visits of the
    next slot; changes alone arm nothing. As a slot closes it is decided who counts there, and users
    whose block of slots ends with it are forgotten.
    """

    EVENTS = BagStateSpec("events", MessageCoder())
    ASKED = BagStateSpec("asked", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    COUNTERS = ReadModifyWriteStateSpec("counters", TupleCoder([VarIntCoder(), BytesCoder()]))
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, config: PresenceConfig, kept: Sequence[Message] = ()) -> None:
        self._config = config
        self._fence = Fence()
        self._kept = {config.layout.key(one.shard): one.payload for one in kept}
        if config.change_mapper is not None:
            self._kept = {key: several_from_bytes(one)[0] for key, one in self._kept.items()}

    def process(
        self,
        element: tuple[ShardKey, Message],
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        progress = self._fence.cell(element[0], progress)
        at, message = _Progress(*(progress.read() or ())), element[1]
        if message.kind is Kind.START:
            if at.first not in (None, message.slot):
                raise another_start(message.slot, at.first)
            if at.first is None:
                at = at._replace(first=message.slot, next_slot=message.slot)
        elif message.kind is Kind.CHANGES:
            if self._config.resumed or at.decided is not None:
                asked = Changes.from_bytes(message.payload)
                known = at.next_slot if at.decided is not None else self._config.first_slot
                assert known is not None
                metrics.count(metrics.CHANGES_LATE, int((asked.slots < known).sum()))
            changes.add(message.payload)
            at = at._replace(changes=min(at.changes, message.slot), asked=at.asked + 1)
        elif at.decided is not None and message.slot <= at.decided:
            metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
            return
        else:
            visits.add(message)
            at = at._replace(busy=min(at.busy, message.slot), visits=at.visits + 1)
        self._write(progress, close, at)

    def _write(self, progress: Any, close: Any, at: _Progress) -> None:
        progress.write(tuple(at))
        if at.busy == at.next_slot != NEVER:
            close.set(closing_time(self._config.clock, at.next_slot))

    @on_timer(CLOSE)
    def _close_slot(
        self,
        key: Any = beam.DoFn.KeyParam,
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        counters: Any = beam.DoFn.StateParam(COUNTERS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        progress = self._fence.cell(key, progress)
        config, at = self._config, _Progress(*progress.read())
        if at.busy != at.next_slot:  # it fires again
            return
        slot, mine = at.next_slot, PresentShard(config, key[0])
        (decided, sealed), purpose = counters.read() or (None, b""), b"presence %d %d" % tuple(key)
        if decided != at.decided:
            raise went_back(f"who counted up to slot {decided} is read, and not to {at.decided}")
        known = unseal(config.key, purpose, sealed) if sealed else self._kept.get(tuple(key))
        if known:
            mine.resume(known)
        if at.changes <= slot:
            due, rest = due_changes(changes, slot, at.asked)
            mine.ask(slot, due)
            at = at._replace(changes=rest.first, asked=int(len(rest.users) > 0))
        there, later = due_visits(visits, slot, at.visits)
        limited = mine.limited(Visits.of(there))
        mine.skip(slot + 1)
        counters.write((slot, seal(config.key, purpose, mine.to_bytes())))
        first = min((message.slot for message in later), default=NEVER)
        at = at._replace(next_slot=slot + 1, busy=first, visits=len(later), decided=slot)
        self._write(progress, close, at)
        closing = closing_time(config.clock, slot)
        yield TimestampedValue(config.told(key, limited.counts), closing)
        if limited.homeless:
            letters, _ = without_requirement(limited.homeless)
            yield beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, closing))
