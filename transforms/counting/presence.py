"""Users count in a few slots only: from bounded events to those that count, shard by shard.

Which slots of a user count depends on the slots before, so this comes after what is within a slot:
its events are bounded, and the user is there if any are left. What does not count is counted for
the operator, and leaves no other trace. It is decided in two ways: at the end of the input, and in
event time, as slots close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.coders import BytesCoder, FastPrimitivesCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints import KV, Tuple

from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.state_codec import seal, unseal
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules, keys_of
from streamveil.transforms import metrics
from streamveil.transforms.counting.bounding import runs
from streamveil.transforms.counting.changes import NEVER, Keys, stranger_keys
from streamveil.transforms.counting.event_codes import (
    MEMBERS,
    BlockCounts,
    Layout,
    ShardKey,
    Visits,
    count,
    count_layers,
    read_codes,
)
from streamveil.transforms.counting.limit_choice import ChooseLimits, limits_from
from streamveil.transforms.messages import (
    TALLIES,
    Kind,
    Message,
    MessageCoder,
    arrays_from_bytes,
    arrays_to_bytes,
)
from streamveil.transforms.slots.arrivals import another_start, contradiction
from streamveil.transforms.slots.clock import Clock
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

Integers = npt.NDArray[np.int64]

_BY_SHARD = KV[Tuple[int, int], Message]


@dataclass(frozen=True, eq=False)
class PresenceConfig:
    """Everything the limit is made of: public, but for the key of the phases."""

    registry: Registry
    layout: Layout
    limits: tuple[Limit, ...]
    """Of each class."""
    adjacency: str
    make_key: Callable[[], bytes]
    """Gives the key on a worker."""
    clock: Clock
    first_slot: int | None = None
    last_slot: int | None = None
    stream: str = ""
    """Key of the counts that come out."""

    def under(self, limits: tuple[Limit, ...]) -> PresenceConfig:
        """The same under other limits."""
        return replace(self, limits=limits)

    @cached_property
    def _rules(self) -> Rules:
        return Rules.of(self.limits, self.registry.classes, self.adjacency)

    @cached_property
    def key(self) -> bytes:
        """The key of the phases, which seals counters as well."""
        return self.make_key()

    def counters(self, kind: int) -> Counters:
        """Of users of one kind, before the first slot."""
        users: Keys = np.zeros(0, np.int64 if kind == MEMBERS else "S16")
        return Counters(self._rules, self.key, users)

    def limited(self, kind: int, counters: Counters, visits: Visits) -> BlockCounts:
        """What counts of the events of some slots, none of which is closed after them."""
        layout, class_of = self.layout, self.registry.classes_with_other
        if not len(visits.codes):
            return count(kind, visits, layout, class_of)
        users, slots, sizes = self.there(kind, visits)
        classes, names = self.classes_of(kind, users), _names(kind, visits)
        layers = counters.layers(users, slots, classes, int(slots.max()) + 1, names)
        counts = count_layers(kind, visits, np.repeat(layers, sizes), layout, class_of)
        metrics.count(metrics.EVENTS_BEYOND_LIMIT, visits.events - counts.events)
        metrics.count(metrics.EVENTS_COUNTED, counts.events)
        return counts

    def visitors(self, kind: int, visits: Visits) -> tuple[Keys, Integers]:
        """Who is there in which slots of a block, by key: shape (n,) each."""
        users, slots, _ = self.there(kind, visits)
        return keys_of(users, _names(kind, visits)), slots

    def there(self, kind: int, visits: Visits) -> tuple[Integers, Integers, Integers]:
        """Who is there in which slots of a block, and in how many groups: shape (n,) each.

        Users are members' positions, or strangers' numbers among the visits' own.
        """
        layout, codes = self.layout, visits.codes
        starts, sizes = runs(codes // codes.dtype.type(layout.bins))  # groups stand together
        slots, users, _ = read_codes(kind, codes[starts], layout)
        return users, slots + visits.block * layout.block, sizes

    def classes_of(self, kind: int, users: Keys) -> npt.NDArray[np.int32]:
        """Class of each user, shape (n,)."""
        if kind == MEMBERS:
            return self.registry.class_of[users]
        return np.full(len(users), self.registry.default_class, np.int32)

    def told(self, key: ShardKey, counts: BlockCounts) -> tuple[str, Message]:
        """(stream, BlockCounts)."""
        message = self.layout.message(Kind.COUNTS, counts.block, key, counts.to_bytes())
        return self.stream, message


def _names(kind: int, visits: Visits) -> Keys | None:
    """Keys of the strangers of some visits, by number; None of members, who are their own."""
    return None if kind == MEMBERS else stranger_keys(visits.strangers)


class Limited(NamedTuple):
    """What :class:`LimitPresence` gives."""

    counts: beam.PCollection[tuple[str, Message]]
    """(stream, BlockCounts) of each block of visits; of a bounded input also, by shard and as
    `Kind.KEPT`, what the run that goes on needs to know."""
    tallies: tuple[beam.PCollection[bytes], ...]
    """In a bounded input, what became of its events."""


@dataclass(eq=False)
class LimitPresence(beam.PTransform):
    """Leaves out of (shard, Visits) what is beyond the limit, and counts the rest by class.

    In a stream there are visits, perhaps none, of every slot and shard.
    """

    config: PresenceConfig
    starts: beam.PCollection[tuple[str, Message]] | None = None
    """Of a stream: which slot is the first."""
    kept: Sequence[Message] = ()
    """What shards kept in the run that this one goes on from."""
    choice: ChooseLimits | None = None
    """Chooses the limits of a bounded input, where they are not known."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(self, visits: beam.PCollection[tuple[ShardKey, Message]]) -> Limited:
        """Build the steps: gather by shard, decide in slot order."""
        layout = self.config.layout
        if self.starts is not None:
            starts = self.starts | "StartShards" >> beam.FlatMap(
                _to_shards, layout
            ).with_output_types(_BY_SHARD)
            counts = (
                (visits, starts)
                | "AddStart" >> beam.Flatten()
                | "LimitInTime"
                >> beam.ParDo(_LimitInTimeFn(self.config, self.kept)).with_output_types(
                    KV[str, Message]
                )
            )
            return Limited(counts, ())
        everything = [visits]
        if self.kept:
            kept = [(layout.key(message.shard), message) for message in self.kept]
            everything.append(
                visits.pipeline | "KeptCounters" >> beam.Create(kept).with_output_types(_BY_SHARD)
            )
        told: list[beam.PCollection[Any]] = []
        tallies: list[beam.PCollection[bytes]] = []
        if self.choice is not None:
            chosen = visits | "ChooseLimits" >> self.choice
            everything.append(chosen.shards)
            told.append(chosen.told)
            tallies.append(chosen.tallies)
        limited = (
            everything
            | "AddCounters" >> beam.Flatten()
            | "GatherVisits" >> beam.GroupByKey()
            | "LimitAtEnd"
            >> beam.ParDo(_LimitAtEndFn(self.config)).with_outputs(TALLIES, main="counts")
        )
        limited.counts.element_type = KV[str, Message]
        limited[TALLIES].element_type = bytes
        came = EventTally(messages=len(self.kept)).to_bytes()
        begin = visits.pipeline | "CountersTally" >> beam.Create([came])
        counts = (limited.counts, *told) | "AddChoice" >> beam.Flatten() if told else limited.counts
        return Limited(counts, (begin, limited[TALLIES], *tallies))


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
        blocks: dict[int, Message] = {}
        before: list[Message] = []
        taken = 0
        for message in messages:
            taken += 1
            if message.kind is Kind.CHOICE:
                config = config.under(limits_from(message))
            elif message.kind is Kind.KEPT:
                before.append(message)
            else:
                blocks[message.slot] = message
        counters = config.counters(key[0])
        for message in before:
            counters.resume(arrays_from_bytes(message.payload))
        sent = beyond = counted = 0
        for block in sorted(blocks):
            visits = Visits.of(blocks.pop(block))
            counts = config.limited(key[0], counters, visits)
            counted += counts.events
            beyond += visits.events - counts.events
            sent += 1
            yield config.told(key, counts)
            counters.skip(counters.next_slot or 0)
        if counters.next_slot is not None:
            if config.last_slot is not None:
                counters.skip(config.last_slot + 1)
            kept = arrays_to_bytes(*counters.arrays())
            sent += 1
            told = config.layout.message(Kind.KEPT, counters.next_slot, key, kept)
            yield config.stream, told
        tally = EventTally(counted=counted, messages=sent - taken, beyond_limit=beyond)
        yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())


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


