"""Users count in a few slots only: from bounded events to those that count, shard by shard.

Which slots of a user count depends on the slots before, so this comes after what is within a slot:
its events are bounded, and the user is there if any are left. What does not count is counted for
the operator, and leaves no other trace. It is decided in two ways: at the end of the input, and in
event time, as slots close.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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

from streamveil.mechanisms.core.event_tallies import EventTally, Lost
from streamveil.mechanisms.core.state_codec import seal, unseal
from streamveil.transforms import metrics
from streamveil.transforms.columns.dead_letters import rejected_slots
from streamveil.transforms.columns.event_mapper import NO_REQUIREMENT
from streamveil.transforms.counting.changes import NEVER, Changes
from streamveil.transforms.counting.event_codes import Layout, ShardKey, Visits
from streamveil.transforms.counting.join_requirements import check_waiting, mapped_changes
from streamveil.transforms.counting.limit_choice import ChooseLimits, limits_from
from streamveil.transforms.counting.presence_shard import (
    NO_REQUIREMENT_DETAIL,
    PresenceConfig,
    PresentShard,
)
from streamveil.transforms.messages import (
    REJECTED,
    TALLIES,
    Kind,
    Message,
    MessageCoder,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.transforms.slots.arrivals import another_start, contradiction
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

_BY_SHARD = KV[Tuple[int, int], Message]


class Limited(NamedTuple):
    """What :class:`LimitPresence` gives."""

    counts: beam.PCollection[tuple[str, Message]]
    """(stream, BlockCounts) of each block of visits; of a bounded input also, by shard and as
    `Kind.KEPT`, what the run that goes on needs to know."""
    tallies: tuple[beam.PCollection[bytes], ...]
    """In a bounded input, what became of its events."""
    rejected: tuple[beam.PCollection[pa.RecordBatch], ...] = ()
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
        config, layout = self.config, self.config.layout
        everything = [visits]
        tallies: tuple[beam.PCollection[bytes], ...] = ()
        rejected: tuple[beam.PCollection[pa.RecordBatch], ...] = ()
        if self.changes is not None:
            assert config.change_mapper is not None
            mapped = mapped_changes(self.changes, config.change_mapper, layout)
            everything.append(mapped.changes)
            tallies, rejected = (mapped[TALLIES],), (mapped[REJECTED],)
        kept = list(self.kept)
        if self.starts is not None:
            everything.append(
                self.starts
                | "StartShards" >> beam.FlatMap(_to_shards, layout).with_output_types(_BY_SHARD)
            )
            changing = config.change_mapper is not None
            kept = [_waiting(message) for message in kept] if changing else []
        if kept:
            by_shard = [(layout.key(message.shard), message) for message in kept]
            everything.append(
                visits.pipeline
                | "KeptCounters" >> beam.Create(by_shard).with_output_types(_BY_SHARD)
            )
        if self.starts is not None:
            limited = (
                everything
                | "AddStart" >> beam.Flatten()
                | "LimitInTime"
                >> beam.ParDo(_LimitInTimeFn(config, self.kept)).with_outputs(
                    REJECTED, main="counts"
                )
            )
        else:
            if self.choice is not None:
                chosen = visits | "ChooseLimits" >> self.choice
                everything.append(chosen.shards)
                tallies = (*tallies, chosen.tallies)
            limited = (
                everything
                | "AddCounters" >> beam.Flatten()
                | "GatherVisits" >> beam.GroupByKey()
                | "LimitAtEnd"
                >> beam.ParDo(_LimitAtEndFn(config)).with_outputs(REJECTED, TALLIES, main="counts")
            )
            limited[TALLIES].element_type = bytes
            came = EventTally(messages=len(kept)).to_bytes()
            begin = visits.pipeline | "CountersTally" >> beam.Create([came])
            tallies = (*tallies, begin, limited[TALLIES])
        limited.counts.element_type = KV[str, Message]
        limited[REJECTED].element_type = pa.RecordBatch
        counts = limited.counts
        if self.starts is None and self.choice is not None:
            counts = (counts, chosen.told) | "AddChoice" >> beam.Flatten()
        if self.changes is None:
            return Limited(counts, tallies)
        return Limited(
            counts,
            () if self.starts is not None else tallies,
            (*rejected, limited[REJECTED]),
        )


def _waiting(kept: Message) -> Message:
    """The changes of what a shard kept, from slots to come."""
    _, changes = several_from_bytes(kept.payload)
    return kept._replace(kind=Kind.CHANGES, payload=changes)


def _to_shards(start: tuple[str, Message], layout: Layout) -> Iterator[tuple[ShardKey, Message]]:
    """The start of the stream, for each shard."""
    for part in range(layout.parts):
        yield layout.key(part), start[1]


class _LimitAtEndFn(beam.DoFn):
    """All visits of a shard to its counts, block by block; on the side a tally as bytes."""

    def __init__(self, config: PresenceConfig) -> None:
        self._config = config

    def process(self, element: tuple[ShardKey, Iterable[Message]]) -> Iterator[Any]:
        config, (key, messages) = self._config, element
        changing = config.change_mapper is not None
        blocks: dict[int, Message] = {}
        before: list[bytes] = []
        came: list[bytes] = []
        taken = 0
        for message in messages:
            taken += 1
            if message.kind is Kind.CHOICE:
                config = config.under(limits_from(message))
            elif message.kind is Kind.CHANGES:
                came.append(message.payload)
            elif message.kind is Kind.KEPT:
                before.append(message.payload)
            else:
                blocks[message.slot] = message
        shard = PresentShard(config, key[0])
        for written in before:
            if changing:
                written, waiting = several_from_bytes(written)
                came.append(waiting)
            shard.resume(written)
        asked = [Changes.none(key[0]), *map(Changes.from_bytes, came)]
        changes = Changes.joined(asked)
        if config.resumed:
            assert config.first_slot is not None
            metrics.count(metrics.CHANGES_LATE, int((changes.slots < config.first_slot).sum()))
        sent = beyond = counted = 0
        lost: dict[str, Lost] = {}
        for block in sorted(blocks):
            visits = Visits.of(blocks.pop(block))
            if changing:
                last = (block + 1) * config.layout.block - 1
                changes = shard.ask_up_to(_capped(last, config.last_slot), changes)
            limited = shard.limited(visits)
            counted += limited.counts.events
            beyond += limited.beyond
            sent += 1
            yield config.told(key, limited.counts)
            if limited.homeless:
                letters, some = _homeless(limited.homeless)
                lost[NO_REQUIREMENT] = lost[NO_REQUIREMENT] + some if lost else some
                end = config.clock.slots.end(max(limited.homeless))
                at = Timestamp(micros=end - 1)
                yield beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, at))
            shard.skip(shard.next_slot or 0)
        if shard.next_slot is not None or len(changes.users):
            if config.last_slot is not None:
                if changing:
                    changes = shard.ask_up_to(config.last_slot, changes)
                shard.skip(config.last_slot + 1)
            elif shard.next_slot is None:
                shard.skip(config.first_slot or 0)
            kept = shard.to_bytes()
            if changing:
                kept = several_to_bytes(kept, changes.to_bytes())
            sent += 1
            told = config.layout.message(Kind.KEPT, shard.next_slot or 0, key, kept)
            yield config.stream, told
        tally = EventTally(lost=lost, counted=counted, messages=sent - taken, beyond_limit=beyond)
        yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())


def _capped(slot: int, last: int | None) -> int:
    return slot if last is None else min(slot, last)


def _homeless(events: dict[int, int]) -> tuple[pa.RecordBatch, Lost]:
    """Dead letters of events by slot of users with no requirement in force, and how many."""
    letters = rejected_slots(NO_REQUIREMENT, NO_REQUIREMENT_DETAIL, events)
    detail = NO_REQUIREMENT_DETAIL.format(slot=min(events))
    return letters, Lost(sum(events.values()), detail=detail)


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
            close.set(self._config.clock.closing(at.next_slot))

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
            asked = list(map(Changes.from_bytes, changes.read()))
            check_waiting("changes", len(asked), at.asked)
            due, rest = Changes.joined(asked).split(slot)
            mine.ask(slot, due)
            changes.clear()
            if len(rest.users):
                changes.add(rest.to_bytes())
            at = at._replace(changes=rest.first, asked=int(len(rest.users) > 0))
        waiting = list(visits.read())
        check_waiting("visits", len(waiting), at.visits)
        there = [message for message in waiting if message.slot == slot]
        later = [message for message in waiting if message.slot > slot]
        if len(set(there)) > 1:
            raise contradiction(there[0])
        metrics.count(metrics.PARTS_REPEATED, len(there) - 1)
        limited = mine.limited(Visits.of(there[0]))
        mine.skip(slot + 1)
        counters.write((slot, seal(config.key, purpose, mine.to_bytes())))
        visits.clear()
        for message in later:
            visits.add(message)
        first = min((message.slot for message in later), default=NEVER)
        self._write(
            progress,
            close,
            at._replace(next_slot=slot + 1, busy=first, visits=len(later), decided=slot),
        )
        closing = config.clock.closing(slot)
        yield TimestampedValue(config.told(key, limited.counts), closing)
        if limited.homeless:
            letters, _ = _homeless(limited.homeless)
            yield beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, closing))