class _LimitInTimeFn(Fenced, beam.DoFn):
    """Decides the slots of a shard one by one, in event time, and emits each, quiet or not.

    Input: (shard, the start of the stream, or visits of a slot), in any order; visits of every
    slot, once, perhaps none, in blocks of one slot. Those that come again are dropped, or fail the
    stage if they differ and their slot is not decided: see `arrivals.py`. State, per shard: the
    visits that wait; how far it is, in the cell that is fenced; and in how many slots users
    counted, after the slot in which that was written, sealed: budgets are kept by it. Before the
    first slot it is what the shard kept in the run that this one goes on from.

    Timer `close`, in event time, armed by `process` and by itself where there are visits of the
    next slot. As a slot closes it is decided who counts there, and users whose block of slots ends
    with it are forgotten.
    """

    EVENTS = BagStateSpec("events", MessageCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    COUNTERS = ReadModifyWriteStateSpec("counters", TupleCoder([VarIntCoder(), BytesCoder()]))
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, config: PresenceConfig, kept: Sequence[Message] = ()) -> None:
        self._config = config
        self._fence = Fence()
        self._kept = {config.layout.key(one.shard): one.payload for one in kept}

    def process(
        self,
        element: tuple[ShardKey, Message],
        visits: Any = beam.DoFn.StateParam(EVENTS),
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
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        counters: Any = beam.DoFn.StateParam(COUNTERS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        progress = self._fence.cell(key, progress)
        config, at = self._config, _Progress(*progress.read())
        slot, mine = at.next_slot, config.counters(key[0])
        (decided, sealed), purpose = counters.read() or (None, b""), b"presence %d %d" % tuple(key)
        if decided != at.decided:
            raise went_back(f"who counted up to slot {decided} is read, and not to {at.decided}")
        known = unseal(config.key, purpose, sealed) if sealed else self._kept.get(tuple(key))
        if known:
            mine.resume(arrays_from_bytes(known))
        waiting = list(visits.read())
        if len(waiting) != at.visits:
            raise went_back(f"{len(waiting)} messages of visits wait where {at.visits} came")
        there = [message for message in waiting if message.slot == slot]
        later = [message for message in waiting if message.slot > slot]
        if len(set(there)) > 1:
            raise contradiction(there[0])
        metrics.count(metrics.PARTS_REPEATED, len(there) - 1)
        limited = config.limited(key[0], mine, Visits.of(there[0]))
        mine.skip(slot + 1)
        written = arrays_to_bytes(*mine.arrays())
        counters.write((slot, seal(config.key, purpose, written)))
        visits.clear()
        for message in later:
            visits.add(message)
        first = min((message.slot for message in later), default=NEVER)
        self._write(
            progress,
            close,
            at._replace(next_slot=slot + 1, busy=first, visits=len(later), decided=slot),
        )
        yield TimestampedValue(config.told(key, limited), config.clock.closing(slot))
